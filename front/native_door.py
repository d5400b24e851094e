"""The native front door: hyper in a thread of its own hands requests over in batches.

The network half is the crate in `native/` (package `cometmq-native`): it knows bytes and streams. This
half takes what came in one call across the boundary, runs the services in the loop's read callback and
gives the answers back. Rules and measurements: front-door note, sections 2 and 4. `native_calls.py` is
what happens to one call; the promises are those of the grpcio door, and one suite tests both.
"""

import asyncio
import errno
import logging
import socket
from dataclasses import replace
from functools import partial
from typing import Any

from cometmq_native import Server

from ..proto.errors import RESOURCE_EXHAUSTED, RpcFailure
from .clock import Clock
from .config import DoorConfig
from .context import (
    CLIENT_ID,
    CLIENT_VERSION,
    FORWARDED,
    LANGUAGE,
    NAMESPACE,
    PICKED,
    TOKEN,
    RequestContext,
)
from .door import DoorStatistics
from .errors import AddressError, PortInUseError
from .failure import Faults
from .faults import Fault, FaultAction, FaultTable
from .native_calls import BidiCall, finish, serve_bidi, serve_stream, serve_unary
from .native_tls import DoorCertificate
from .service import Kind, Method, ServiceTable
from .standard import StandardServices

logger = logging.getLogger(__name__)

_SERVE = {Kind.UNARY: serve_unary, Kind.SERVER_STREAM: serve_stream, Kind.BIDI: serve_bidi}
_FIRST = (CLIENT_ID, LANGUAGE, CLIENT_VERSION, NAMESPACE, FORWARDED, TOKEN)
_NAMES = (*_FIRST, *sorted(PICKED.difference(_FIRST)))
#: Events taken across the boundary at once: enough to share the wake-up, few enough that timers and
#: other sockets get their turn.
_EVENTS_MAX = 256
#: Certificate files are looked at this often.
_CERTIFICATE_S = 10.0
# After the grace time, clients that still wait are told so within this time.
_FAREWELL_S = 0.1
# Kinds of events, as `Server.take` numbers them.
_OPEN, _MESSAGE, _HALF_CLOSED, _GONE, _DELIVERED, _DRAINED, _BROKEN, _CLOSED = range(8)


def _prepare(
    peer: str, tls: bool, certificate: bytes | None, values: tuple[str | None, ...]
) -> tuple[Any, ...]:
    """What every context of these headers has in common; made once a connection and set of them."""
    client_id, language, version, namespace, forwarded, token = values[: len(_FIRST)]
    pairs = tuple((n, v) for n, v in zip(_NAMES, values, strict=True) if v is not None)
    return (
        client_id or "",
        language or "",
        version or "",
        namespace or "",
        peer,
        forwarded is not None,
        token or "",
        pairs,
        tls,
        certificate or b"",
    )


def _options(config: DoorConfig) -> dict[str, int]:
    return {
        "message_bytes": config.front_max_receive_message_size,
        "header_bytes": config.front_max_metadata_size,
        "streams": config.front_max_concurrent_streams,
        "connections": config.front_max_connections,
        "waiting": config.front_max_waiting_calls,
        "idle_ms": config.front_max_connection_idle,
        "keepalive_ms": config.front_keepalive_time,
        "keepalive_timeout_ms": config.front_keepalive_timeout,
        "handshake_ms": config.front_handshake_timeout,
        "stalled_ms": config.front_write_timeout,
        "resets": config.front_max_pending_resets,
    }


class _Lost:
    """A call whose answers never arrive: the fault DROP."""

    def __init__(self, call: Any) -> None:
        self.id = call.id
        self.consumed = call.consumed

    def reply(self, _message: bytes) -> bool:
        return True

    def reply_all(self, _messages: list[bytes]) -> bool:
        return True

    def send(self, _message: bytes) -> int:
        return 1

    def finish(self, _code: int, _message: str) -> bool:
        return True

    def queued(self) -> int:
        return 0

    def want_drained(self) -> bool:
        return False

    def watch(self) -> None:
        pass


def _refuse(fault: Fault, *_arguments: Any) -> None:
    fault.raise_rpc()


class NativeDoor:
    """`door.Door` on the native server. Made anywhere, started and drained on the loop, once each."""

    name = "native"
    batches = True

    def __init__(
        self,
        services: ServiceTable,
        config: DoorConfig,
        clock: Clock,
        faults: FaultTable | None = None,
    ) -> None:
        self.config = config
        self.in_flight = 0
        self.loop: asyncio.AbstractEventLoop
        self._steady_ns = clock.steady_ns
        self._faults = faults
        self._standard = StandardServices(services)
        table = {**services, **self._standard.table()}
        self._methods = [(method, _SERVE[method.kind]) for method in table.values()]
        self._calls: dict[int, Any] = {}  # those that are not over
        self._talks: set[BidiCall] = set()
        self._drained: dict[int, asyncio.Future[None]] = {}
        self.failures = Faults()
        self._closed: asyncio.Future[None] | None = None  # while it listens
        self._closing: asyncio.Future[None]
        routes = [(path, method.kind is Kind.BIDI) for path, method in table.items()]
        self._server = Server(routes, list(_NAMES), _prepare, _options(config))
        self._certificate = DoorCertificate(config, self._server)
        self._certificate_timer: asyncio.TimerHandle

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the bound port. Raises PortInUseError, AddressError, CertificateError."""
        self.loop = asyncio.get_running_loop()
        self._certificate.install()
        infos = await self.loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            bound: int = self._server.listen(str(infos[0][4][0]), port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(host, port) from error
            raise AddressError(host, port, error.strerror or str(error)) from error
        self._closed = self.loop.create_future()
        self.loop.add_reader(self._server.descriptor(), self._ready)
        self._look_at_certificate()
        self._standard.serving(True)
        logger.info("door.opened door=%s host=%s port=%d", self.name, host, bound)
        return bound

    def refresh_certificate(self) -> None:
        """Take the certificate's files again, if they have changed."""
        self._certificate.refresh()

    def _look_at_certificate(self) -> None:
        self.refresh_certificate()
        self._certificate_timer = self.loop.call_later(_CERTIFICATE_S, self._look_at_certificate)

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, end the streams, finish what is in flight within the grace time, close."""
        closed, self._closed = self._closed, None
        if closed is None:
            return
        self._certificate_timer.cancel()
        self._standard.serving(False)
        for talk in tuple(self._talks):
            talk.give_up()
        self._closing = closed
        giving_up = self.loop.call_later(grace_s, self._give_up)
        self._server.stop(round((grace_s + _FAREWELL_S) * 1_000))
        await closed
        giving_up.cancel()
        self.loop.remove_reader(self._server.descriptor())
        logger.info("door.closed door=%s in_flight=%d", self.name, self.in_flight)

    def _give_up(self) -> None:
        for answering in tuple(self._calls.values()):
            answering.give_up()

    def statistics(self) -> DoorStatistics:
        """Counters as they are now."""
        return DoorStatistics(
            self.name,
            self.in_flight,
            len(self._talks),
            dict(self.failures.counted),
            self.counters(),
        )

    def counters(self) -> dict[str, int]:
        """What the network half counted since the start, by name."""
        counted: dict[str, int] = self._server.counters()
        return counted

    # -- what the calls ask of their door -----------------------------------------------------

    def enter(self, answering: Any) -> None:
        """This call is not over yet."""
        self.in_flight += 1
        self._calls[answering.call.id] = answering
        if type(answering) is BidiCall:
            self._talks.add(answering)

    def leave(self, answering: Any) -> None:
        """This call is over, or goes on under another name."""
        if self._calls.pop(answering.call.id, None) is not None:
            self.in_flight -= 1
            if type(answering) is BidiCall:
                self._talks.discard(answering)

    def drained(self, call: Any) -> asyncio.Future[None]:
        """Done when nothing of this call waits to be written, or it is over."""
        future = self._drained.get(call.id)
        if future is None or future.done():
            future = self.loop.create_future()
            if call.id in self._calls and call.want_drained():
                self._drained[call.id] = future
            else:
                future.set_result(None)
        return future

    # -- events -------------------------------------------------------------------------------

    def _ready(self) -> None:
        """The descriptor is readable: take what there is."""
        now_ns = self._steady_ns()
        for event in self._server.take(_EVENTS_MAX):
            if event[0] == _OPEN:
                self._open(event, now_ns)
            else:
                self._progress(event)

    def _open(self, event: tuple[Any, ...], now_ns: int) -> None:
        _, call, index, raw, head, timeout_ns = event
        method, serve = self._methods[index]
        raw = raw or b""  # a bidirectional stream begins without a request
        client_id, language, version, namespace, peer, forwarded, token, pairs, tls, shown = head
        ctx = RequestContext(
            client_id,
            language,
            version,
            namespace,
            peer,
            now_ns + timeout_ns if timeout_ns >= 0 else None,
            forwarded,
            token,
            pairs,
            len(raw),
            None,
            tls,
            shown,
        )
        if self.in_flight >= self.config.front_max_concurrent_calls:
            finish(call, RpcFailure(RESOURCE_EXHAUSTED, "too many calls at once; try again later"))
        elif self._faults is not None and self._faults.rpc:
            self._open_with_faults(call, method, ctx, raw)
        else:
            serve(self, call, method, ctx, raw)

    def _open_with_faults(self, call: Any, method: Method, ctx: RequestContext, raw: bytes) -> None:
        serve = _SERVE[method.kind]
        fault = self._faults.rpc_fault(method.path) if self._faults is not None else None
        if fault is None:
            serve(self, call, method, ctx, raw)
            return
        if fault.action is FaultAction.FAIL:
            method = replace(method, handler=partial(_refuse, fault))
        dropped = fault.action is FaultAction.DROP

        def go_on() -> None:
            serve(self, _Lost(call) if dropped else call, method, ctx, raw)
            if dropped:
                ctx.on_undelivered = None  # lost on the way: the server does not know

        if fault.delay_ms:
            self.loop.call_later(fault.delay_ms / 1_000, go_on)
        else:
            go_on()

    def _progress(self, event: tuple[Any, ...]) -> None:
        kind = event[0]
        if kind == _CLOSED:
            self._over()
            return
        answering = self._calls.get(event[1])
        if answering is None:
            return
        if kind == _MESSAGE:
            answering.receive(event[2])
        elif kind == _HALF_CLOSED:
            answering.half_closed()
        elif kind == _BROKEN:
            answering.broken(RpcFailure(event[2], event[3]))
        elif kind == _DRAINED:
            self._release(event[1])
        else:
            self.leave(answering)
            self._release(event[1])
            if kind == _GONE or type(answering) is BidiCall:
                answering.gone()

    def _release(self, number: int) -> None:
        future = self._drained.pop(number, None)
        if future is not None and not future.done():
            future.set_result(None)

    def _over(self) -> None:
        """The network thread has ended; calls that it did not know any more end here."""
        for answering in tuple(self._calls.values()):
            self.leave(answering)
            answering.gone()
        if not self._closing.done():
            self._closing.set_result(None)
