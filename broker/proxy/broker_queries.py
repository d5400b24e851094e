"""Requests that a proxy answers with the help of brokers: routes, heartbeats and client
terminations.

Routes come from a broker and are rewritten with the proxy's addresses: the address that the client
dialled, or the `advertise` list. Heartbeats and client terminations are answered at once, or with
authentication when a broker has accepted them, and forwarded to every group in the background. A
route request is retried until a broker answers or its deadline is near.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from ...auth.signature import AUTHORIZATION
from ...front.admission import forward_mark
from ...proto import paths, v2
from ...proto.errors import WireError, absent_topic
from ...proto.route_queues import check_repeated
from ..messages.validation import require_client_id
from ..routing.advertise import scheme_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ...front.channels import ChannelPool
    from ...front.clock import Clock
    from ...front.context import RequestContext
    from ...nodes.node_links import NodeLinks
    from .base.owners import Owners
    from .base.watch import ClusterWatch
    from .telemetry import ProxyTelemetry

_LOOK_AGAIN_S = 0.1
_MARGIN_NS = 300_000_000
_WAIT_NS = 3_000_000_000
_TRY_S = 2.0
#: No group that is up has the topic.
_UNKNOWN = (v2.TOPIC_NOT_FOUND, v2.PROXY_TIMEOUT)
_OUT_OF_REACH = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
#: Heartbeats being forwarded; others are dropped, since the next follows within seconds.
_RELAYED_MAX = 2_000


class BrokerQueries:
    """Handlers of the four methods."""

    def __init__(  # noqa: PLR0917 - parts of one proxy
        self,
        owners: Owners,
        watch: ClusterWatch,
        pool: ChannelPool,
        clock: Clock,
        advertised: Sequence[tuple[str, int]],
        telemetry: ProxyTelemetry,
        links: NodeLinks,
        *,
        authentication: bool,
    ) -> None:
        """`authentication`: brokers check signatures."""
        self._owners = owners
        self._watch = watch
        self._pool = pool
        self._clock = clock
        self._advertised = advertised
        self._telemetry = telemetry
        self._links = links
        self._authentication = authentication
        self._tasks: set[asyncio.Task[None]] = set()

    async def query_route(
        self, request: v2.QueryRouteRequest, ctx: RequestContext
    ) -> v2.QueryRouteResponse:
        """Return the queues of a topic, all at this proxy."""
        require_client_id(ctx)
        check_repeated(request.topic, request.endpoints)
        answer: v2.QueryRouteResponse = await self._ask(
            paths.QUERY_ROUTE, request, v2.QueryRouteResponse, ctx
        )
        for queue in answer.message_queues:
            self._owners.learn(request.topic.name, queue.broker.name)
        self._rewrite((queue.broker for queue in answer.message_queues), request.endpoints)
        return answer

    async def query_assignment(
        self, request: v2.QueryAssignmentRequest, ctx: RequestContext
    ) -> v2.QueryAssignmentResponse:
        """Return the queues for a push consumer, all at this proxy."""
        require_client_id(ctx)
        check_repeated(request.topic, request.endpoints)
        answer: v2.QueryAssignmentResponse = await self._ask(
            paths.QUERY_ASSIGNMENT, request, v2.QueryAssignmentResponse, ctx
        )
        brokers = (one.message_queue.broker for one in answer.assignments)
        self._rewrite(brokers, request.endpoints)
        return answer

    async def heartbeat(
        self, request: v2.HeartbeatRequest, ctx: RequestContext
    ) -> v2.HeartbeatResponse:
        """Answer a heartbeat."""
        require_client_id(ctx)
        await self._admit(paths.HEARTBEAT, request, v2.HeartbeatResponse, ctx)
        self._telemetry.seen(ctx)
        self._relay(paths.HEARTBEAT, request, ctx)
        return v2.HeartbeatResponse(status=v2.Status(code=v2.OK, message="OK"))

    async def notify_client_termination(
        self, request: v2.NotifyClientTerminationRequest, ctx: RequestContext
    ) -> v2.NotifyClientTerminationResponse:
        """Answer a client termination."""
        require_client_id(ctx)
        answer_type = v2.NotifyClientTerminationResponse
        await self._admit(paths.NOTIFY_CLIENT_TERMINATION, request, answer_type, ctx)
        self._telemetry.terminated(ctx)
        self._relay(paths.NOTIFY_CLIENT_TERMINATION, request, ctx)
        return v2.NotifyClientTerminationResponse(status=v2.Status(code=v2.OK, message="OK"))

    async def _admit(
        self, path: str, request: Any, answer_type: type[Any], ctx: RequestContext
    ) -> None:
        """With authentication, wait until a broker accepts the call. Raises WireError.

        A call of a user has an effect on the streams of that user.
        """
        if not (self._authentication or ctx.user or ctx.has(AUTHORIZATION)):
            return
        raw = request.SerializeToString()
        for address in self._candidates(""):
            answer = await self._try(address, path, raw, answer_type, ctx)
            if answer is not None and answer.status.code == v2.UNAUTHORIZED:
                raise WireError(v2.UNAUTHORIZED, answer.status.message)
            if answer is not None:
                return
        raise WireError(v2.PROXY_TIMEOUT, "no broker of the cluster can be reached")

    async def close(self) -> None:
        """Cancel pending forwards."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(
        self, path: str, request: Any, answer_type: type[Any], ctx: RequestContext
    ) -> Any:
        """Return the response of a group that has the topic; of any group if none has it.

        A new topic may at first exist in its own group's view only, and after a restart of the
        cluster a group that has it may not have registered yet.
        """
        until_ns = self._clock.steady_ns() + _WAIT_NS
        if ctx.deadline_ns is not None:
            until_ns = ctx.deadline_ns - _MARGIN_NS
        raw = request.SerializeToString()
        while True:
            # Read before the answers: a group may register meanwhile.
            awaiting, absent, unknown = self._owners.awaiting, self._owners.absent, None
            for address in self._candidates(request.topic.name):
                answer = await self._try(address, path, raw, answer_type, ctx)
                if answer is not None and answer.status.code not in _UNKNOWN:
                    return answer
                unknown = answer or unknown
            if unknown is not None and not awaiting:
                if absent:
                    raise absent_topic(request.topic.name, absent)
                if unknown.status.code == v2.TOPIC_NOT_FOUND:
                    return unknown
            self._watch.poll_soon()
            if self._clock.steady_ns() >= until_ns:
                raise WireError(v2.PROXY_TIMEOUT, "no broker of the cluster can be reached")
            await asyncio.sleep(_LOOK_AGAIN_S)

    def _candidates(self, topic: str) -> list[str]:
        likely = self._owners.of_topic(topic)
        groups = [likely] if likely is not None else []
        groups += [group for group in self._owners.groups() if group is not likely]
        addresses = (self._owners.address_in(group, False) for group in groups)
        return [address for address in addresses if address is not None]

    async def _try(
        self, address: str, path: str, raw: bytes, answer_type: type[Any], ctx: RequestContext
    ) -> Any:
        """Return the response; None if the broker cannot be reached."""
        try:
            data = await self._pool.call(address, path)(
                raw, timeout=_TRY_S, metadata=self._marked(address, ctx)
            )
        except grpc.aio.AioRpcError as error:
            if error.code() in _OUT_OF_REACH:
                return None
            raise WireError(v2.PROXY_TIMEOUT, f"no route: {error.details()}") from None
        return answer_type.FromString(data)

    def _rewrite(self, brokers: Iterable[v2.Broker], dialled: v2.Endpoints) -> None:
        endpoints = self._endpoints(dialled)
        if endpoints is not None:
            for broker in brokers:
                broker.endpoints.CopyFrom(endpoints)

    def _endpoints(self, dialled: v2.Endpoints) -> v2.Endpoints | None:
        if self._advertised:
            return v2.Endpoints(
                scheme=scheme_of(self._advertised[0][0]),
                addresses=[v2.Address(host=host, port=port) for host, port in self._advertised],
            )
        if not dialled.addresses:
            return None
        answer = v2.Endpoints()
        answer.CopyFrom(dialled)
        answer.scheme = scheme_of(dialled.addresses[0].host.strip("[]"))
        return answer

    def _relay(self, path: str, request: Any, ctx: RequestContext) -> None:
        raw = request.SerializeToString()
        for group in self._owners.groups():
            leader = group.leader()
            if leader is not None and len(self._tasks) < _RELAYED_MAX:
                task = asyncio.get_running_loop().create_task(
                    self._pass(leader.client, path, raw, ctx)
                )
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _pass(self, address: str, path: str, raw: bytes, ctx: RequestContext) -> None:
        try:
            await self._pool.call(address, path)(
                raw, timeout=_TRY_S, metadata=self._marked(address, ctx)
            )
        except (grpc.aio.AioRpcError, grpc.aio.UsageError):
            self._watch.poll_soon()

    def _marked(self, address: str, ctx: RequestContext) -> tuple[tuple[str, str], ...]:
        return (*ctx.metadata, *forward_mark(self._links, address, ctx.peer, ctx.user))
