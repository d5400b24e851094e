"""QueryRoute and QueryAssignment: where a topic's queues are, for every official client.

Promises: broker id 0 always, READ_WRITE, ids from 0, one endpoint a group, in a stable order; never
an empty OK; any node answers for every group (gRPC API, sections 5.1, 5.2, 9 and pitfalls 26-34).
Answers depend on the metadata and the cluster view alone and are made anew for each call: clients ask
every 30 s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
from ..messages.validation import MIXED, check_group, check_topic, require_client_id
from ..metadata.tables import PERM_DEFAULT, PERM_READ, PERM_WRITE, Topic
from .advertise import Advertiser, Caller, one_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...front.context import RequestContext
    from ..node import Node
    from .cluster_view import GroupView

_ALL_TYPES = (v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION)


@dataclass(frozen=True, slots=True)
class _Place:
    """A topic in one broker group."""

    group: GroupView
    read_queues: int
    write_queues: int
    perm: int
    message_type: int

    def queue_count(self) -> int:
        """Queues that clients see: those of both directions, or of the only one there is."""
        both = min(self.read_queues, self.write_queues)
        return both if both > 0 else max(self.read_queues, self.write_queues)


class Routes:
    """The two services."""

    def __init__(self, node: Node) -> None:
        self._node = node
        config = node.config
        self._advertiser = Advertiser(config.advertise, config.advertise_list(), node.cluster)

    def query_route(
        self, request: v2.QueryRouteRequest, ctx: RequestContext
    ) -> v2.QueryRouteResponse:
        """The queues of a topic, group by group."""
        require_client_id(ctx)
        check_topic(request.topic.name)
        answer = v2.QueryRouteResponse(status=v2.Status(code=v2.OK, message="OK"))
        for place in self._places(request.topic.name):
            permission = v2.READ_WRITE if place.perm & PERM_DEFAULT else v2.NONE
            broker = self._broker(place.group, request.endpoints, ctx)
            types = _accepted(place.message_type)
            for queue_id in range(place.queue_count()):
                answer.message_queues.add(
                    topic=request.topic,
                    id=queue_id,
                    permission=permission,
                    broker=broker,
                    accept_message_types=types,
                )
        if not answer.message_queues:
            raise _unknown(request.topic.name)
        return answer

    def query_assignment(
        self, request: v2.QueryAssignmentRequest, ctx: RequestContext
    ) -> v2.QueryAssignmentResponse:
        """What a push consumer should poll: a broker, or each of its queues for FIFO groups."""
        require_client_id(ctx)
        check_topic(request.topic.name)
        check_group(request.group.name)
        places = list(self._places(request.topic.name))
        if not places:
            raise _unknown(request.topic.name)
        group = self._node.metadata.group(request.group.name)
        orderly = group is not None and group.orderly
        answer = v2.QueryAssignmentResponse(status=v2.Status(code=v2.OK, message="OK"))
        for place in places:
            if not place.perm & PERM_READ or place.read_queues <= 0:
                continue
            queue = v2.MessageQueue(
                topic=request.topic,
                id=-1,
                permission=v2.READ_WRITE if place.perm & PERM_WRITE else v2.READ,
                broker=self._broker(place.group, request.endpoints, ctx),
            )
            for queue_id in range(place.read_queues) if orderly else (-1,):
                queue.id = queue_id
                answer.assignments.add(message_queue=queue)
        if not answer.assignments:
            raise WireError(v2.FORBIDDEN, "no readable queue")
        return answer

    def _broker(self, group: GroupView, dialled: v2.Endpoints, ctx: RequestContext) -> v2.Broker:
        stale = self._node.stale_route
        if stale is not None:
            return v2.Broker(name=group.name, id=0, endpoints=one_address(stale))
        endpoints = self._advertiser.endpoints(
            group, Caller(dialled, ctx.peer, ctx.language, ctx.tls)
        )
        return v2.Broker(name=group.name, id=0, endpoints=endpoints)

    def _places(self, topic_name: str) -> Iterator[_Place]:
        """Every group with the topic, by name."""
        view = self._node.cluster
        own = view.own()
        topic = self._node.auto_topics.topic_or_new(topic_name)
        groups = view.others_with(topic_name)
        if topic is not None or topic_name in own.topics:
            groups = sorted([*groups, own], key=lambda group: group.name)
        for group in groups:
            if group is own and topic is not None:
                yield _own_place(own, topic)
            else:
                route = group.topics[topic_name]
                yield _Place(
                    group, route.read_queues, route.write_queues, route.perm, route.message_type
                )


def _own_place(group: GroupView, topic: Topic) -> _Place:
    return _Place(group, topic.read_queues, topic.write_queues, topic.perm, topic.message_type)


def _accepted(message_type: int) -> tuple[v2.MessageType.ValueType, ...]:
    # UNSPECIFIED would make Java and C# throw.
    if message_type == MIXED:
        return _ALL_TYPES
    return (v2.MessageType.ValueType(message_type or v2.NORMAL),)


def _unknown(topic: str) -> WireError:
    return WireError(
        v2.TOPIC_NOT_FOUND,
        f"No topic route info for the topic: {topic}. Create it with `cometmq topic create {topic}`.",
    )
