"""HTTP connections of the console: uvicorn's, with time limits for requests and for readers.

uvicorn waits for the rest of a request for ever, and for a client that does not read its answer. As
it accepts a limited number of connections, such clients would keep all others out: both have a time
limit, and at the limit of connections a new one replaces the one that has waited longest for its
client.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

#: From the first byte of a connection or request to the last one of its body; forms are small.
REQUEST_S = 20.0
#: Time in which a client must read a part of what waits for it.
UNREAD_S = 20.0


class TimedProtocol(H11Protocol):
    """Closes a connection whose request is not complete in time, or whose answer is not read."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._idle_since = 0.0  # the time of the connection, or of its last complete request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time of the first request."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._make_room()
        self._watch()

    def _make_room(self) -> None:
        """Close the connection that has waited longest for its client, if there are too many."""
        if self.limit_concurrency is None or len(self.connections) < self.limit_concurrency:
            return
        others = [one for one in self.connections if isinstance(one, TimedProtocol)]
        idle = [one for one in others if one is not self and one._waits()]
        if idle:
            oldest = min(idle, key=lambda one: one._idle_since)
            oldest.transport.abort()
            self.connections.discard(oldest)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the time."""
        super().connection_lost(exc)
        self._stop()
        self._stop_unread()

    def pause_writing(self) -> None:
        """Start the time to read."""
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        """End the time to read."""
        super().resume_writing()
        self._stop_unread()

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _watch(self) -> None:
        if not self._is_incomplete():
            self._idle_since = self.loop.time()
            self._stop()
        elif self._late is None:
            self._late = self.loop.call_later(REQUEST_S, self._end)

    def _waits(self) -> bool:
        return self._is_incomplete() or self._unread is not None

    def _is_incomplete(self) -> bool:
        cycle = self.cycle
        return cycle is None or bool(cycle.response_complete or cycle.more_body)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end(self) -> None:
        self._late = None
        if self._is_incomplete():
            self.transport.abort()
