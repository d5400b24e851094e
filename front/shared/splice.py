"""Two connections as one: what one end sends the other end gets.

Each end is read only while the other one takes it. When one end closes, the other one gets what is
in its buffer and is closed, too; one that does not read it in time is aborted.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

_HOST = "127.0.0.1"


class Splice:
    """A client's connection and an inner one, to a server on this machine."""

    def __init__(self, patience_s: float, on_end: Callable[[Splice], None]) -> None:
        """`patience_s`: time for the bytes in the buffer after the other end has closed.

        `on_end` is called once, when both ends are closed.
        """
        self._patience_s = patience_s
        self._on_end = on_end
        self._client, self._inner = _End(self), _End(self)
        self._client.other, self._inner.other = self._inner, self._client
        self._late: asyncio.TimerHandle | None = None
        #: HOST and port of this side of the inner connection, once connected.
        self.inner_name: tuple[str, int] = ("", 0)

    async def connect_inner(self, port: int) -> None:
        """Connect with the server. Raises OSError.

        What it sends before the client is connected waits: a greeting.
        """
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: self._inner, _HOST, port)
        host, number, *_ = transport.get_extra_info("sockname")
        self.inner_name = host, number

    async def connect_client(self, accepted: socket.socket) -> None:
        """Pass bytes in both directions from now on. Raises OSError."""
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: self._client, accepted)

    def abort(self) -> None:
        """End both connections now."""
        self._client.abort()
        self._inner.abort()

    def ended(self, end: _End) -> None:
        """Close the other end after one has closed."""
        if self._late is not None:
            self._late.cancel()
        if end.other.is_open:
            end.other.close()
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(self._patience_s, end.other.abort)
        else:
            self._on_end(self)


class _End(asyncio.Protocol):
    """One end."""

    other: _End

    def __init__(self, splice: Splice) -> None:
        self._splice = splice
        self._transport: asyncio.Transport | None = None
        # Pausing the other end does not do: uvloop reads after `connection_made`, whatever it asks.
        self._early: list[bytes] = []
        self._lost = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not a subclass of `asyncio.Transport` with uvloop.
        self._transport = cast(asyncio.Transport, transport)
        early, self._early = self._early, []
        if early:
            self._transport.write(b"".join(early))

    def data_received(self, data: bytes) -> None:
        self.other.write(data)

    def pause_writing(self) -> None:
        self.other.pause_reading()

    def resume_writing(self) -> None:
        self.other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost = True
        self._splice.ended(self)

    def write(self, data: bytes) -> None:
        if self._transport is None:
            if not self._lost:
                self._early.append(data)
        elif not self._transport.is_closing():
            self._transport.write(data)

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
