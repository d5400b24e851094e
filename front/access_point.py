"""The access point: every node answers every RPC and forwards those that another node owns.

It wraps a service table. `locate` returns the owner of a request: an address, None for this node,
or UNKNOWN. A forwarded request is sent as the bytes that came in, with its deadline, its picked
metadata and a header that marks it as forwarded; the answer is returned unchanged. The mark is
accepted from nodes of the cluster only (`admission.py`). A request is forwarded at most once: if a
forwarded request arrives at a node that does not own it, the node serves it where `unreachable`
allows that, and otherwise returns UNAVAILABLE to the forwarding node, which treats it as an
unreachable owner.

If the owner cannot be reached before it has answered, `unreachable` decides: "serve" here, "hold",
or a `WireError`. A held request calls `locate` several times a second and is sent as soon as there
is a new owner or the old one is reachable again. Shortly before its deadline it is answered
HA_NOT_AVAILABLE, so that official clients get through a failover without an error. A request whose
owner failed in the middle may have been executed there: held sends are delivered at least once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from types import CoroutineType
from typing import Any, Literal

import grpc
import grpc.aio
from msgspec import Struct
from msgspec.structs import replace

from ..nodes.node_links import NodeLinks
from ..proto import v2
from ..proto.channels import cancel_requests
from ..proto.errors import CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE, RpcFailure, WireError
from .admission import forward_mark, forwarded_by_nodes_only
from .bridge import BridgeSession, ParsingSession
from .channels import ChannelPool
from .clock import Clock
from .config import DoorConfig
from .context import RequestContext
from .reply_future import ReplyFuture
from .service import (
    ClientRun,
    Kind,
    Method,
    Outbound,
    ServiceTable,
    Session,
    Taken,
    read_message,
    taker_of,
)
from .statistics import ForwardStatistics

#: The owner exists but is not known: `unreachable` decides about the request.
UNKNOWN = ""
Decision = Literal["serve", "hold"] | WireError
Locate = Callable[[str, Any, RequestContext], str | None]
Unreachable = Callable[[str, Any, RequestContext], Decision]
#: Whether `locate` returns None for every request of a method that its `TurnHandler` takes.
ServesAll = Callable[[str], bool]

_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000
# Interval at which held requests call `locate`: short against an election, cheap with thousands
# held.
_RETRY_S = 0.1
_NOT_MINE = "this node does not own the request and a request makes one hop only"
_ISOLATED = "this node reaches neither the leader nor a controller: use another node"
_OUT_OF_REACH = frozenset((UNAVAILABLE, CANCELLED))
# A call whose channel is closed on this side ends like a cancelled call.
_LOST = (grpc.RpcError, grpc.aio.UsageError, asyncio.CancelledError)


class AccessPoint:
    """Forwards requests; `services` is the wrapped table for the door."""

    def __init__(
        self,
        services: ServiceTable,
        config: DoorConfig,
        clock: Clock,
        locate: Locate,
        unreachable: Unreachable,
        *,
        links: NodeLinks,
        serves_all: ServesAll | None = None,
    ) -> None:
        """Without `serves_all` each call is located."""
        self.statistics = ForwardStatistics()
        self._config = config
        self._clock = clock
        self._locate = locate
        self._unreachable = unreachable
        self._serves_all = serves_all
        self._links = links
        self._pool = ChannelPool(config, links)
        #: No other node can be reached: what another node must serve fails with UNAVAILABLE.
        self.isolated = False
        self._tick: asyncio.Future[None] | None = None
        self._inner = dict(services)
        wrap = {Kind.UNARY: self._routed, Kind.SERVER_STREAM: self._routed, Kind.BIDI: self._bidi}
        self.services: dict[str, Method] = {
            path: replace(
                method,
                parse=bytes,
                handler=wrap[method.kind](method),
                admit=forwarded_by_nodes_only(links, method.admit),
                limits=None,  # checked where the request is decoded
            )
            for path, method in services.items()
        }

    async def close(self) -> None:
        """Close the connections to other nodes."""
        await self._pool.close()

    async def hold(self, path: str, request: Any, ctx: RequestContext) -> Any:
        """Hold a request that this node's handler cannot accept now, and return its answer.

        Called by handlers. Raises RpcFailure for a forwarded request: the forwarding node holds it.
        """
        if ctx.forwarded:
            raise RpcFailure(UNAVAILABLE, "this node accepts no writes now")
        raw = request.SerializeToString()
        method = self._inner[path]
        return await self._forward_unary(_Forward(method, raw, request, ctx, UNKNOWN))

    def failing(self, address: str) -> bool:
        """Return True if the last attempt to connect to `address` failed."""
        return self._pool.failing(address)

    def retry_held(self) -> None:
        """Retry held requests in the next loop iteration, because the owner may have changed."""
        if self._tick is not None and not self._tick.done():
            self._tick.set_result(None)

    def owner_gone(self, address: str, silent: bool = False) -> None:
        """Drop the connection to a former owner, after a moment for its calls; at once if it was
        `silent`."""
        self._pool.drop(address, at_once=silent)

    def isolate(self) -> None:
        """End forwarded and held requests with UNAVAILABLE, and further ones until `rejoin`."""
        self.isolated = True
        self._pool.drop_all()
        self.retry_held()

    def rejoin(self) -> None:
        """Forward and hold requests again."""
        self.isolated = False

    def _routed(self, method: Method) -> Callable[..., Any]:
        path, handler, locate = method.path, method.handler, self._locate
        unary = method.kind is Kind.UNARY
        forward: Callable[[_Forward], Any] = self._forward_unary if unary else self._forward_stream

        def handle(raw: bytes, ctx: RequestContext) -> Any:
            request = read_message(method, raw)
            owner = locate(path, request, ctx)
            if owner is None or self._last_hop(path, request, ctx):
                return handler(request, ctx)
            return forward(_Forward(method, raw, request, ctx, owner))

        take, serves_all = taker_of(method), self._serves_all
        if take is None or serves_all is None:
            return handle
        return _RoutedTurns(handle, take, partial(serves_all, path))

    def _bidi(self, method: Method) -> Callable[..., Session]:
        path, handler, locate = method.path, method.handler, self._locate

        def open_session(ctx: RequestContext, outbound: Outbound) -> Session:
            owner = locate(path, None, ctx)
            if owner is None or self._last_hop(path, None, ctx):
                return ParsingSession(method, handler(ctx, outbound))
            self.statistics.forwarded += 1
            call = self._pool.call(owner, path, requests=True, answers=True)
            timeout = self._timeout_s(ctx)
            return BridgeSession(call(timeout=timeout, metadata=self._marked(owner, ctx)), outbound)

        return open_session

    def _last_hop(self, path: str, request: Any, ctx: RequestContext) -> bool:
        """Return True if a forwarded request may be served here although another node owns it."""
        if not ctx.forwarded:
            return False
        if self._unreachable(path, request, ctx) == "serve":
            self.statistics.served_instead += 1
            return True
        raise RpcFailure(UNAVAILABLE, _NOT_MINE)

    async def _forward_unary(self, forward: "_Forward") -> Any:
        while forward.owner is not None:
            if forward.owner == UNKNOWN:
                await self._decide(forward)
                continue
            self.statistics.forwarded += 1
            call = self._pool.call(forward.owner, forward.method.path)
            ctx = forward.ctx
            try:
                return await call(
                    forward.raw,
                    timeout=self._timeout_s(ctx),
                    metadata=self._marked(forward.owner, ctx),
                )
            except _LOST as error:
                await self._after_failure(forward, error, call)
        answer = forward.method.handler(forward.request, forward.ctx)
        waits = isinstance(answer, (ReplyFuture, CoroutineType)) or asyncio.isfuture(answer)
        return await answer if waits else answer

    async def _forward_stream(self, forward: "_Forward") -> AsyncIterator[Any]:
        while forward.owner is not None:
            if forward.owner == UNKNOWN:
                await self._decide(forward)
                continue
            self.statistics.forwarded += 1
            start = self._pool.call(forward.owner, forward.method.path, answers=True)
            ctx = forward.ctx
            begun = False
            call = None
            try:
                call = start(
                    forward.raw,
                    timeout=self._timeout_s(ctx),
                    metadata=self._marked(forward.owner, ctx),
                )
                while (item := await call.read()) is not grpc.aio.EOF:
                    begun = True
                    yield item
                return
            except _LOST as error:
                if begun and not _is_cancelled(error):
                    raise _passed_on(error) from None
                await self._after_failure(forward, error, start)
            finally:
                if call is not None:
                    call.cancel()
        answers = forward.method.handler(forward.request, forward.ctx)
        if asyncio.isfuture(answers):
            answers = await answers
        if isinstance(answers, list):
            for answer in answers:
                yield answer
        else:
            async for answer in answers:
                yield answer

    async def _after_failure(self, forward: "_Forward", error: BaseException, call: Any) -> None:
        """Set the next owner to try (None: serve here), or raise the request's final error."""
        if _is_cancelled(error):
            raise error
        if isinstance(error, grpc.RpcError) and _NOT_MINE in (error.details() or ""):
            # Another node owns the request now, or the owner's name resolves to another address.
            # A new connection resolves the name again; an open one would not.
            self._pool.distrust(forward.owner or UNKNOWN, forward.method.path, call)
        # No local name for the error: it would create a reference cycle that holds the request.
        if _passed_on(error).grpc_code not in _OUT_OF_REACH:
            raise _passed_on(error) from None
        await self._decide(forward)

    async def _decide(self, forward: "_Forward") -> None:
        """Serve, hold or refuse a request whose owner is unreachable or unknown."""
        decision = self._unreachable(forward.method.path, forward.request, forward.ctx)
        if isinstance(decision, WireError):
            raise WireError(decision.code, decision.message)
        if decision == "serve":
            self.statistics.served_instead += 1
            forward.owner = None
        else:
            await self._hold(forward)

    async def _hold(self, forward: "_Forward") -> None:
        statistics = self.statistics
        if forward.hold_until_ns is None:
            if self._has_other_owner(forward):
                return
            statistics.held += 1
            forward.hold_until_ns = self._hold_until_ns(forward.ctx)
        size = len(forward.raw)
        if statistics.holding_bytes + size > self._config.front_forward_hold_bytes:
            raise WireError(
                v2.HA_NOT_AVAILABLE, "the leader is unreachable; too many requests are held"
            )
        statistics.holding_bytes += size
        try:
            while True:
                if self.isolated:
                    raise RpcFailure(UNAVAILABLE, _ISOLATED)
                remaining_ns = forward.hold_until_ns - self._clock.steady_ns()
                if remaining_ns <= 0:
                    statistics.held_in_vain += 1
                    raise WireError(v2.HA_NOT_AVAILABLE, "the leader is unreachable; try again")
                await asyncio.wait({self._next_tick()}, timeout=remaining_ns / _NS_PER_S)
                owner = self._locate(forward.method.path, forward.request, forward.ctx)
                if owner == UNKNOWN:
                    continue
                if owner is None or owner != forward.owner or self._pool.ready(owner):
                    forward.owner = owner
                    return
        finally:
            statistics.holding_bytes -= size

    def _has_other_owner(self, forward: "_Forward") -> bool:
        """Replace an owner that did not answer by the one elected meanwhile, if there is one."""
        if forward.owner == UNKNOWN or self.isolated:
            return False
        owner = self._locate(forward.method.path, forward.request, forward.ctx)
        if owner in (UNKNOWN, forward.owner):
            return False
        forward.owner = owner
        return True

    def _hold_until_ns(self, ctx: RequestContext) -> int:
        if ctx.deadline_ns is None:
            return self._clock.steady_ns() + self._config.front_forward_hold_max * _NS_PER_MS
        return ctx.deadline_ns - self._config.front_forward_hold_margin * _NS_PER_MS

    def _next_tick(self) -> "asyncio.Future[None]":
        """Return the future of the next retry; all held requests share one timer."""
        if self._tick is None or self._tick.done():
            loop = asyncio.get_running_loop()
            self._tick = loop.create_future()
            loop.call_later(_RETRY_S, _set, self._tick)
        return self._tick

    def _marked(self, owner: str, ctx: RequestContext) -> tuple[tuple[str, str], ...]:
        return ctx.metadata + forward_mark(self._links, owner, ctx.peer, ctx.user)

    def _timeout_s(self, ctx: RequestContext) -> float | None:
        if ctx.deadline_ns is None:
            return None
        remaining_ns = ctx.deadline_ns - self._clock.steady_ns()
        if remaining_ns <= 0:
            raise RpcFailure(DEADLINE_EXCEEDED, "the deadline passed before it was forwarded")
        return remaining_ns / _NS_PER_S


class _RoutedTurns(Struct, frozen=True):
    """A `TurnHandler` that locates single calls, and takes calls while this node serves all."""

    handle: Callable[[bytes, RequestContext], Any]
    take_all: Callable[..., Taken | None]
    serves_all: Callable[[], bool]

    def __call__(self, raw: bytes, ctx: RequestContext) -> Any:
        return self.handle(raw, ctx)

    def take(self, requests: Sequence[bytes], clients: Sequence[ClientRun]) -> Taken | None:
        return self.take_all(requests, clients) if self.serves_all() else None


class _Forward(Struct):
    """One request that is being forwarded."""

    method: Method
    raw: bytes
    request: Any
    ctx: RequestContext
    owner: str | None
    hold_until_ns: int | None = None


def _set(tick: "asyncio.Future[None]") -> None:
    if not tick.done():
        tick.set_result(None)


def _is_cancelled(error: BaseException) -> bool:
    """Return True if the client left; False if the channel was closed under the call."""
    return isinstance(error, asyncio.CancelledError) and cancel_requests() > 0


def _passed_on(error: BaseException) -> RpcFailure:
    """Convert the owner's failure; a channel closed under the call counts as unreachable."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return RpcFailure(UNAVAILABLE, str(error))
    return RpcFailure(error.code().value[0], error.details() or "")
