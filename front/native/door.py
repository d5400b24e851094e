"""The native door: a Rust HTTP/2 server (hyper) in its own thread delivers requests in batches.

The network half is the crate in `native/` (package `cometmq-native`); it handles bytes and streams.
This half takes a batch of events in one call across the boundary, runs the services in the loop's
read callback and returns the answers. Rules and measurements: docs/formats/front-door.md, sections
2 and 4. `calls.py` serves one call. One test suite covers both doors.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ...nodes.node_links import NodeLinks
from ...proto.errors import RESOURCE_EXHAUSTED, RpcFailure
from ...proto.native import Native
from ..clock import Clock
from ..config import DoorConfig
from ..context import (
    CLIENT_ID,
    CLIENT_VERSION,
    FORWARDED,
    LANGUAGE,
    NAMESPACE,
    ONE_HOP,
    PICKED,
    TOKEN,
    USER,
    RequestContext,
)
from ..errors import AddressError, PortInUseError
from ..failure import FailureHandler
from ..faults import Fault, FaultAction, FaultTable
from ..metrics.calls import BOUNDS_MS, CallTimes, Counted
from ..process import address_connections, client_connections
from ..service import ClientRun, Kind, Method, ServiceTable, admit, taker_of
from ..shared.handover import Handover
from ..standard import StandardServices
from ..statistics import DoorStatistics
from .calls import (
    BidiCall,
    TakenCalls,
    finish,
    serve_bidi,
    serve_stream,
    serve_unary,
)
from .replies import Replies
from .tls import DoorCertificate

if TYPE_CHECKING:
    from cometmq_native import Server

logger = logging.getLogger(__name__)

_SERVE = {Kind.UNARY: serve_unary, Kind.SERVER_STREAM: serve_stream, Kind.BIDI: serve_bidi}
_FIRST = (CLIENT_ID, LANGUAGE, CLIENT_VERSION, NAMESPACE, FORWARDED, TOKEN, USER)
_NAMES = (*_FIRST, *sorted(PICKED.difference(_FIRST)))
#: Events taken across the boundary at once: enough to amortise the wake-up, few enough to leave
#: time for timers and other sockets.
_EVENTS_MAX = 256
#: Time of the loop for these events: a few requests may be slow.
_TURN_NS = 20_000_000
#: After this time ready answers are passed on before the next event of the turn.
_TOGETHER_NS = 1_000_000
#: Period of the check for changed certificate files, and for addresses with too many connections.
_CERTIFICATE_S = 10.0
# After the grace time, calls that still wait get a status within this time.
_FAREWELL_S = 0.1
# Kinds of events, as `Server.take` numbers them.
_OPEN, _MESSAGE, _HALF_CLOSED, _GONE, _DELIVERED, _DRAINED, _BROKEN, _CLOSED, _REMOTING, _ROW = (
    range(10)
)


def _prepare(
    peer: str, tls: bool, certificate: bytes | None, values: tuple[str | None, ...]
) -> tuple[Any, ...]:
    """Return the context fields of one set of headers; cached for each connection and set."""
    client_id, language, version, namespace, forwarded, token, user = values[: len(_FIRST)]
    named = zip(_NAMES, values, strict=True)
    pairs = tuple((n, v) for n, v in named if v is not None and n not in ONE_HOP)
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
        forwarded or "",
        user or "",
    )


def _context(
    head: tuple[Any, ...], now_ns: int, deadline_ns: int | None = None, size: int = 0
) -> RequestContext:
    """Return the context of a call; `head` is what `_prepare` returned."""
    (
        client_id,
        language,
        version,
        namespace,
        peer,
        forwarded,
        token,
        pairs,
        tls,
        shown,
        forwarded_for,
        forwarded_user,
    ) = head
    return RequestContext(
        client_id,
        language,
        version,
        namespace,
        peer,
        deadline_ns,
        forwarded,
        token,
        pairs,
        size,
        None,
        tls,
        shown,
        forwarded_for,
        forwarded_user,
        now_ns,
    )


def _options(config: DoorConfig) -> dict[str, int]:
    connections = client_connections(config)
    return {
        "message_bytes": config.front_max_receive_message_size,
        "header_bytes": config.front_max_metadata_size,
        "streams": config.front_max_concurrent_streams,
        "connections": connections,
        "address_connections": address_connections(config, connections),
        "connection_rate": config.front_max_connection_rate,
        "waiting": config.front_max_waiting_calls,
        "idle_ms": config.front_max_connection_idle,
        "keepalive_ms": config.front_keepalive_time,
        "keepalive_timeout_ms": config.front_keepalive_timeout,
        "handshake_ms": config.front_handshake_timeout,
        "stalled_ms": config.front_write_timeout,
        "request_ms": config.front_request_timeout,
        "unfinished_connection_bytes": config.front_unfinished_connection_bytes,
        "unfinished_bytes": config.front_unfinished_bytes,
        "unread_connection_bytes": config.front_unread_connection_bytes,
        "unread_bytes": config.front_unread_bytes,
        "resets": config.front_max_pending_resets,
    }


class _DroppedCall:
    """A call whose answers are discarded: the fault DROP."""

    def __init__(self, call: Any) -> None:
        self.id = call.id
        self.consumed = call.consumed

    def reply(self, _message: bytes) -> bool:
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


def _counted(paths: list[str], server: "Server") -> Iterator[Counted]:
    """Return the answered unary calls of each method that was called."""
    for path, (counts, total_ns) in zip(paths, server.durations(), strict=True):
        if any(counts):
            yield path, counts, total_ns


def _admitted(method: Method, heads: list[tuple[Any, int]], now_ns: int) -> list[ClientRun]:
    """Return the first clients, up to one that is refused."""
    clients = []
    for head, count in heads:
        ctx = _context(head, now_ns)
        try:
            admit(method, ctx)
        except Exception:
            break  # its calls are opened one by one, and refused there
        clients.append((ctx, count))
    return clients


def _refuse(fault: Fault, *_arguments: Any) -> None:
    fault.raise_rpc()


class NativeDoor:
    """`door.Door` on the native server. Started and drained once each, on the event loop."""

    name = "native"
    batches = True

    def __init__(
        self,
        services: ServiceTable,
        config: DoorConfig,
        clock: Clock,
        faults: FaultTable | None,
        links: NodeLinks,
        *,
        native: Native,
        handover: Handover | None = None,
        nodes: bool = False,
    ) -> None:
        """`handover` and `nodes` as in `door.choose_door`."""
        self.config = config
        self._handover = handover
        self.in_flight = 0
        self.loop: asyncio.AbstractEventLoop
        self._steady_ns = clock.steady_ns
        self._faults = faults
        self._standard = StandardServices(services)
        table = dict(services) if nodes else {**services, **self._standard.table()}
        self._methods = [(method, _SERVE[method.kind]) for method in table.values()]
        self._takers = [taker_of(method) for method in table.values()]
        self._calls: dict[int, Any] = {}  # open calls, by id
        self._taken: set[TakenCalls] = set()
        self._streams: set[BidiCall] = set()
        self._drained: dict[int, asyncio.Future[None]] = {}
        self.failures = FailureHandler(clock.steady_ns)
        self._left = False  # taken events wait for the next turn of the loop
        self._closed: asyncio.Future[None] | None = None  # set while the door listens
        self._closing: asyncio.Future[None]
        limit = config.front_max_receive_message_size
        limits = {
            path: min(method.request_bytes_max, limit)
            for path, method in table.items()
            if method.request_bytes_max is not None
        }
        routes = [(path, method.kind is Kind.BIDI) for path, method in table.items()]
        options: dict[str, Any] = {**_options(config), "method_bytes": limits}
        options["remoting"] = int(handover is not None)
        options["together"] = [path for path, method in table.items() if taker_of(method)]
        self._server = native.server(routes, list(_NAMES), _prepare, options, BOUNDS_MS)
        paths = [method.path for method, _ in self._methods]
        self.times = CallTimes(clock.steady_ns, partial(_counted, paths, self._server))
        self.replies = Replies(self._server.reply_many, self.failures)
        self._certificate = DoorCertificate(config, links, self._server, native, nodes=nodes)
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
            raise AddressError(host, port, error) from error
        self._closed = self.loop.create_future()
        self.loop.add_reader(self._server.descriptor(), self._ready)
        self._check_certificate()
        self._standard.serving(True)
        connections = client_connections(self.config)
        logger.info(
            "door.opened door=%s host=%s port=%d connections_max=%d",
            self.name,
            host,
            bound,
            connections,
        )
        return bound

    def refresh_certificate(self) -> None:
        """Read the certificate files again if they have changed."""
        self._certificate.refresh()

    def _check_certificate(self) -> None:
        self._certificate_timer = self.loop.call_later(_CERTIFICATE_S, self._check_certificate)
        self.refresh_certificate()
        if (crowd := self._server.refused_address()) is not None:
            logger.warning(
                "door.address_full peer=%s connections_max=%d setting=frontMaxAddressConnections",
                crowd,
                _options(self.config)["address_connections"],
            )

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, end the streams, let calls finish within the grace time, close."""
        closed, self._closed = self._closed, None
        if closed is None:
            return
        self._certificate_timer.cancel()
        self._standard.serving(False)
        for stream in tuple(self._streams):
            stream.shut_down()
        self._closing = closed
        timer = self.loop.call_later(grace_s, self._shut_down_calls)
        self._server.stop(round((grace_s + _FAREWELL_S) * 1_000))
        await closed
        timer.cancel()
        self.loop.remove_reader(self._server.descriptor())
        logger.info("door.closed door=%s in_flight=%d", self.name, self.in_flight)

    def _shut_down_calls(self) -> None:
        for pending in (*self._calls.values(), *self._taken):
            pending.shut_down()

    def statistics(self) -> DoorStatistics:
        """Return the current counters."""
        return DoorStatistics(
            self.name,
            self.in_flight,
            len(self._streams),
            self.failures.counted,
            self.counters(),
            self.times,
        )

    def together(self) -> Replies:
        """Return a context; answers that are ready within it go to the network at its exit."""
        return self.replies

    def counters(self) -> dict[str, int]:
        """Return the counters of the network thread since the start, by name."""
        counted: dict[str, int] = self._server.counters()
        return counted

    # -- called by calls ----------------------------------------------------------------------

    def enter(self, pending: Any) -> None:
        """Register an open call."""
        self.in_flight += 1
        self._calls[pending.call.id] = pending
        if type(pending) is BidiCall:
            self._streams.add(pending)

    def leave(self, pending: Any) -> None:
        """Unregister a call that ended or is registered again under another class."""
        if self._calls.pop(pending.call.id, None) is not None:
            self.in_flight -= 1
            if type(pending) is BidiCall:
                self._streams.discard(pending)

    def leave_taken(self, pending: TakenCalls) -> None:
        """Unregister calls that were answered together."""
        if pending in self._taken:
            self._taken.discard(pending)
            self.in_flight -= len(pending.calls)

    def drained(self, call: Any) -> asyncio.Future[None]:
        """Return a future that is done when the call has written its queue, or has ended."""
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
        """Process the events of the readable descriptor, unless earlier ones are left."""
        if not self._left:
            self._process(iter(self._server.take(_EVENTS_MAX)), self._steady_ns())

    def _process(self, events: Iterator[tuple[Any, ...]], taken_ns: int) -> None:
        """Process events in order, for one turn of the loop; the rest follows in the next."""
        self._left = False
        steady_ns = self._steady_ns
        begin_ns = steady_ns()
        stop_ns, together_ns = begin_ns + _TURN_NS, begin_ns + _TOGETHER_NS
        with self.replies as replies:
            while (event := next(events, None)) is not None:
                if event[0] == _ROW:
                    rest = self._open_row(event, taken_ns)
                    events = chain(rest, events) if rest else events
                elif event[0] == _OPEN:
                    self._open(event, taken_ns)
                else:
                    self._progress(event)
                now_ns = steady_ns()
                if now_ns >= stop_ns:
                    self._left = True
                    self.loop.call_soon(self._process, events, taken_ns)
                    return
                if now_ns >= together_ns:
                    replies.pass_on()
                    together_ns = now_ns + _TOGETHER_NS

    def _open(self, event: tuple[Any, ...], now_ns: int) -> None:
        _, call, index, raw, head, timeout_ns = event
        method, serve = self._methods[index]
        raw = raw or b""  # a bidirectional stream opens without a request
        deadline_ns = now_ns + timeout_ns if timeout_ns >= 0 else None
        ctx = _context(head, now_ns, deadline_ns, len(raw))
        if self.in_flight >= self.config.front_max_concurrent_calls:
            error = RpcFailure(RESOURCE_EXHAUSTED, "too many calls at once; try again later")
            self.times.failed(method.path, now_ns, error)
            finish(call, error)
        elif self._faults is not None and self._faults.rpc:
            self._open_with_faults(call, method, ctx, raw)
        else:
            serve(self, call, method, ctx, raw)

    def _open_row(self, event: tuple[Any, ...], now_ns: int) -> list[tuple[Any, ...]]:
        """Open the first of these calls of one method together, as many as its handler takes;
        return the events of the others."""
        _, index, calls, requests, heads, timeouts = event
        taken = self._take(index, calls, requests, heads, now_ns)
        if taken == len(calls):
            return []
        head_of = [head for head, count in heads for _ in range(count)]
        return [
            (_OPEN, calls[at], index, requests[at], head_of[at], timeouts[at])
            for at in range(taken, len(calls))
        ]

    def _take(
        self,
        index: int,
        calls: list[Any],
        requests: Sequence[bytes],
        heads: list[tuple[Any, int]],
        now_ns: int,
    ) -> int:
        """Return the number of calls that the handler has taken."""
        method, take = self._methods[index][0], self._takers[index]
        faults = self._faults is not None and self._faults.rpc
        room = self.config.front_max_concurrent_calls - self.in_flight
        if take is None or faults or len(calls) > room:
            return 0
        clients = _admitted(method, heads, now_ns)
        if not clients:
            return 0
        pending = TakenCalls(self, calls, method, clients[0][0])
        try:
            taken = take(requests, clients)
            if taken is None:
                return 0
            pending.calls = calls[: taken.count]
            self._taken.add(pending)
            self.in_flight += taken.count
            taken.then(pending.answer)
        except Exception as error:  # a bug: what it has done is unknown, so no call is repeated
            failed = len(pending.calls)
            pending.fail(error)
            return failed
        return taken.count

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
            serve(self, _DroppedCall(call) if dropped else call, method, ctx, raw)
            if dropped:
                ctx.on_undelivered = None  # as if lost in the network: the server gets no notice

        if fault.delay_ms:
            self.loop.call_later(fault.delay_ms / 1_000, go_on)
        else:
            go_on()

    def _progress(self, event: tuple[Any, ...]) -> None:
        kind = event[0]
        if kind == _CLOSED:
            self._ended()
            return
        if kind == _REMOTING:
            connection = socket.socket(fileno=event[1])
            if self._handover is None:
                connection.close()
            else:
                self._handover.pass_on(connection, event[2], certificate=event[3] or b"")
            return
        pending = self._calls.get(event[1])
        if pending is None:
            return
        if kind == _MESSAGE:
            pending.receive(event[2])
        elif kind == _HALF_CLOSED:
            pending.half_closed()
        elif kind == _BROKEN:
            pending.broken(RpcFailure(event[2], event[3]))
        elif kind == _DRAINED:
            self._release(event[1])
        else:
            self.leave(pending)
            self._release(event[1])
            if kind == _GONE or type(pending) is BidiCall:
                pending.gone()

    def _release(self, number: int) -> None:
        future = self._drained.pop(number, None)
        if future is not None and not future.done():
            future.set_result(None)

    def _ended(self) -> None:
        """End the calls that remain after the network thread has ended."""
        for pending in tuple(self._calls.values()):
            self.leave(pending)
            pending.gone()
        for taken in tuple(self._taken):
            self.leave_taken(taken)
        if not self._closing.done():
            self._closing.set_result(None)
