"""/metrics, /livez and /readyz: an HTTP server on the event loop of a server process.

It costs nothing between requests, and bounds headers, time, connections and memory. A connection
takes one GET or HEAD request; it is aborted if the request has not arrived within `_REQUEST_S`, or
the answer has not been read within `_ANSWER_S`. At the limit of connections the oldest one is
aborted, so that slow clients do not keep probes out. /livez answers as long as the loop runs. The
probes answer JSON (`probes.py`). The text of a scrape is rendered in a thread, one at a time;
scrapes that arrive meanwhile get the same page. With a bearer token /metrics needs it (RFC 6750);
the probes stay open.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from ..errors import AddressError, PortInUseError
from .probes import OK, Checks, Probe

if TYPE_CHECKING:
    from ..clock import Clock

logger = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PLAIN = "text/plain; charset=utf-8"
_JSON = "application/json"
_REQUEST_BYTES_MAX = 8 * 1024
_REQUEST_S = 5.0
# The usual timeout of a scrape.
_ANSWER_S = 10.0
# Scrapers, health checks, and people.
_CONNECTIONS_MAX = 32
# Pages that are being sent: each may be a page of its own.
_PAGES_MAX = 4
# Part of a page in the buffer of a connection: a slow reader costs no copy of the page.
_PIECE_BYTES = 64 * 1024
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}

Answer = tuple[int, str, bytes]
#: Renders a page in any thread.
Render = Callable[[], bytes]


class MetricsServer:
    """Serves the three paths."""

    def __init__(
        self,
        scrape: Callable[[], Render | Awaitable[Render]],
        ready: Checks,
        clock: Clock,
        token: bytes = b"",
    ) -> None:
        """`scrape` collects on the loop and returns what renders; `ready` has the checks of
        /readyz; /metrics needs `token` unless empty."""
        self._token = token
        self._scrape = scrape
        self._probes = {
            "/livez": Probe(lambda: {"event_loop": OK}, clock),
            "/readyz": Probe(ready, clock),
        }
        self._server: asyncio.Server | None = None
        # Open connections, and those that a page is sent to; the oldest first.
        self._connections: dict[asyncio.WriteTransport, None] = {}
        self._readers: dict[asyncio.WriteTransport, None] = {}
        self._rendering: asyncio.Task[bytes] | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises PortInUseError, AddressError."""
        try:
            self._server = await asyncio.start_server(
                self._connected, host, port, limit=_REQUEST_BYTES_MAX
            )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(host, port) from error
            raise AddressError(host, port, error) from error
        for probe in self._probes.values():
            probe.start()
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Close the port and all connections."""
        for probe in self._probes.values():
            probe.stop()
        if self._server is not None:
            self._server.close()
            self._server = None
        for transport in tuple(self._connections):
            transport.abort()
        if self._serving:
            await asyncio.wait(self._serving)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport = writer.transport
        _enter(self._connections, transport, _CONNECTIONS_MAX)
        transport.set_write_buffer_limits(high=_PIECE_BYTES)
        try:
            async with asyncio.timeout(_REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
            async with asyncio.timeout(_ANSWER_S):
                answer = await self._answer(head, transport)
                await _send(writer, head, answer)
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            # Too slow, too long, or disconnected: there is no client to answer.
            transport.abort()
        finally:
            self._connections.pop(transport, None)
            self._readers.pop(transport, None)
            writer.close()

    async def _answer(self, head: bytes, transport: asyncio.WriteTransport) -> Answer:
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3:
            return 400, _PLAIN, b"not an HTTP request\n"
        method, target = parts[0], parts[1].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return 405, _PLAIN, b"only GET and HEAD\n"
        probe = self._probes.get(target)
        if probe is not None:
            passed, content = probe.answer()
            return 200 if passed else 503, _JSON, content
        if target == "/metrics":
            if self._token and not hmac.compare_digest(_bearer_token(head), self._token):
                return 401, _PLAIN, b"/metrics needs the bearer token of metricsBearerTokenFile\n"
            _enter(self._readers, transport, _PAGES_MAX)
            return 200, CONTENT_TYPE, await self._page()
        return 404, _PLAIN, b"/metrics, /livez and /readyz are here\n"

    async def _page(self) -> bytes:
        """Return the page that is being rendered, or a new one."""
        if self._rendering is None:
            rendering = asyncio.get_running_loop().create_task(self._render())
            rendering.add_done_callback(self._rendered)
            self._rendering = rendering
        return await asyncio.shield(self._rendering)

    async def _render(self) -> bytes:
        collected = self._scrape()
        return await asyncio.to_thread(collected if callable(collected) else await collected)

    def _rendered(self, _rendering: asyncio.Task[bytes]) -> None:
        self._rendering = None


def _bearer_token(head: bytes) -> bytes:
    """Return the token of the header `Authorization: Bearer TOKEN`; empty without one."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"authorization":
            scheme, _, token = value.strip().partition(b" ")
            return token.strip() if scheme.lower() == b"bearer" else b""
    return b""


def _enter(
    connections: dict[asyncio.WriteTransport, None], transport: asyncio.WriteTransport, limit: int
) -> None:
    """Add a connection; abort the oldest ones beyond the limit."""
    while len(connections) >= limit:
        oldest = next(iter(connections))
        del connections[oldest]
        logger.info("metrics.aborted peer=%s", oldest.get_extra_info("peername"))
        oldest.abort()
    connections[transport] = None


async def _send(writer: asyncio.StreamWriter, head: bytes, answer: Answer) -> None:
    """Send the answer in pieces, each when the one before has left, and close. Raises OSError."""
    if writer.is_closing():  # aborted for a newer connection while the page was rendered
        raise ConnectionAbortedError
    status, kind, body = answer
    challenge = "WWW-Authenticate: Bearer\r\n" if status == 401 else ""
    lines = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\n{challenge}"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(lines.encode())
    if not head.startswith(b"HEAD "):
        for begin in range(0, len(body), _PIECE_BYTES):
            await writer.drain()
            writer.write(body[begin : begin + _PIECE_BYTES])
    writer.close()
    await writer.wait_closed()
