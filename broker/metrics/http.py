"""/metrics, /livez and /readyz: a small HTTP server on the broker's own event loop.

Promises: a request costs nothing until it comes (no thread that polls); bounded in headers, time
and connections; GET and HEAD only, one request a connection. It lives on the loop on purpose:
/livez answers exactly while the loop turns. The text of a scrape is rendered in a thread.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable

from ...front.errors import AddressError, PortInUseError

logger = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PLAIN = "text/plain; charset=utf-8"
_REQUEST_BYTES_MAX = 8 * 1024
_REQUEST_S = 5.0
# A scraper, a health check, and people: more at once is a mistake, and each costs a scrape.
_CONNECTIONS_MAX = 32
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


class MetricsServer:
    """Serves the three paths."""

    def __init__(
        self, scrape: Callable[[], Callable[[], bytes]], unready: Callable[[], str | None]
    ) -> None:
        """`scrape` collects on the loop and returns what renders; `unready` says why not, or
        None."""
        self._scrape = scrape
        self._unready = unready
        self._server: asyncio.Server | None = None
        self._connections = 0

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises PortInUseError, AddressError."""
        try:
            self._server = await asyncio.start_server(
                self._serve, host, port, limit=_REQUEST_BYTES_MAX
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(host, port) from error
            raise AddressError(host, port, error.strerror or str(error)) from error
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Close; a scrape that is under way is finished by its own connection."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            async with asyncio.timeout(_REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, kind, body = await self._answer(head)
                writer.write(_response(head, status, kind, body))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            # Too slow, too long, or disconnected: there is no client to answer.
            pass
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(self, head: bytes) -> tuple[int, str, bytes]:
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3:
            return 400, _PLAIN, b"not an HTTP request\n"
        method, target = parts[0], parts[1].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return 405, _PLAIN, b"only GET and HEAD\n"
        if target == "/livez":
            return 200, _PLAIN, b"ok\n"
        if target == "/readyz":
            reason = self._unready()
            return (
                (200, _PLAIN, b"ok\n") if reason is None else (503, _PLAIN, f"{reason}\n".encode())
            )
        if target == "/metrics":
            if self._connections > _CONNECTIONS_MAX:
                return 503, _PLAIN, b"too many scrapes at once\n"
            return 200, CONTENT_TYPE, await asyncio.to_thread(self._scrape())
        return 404, _PLAIN, b"/metrics, /livez and /readyz are here\n"


def _response(head: bytes, status: int, kind: str, body: bytes) -> bytes:
    lines = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return lines.encode() + (b"" if head.startswith(b"HEAD ") else body)
