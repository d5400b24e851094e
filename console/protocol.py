"""HTTP connections of the console: uvicorn's, with a time limit for each request.

uvicorn waits for the rest of a request for ever. As it accepts a limited number of connections, a
few clients that never finish one would keep all others out.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

#: From the first byte of a connection or request to the last one of its body; forms are small.
REQUEST_S = 20.0


class TimedProtocol(H11Protocol):
    """Closes a connection whose request is not complete in time."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time of the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the time."""
        super().connection_lost(exc)
        self._stop()

    def _watch(self) -> None:
        if not self._is_incomplete():
            self._stop()
        elif self._late is None:
            self._late = self.loop.call_later(REQUEST_S, self._end)

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
