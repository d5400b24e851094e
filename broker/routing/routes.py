"""QueryRoute and QueryAssignment: the queues of a topic and their endpoints, for official clients.

Promises: broker id 0, READ_WRITE (READ in a drained group), queue ids from 0, one endpoint a group,
stable order; never an OK without queues; any node answers for every group
(docs/formats/grpc-api.md, sections 5.1, 5.2, 9, pitfalls 26-34). Answers depend on the metadata and
the cluster view only and are built for each call: clients ask every 30 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ...proto import v2
from ...proto.errors import WireError, absent_topic
from ...proto.route_queues import check_repeated, encode_assignments, encode_queues
from ..messages.validation import MIXED, check_group, check_topic, require_client_id
from ..metadata.tables import PERM_DEFAULT, PERM_READ, PERM_WRITE, Topic
from .advertise import Advertiser, Caller, one_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...front.context import RequestContext
    from ..base.cluster_view import ClusterView, GroupView
    from ..base.config import BrokerConfig
    from ..metadata.auto_topics import AutoTopics
    from ..metadata.tables import Metadata

_ALL_TYPES = (v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION)


class _TopicInGroup(Struct, frozen=True):
    """A topic in one broker group."""

    group: GroupView
    read_queues: int
    write_queues: int
    perm: int
    message_type: int

    def queue_count(self) -> int:
        """Queues that clients see: those that are readable and writable, or the larger number."""
        both = min(self.read_queues, self.write_queues)
        return both if both > 0 else max(self.read_queues, self.write_queues)


class Routes:
    """Handlers of QueryRoute and QueryAssignment."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: Metadata,
        cluster: ClusterView,
        auto_topics: AutoTopics,
    ) -> None:
        self._metadata = metadata
        self._cluster = cluster
        self._auto_topics = auto_topics
        self._advertiser = Advertiser(config.advertise, config.advertise_list(), cluster)
        self._stale: tuple[str, int] | None = None

    def name_stale(self, address: tuple[str, int] | None) -> None:
        """Name `address` for every group instead of the true endpoints (tests only)."""
        self._stale = address

    def query_route(
        self, request: v2.QueryRouteRequest, ctx: RequestContext
    ) -> v2.QueryRouteResponse:
        """The queues of a topic, group by group."""
        require_client_id(ctx)
        check_topic(request.topic.name)
        check_repeated(request.topic, request.endpoints)
        answer = v2.QueryRouteResponse(status=v2.Status(code=v2.OK, message="OK"))
        found = list(self._topic_in_groups(request.topic.name))
        # While a group is drained, producers go to the others; a client that does not look at the
        # permission is forwarded (`request_router.py`).
        moving = any(located.perm & PERM_WRITE for located in found)
        for located in found:
            drained = moving and located.perm & PERM_DEFAULT == PERM_READ
            usual = v2.READ_WRITE if located.perm & PERM_DEFAULT else v2.NONE
            queue = v2.MessageQueue(
                topic=request.topic,
                permission=v2.READ if drained else usual,
                broker=self._broker(located.group, request.endpoints, ctx),
                accept_message_types=_accepted(located.message_type),
            )
            answer.MergeFromString(encode_queues(queue, range(located.queue_count())))
        if not answer.message_queues:
            raise self._unknown(request.topic.name)
        return answer

    def query_assignment(
        self, request: v2.QueryAssignmentRequest, ctx: RequestContext
    ) -> v2.QueryAssignmentResponse:
        """Return what a push consumer polls: a broker, or each of its queues for FIFO groups."""
        require_client_id(ctx)
        check_topic(request.topic.name)
        check_group(request.group.name)
        check_repeated(request.topic, request.endpoints)
        found = list(self._topic_in_groups(request.topic.name))
        if not found:
            raise self._unknown(request.topic.name)
        group = self._metadata.group(request.group.name)
        orderly = group is not None and group.orderly
        answer = v2.QueryAssignmentResponse(status=v2.Status(code=v2.OK, message="OK"))
        for located in found:
            if not located.perm & PERM_READ or located.read_queues <= 0:
                continue
            queue = v2.MessageQueue(
                topic=request.topic,
                permission=v2.READ_WRITE if located.perm & PERM_WRITE else v2.READ,
                broker=self._broker(located.group, request.endpoints, ctx),
            )
            if orderly:
                answer.MergeFromString(encode_assignments(queue, range(located.read_queues)))
            else:
                queue.id = -1
                answer.assignments.add(message_queue=queue)
        if not answer.assignments:
            raise WireError(v2.FORBIDDEN, "no readable queue")
        return answer

    def _unknown(self, topic: str) -> WireError:
        if self._cluster.awaiting:
            sentence = f"the broker group of topic {topic} may not be up yet; try again"
            return WireError(v2.PROXY_TIMEOUT, sentence)
        if absent := self._cluster.absent:
            return absent_topic(topic, absent)
        return WireError(
            v2.TOPIC_NOT_FOUND,
            f"No topic route info for the topic: {topic}. Create it with "
            f"`cometmq topic create {topic}`.",
        )

    def _broker(self, group: GroupView, dialled: v2.Endpoints, ctx: RequestContext) -> v2.Broker:
        if self._stale is not None:
            return v2.Broker(name=group.name, id=0, endpoints=one_address(self._stale))
        endpoints = self._advertiser.endpoints(
            group, Caller(dialled, ctx.peer, ctx.language, ctx.tls, ctx.client_id)
        )
        return v2.Broker(name=group.name, id=0, endpoints=endpoints)

    def _topic_in_groups(self, topic_name: str) -> Iterator[_TopicInGroup]:
        """Yield every group that has the topic, by name."""
        view = self._cluster
        own = view.own()
        topic = self._auto_topics.topic_or_new(topic_name)
        groups = view.others_with(topic_name)
        if topic is not None or topic_name in own.topics:
            groups = sorted([*groups, own], key=lambda group: group.name)
        for group in groups:
            if group is own and topic is not None:
                yield _in_own_group(own, topic)
            else:
                route = group.topics[topic_name]
                yield _TopicInGroup(
                    group, route.read_queues, route.write_queues, route.perm, route.message_type
                )


def _in_own_group(group: GroupView, topic: Topic) -> _TopicInGroup:
    return _TopicInGroup(
        group, topic.read_queues, topic.write_queues, topic.perm, topic.message_type
    )


def _accepted(message_type: int) -> tuple[v2.MessageType.ValueType, ...]:
    # UNSPECIFIED makes the Java and C# clients throw.
    if message_type == MIXED:
        return _ALL_TYPES
    return (v2.MessageType.ValueType(message_type or v2.NORMAL),)
