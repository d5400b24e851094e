"""`cometmq.v1.Admin`: topics, groups, members and settings, on the clients' port.

Promises: creating answers OK only when the record is as durable as the broker's mode promises (HA,
rules R1 and R11); creating again with the same settings changes nothing; queues never shrink, because
messages on a queue that is gone would never be read. Reads are of this node; the access point sends
them to the leader where there is one (`locate.py`). The service needs no client id: its callers are
tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from ..proto import v1, v2
from ..proto.errors import WireError
from ..store.results import PutStatus
from .meta_codec import group_message, topic_message
from .metadata import PERM_DEFAULT, TYPE_NAMES, Group, Topic, type_attribute
from .status import describe_cluster, group_queues, queue_status
from .validation import SYSTEM_GROUPS, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS, check_group, check_topic

if TYPE_CHECKING:
    from ..front.context import RequestContext
    from .node import Node

Response = TypeVar("Response", v1.CreateTopicResponse, v1.CreateGroupResponse)

_QUEUES_MAX = 1_024
_ATTEMPTS_MAX = 1_000
_NS_PER_MS = 1_000_000
_KNOWN_TYPES = frozenset(TYPE_NAMES.values())
_UNKNOWN_OUTCOME = {
    PutStatus.FLUSH_DISK_TIMEOUT: (
        v2.MASTER_PERSISTENCE_TIMEOUT,
        "not flushed in time: it may or may not exist, ask again",
    ),
    PutStatus.FLUSH_SLAVE_TIMEOUT: (
        v2.SLAVE_PERSISTENCE_TIMEOUT,
        "not replicated in time: it may or may not exist, ask again",
    ),
}


class Admin:
    """Handlers of the service. `settings` is every key with its value and origin."""

    def __init__(
        self, node: Node, door: Callable[[], str], settings: Mapping[str, tuple[str, str]]
    ) -> None:
        self._node = node
        self._door = door
        self._settings = settings

    def create_topic(
        self, request: v1.CreateTopicRequest, ctx: RequestContext
    ) -> asyncio.Future[v1.CreateTopicResponse] | v1.CreateTopicResponse:
        """Create a topic, or alter it to what the request says; zero leaves a value as it is."""
        check_topic(request.name)
        known = self._node.metadata.topic(request.name)
        topic = self._topic(request, known)
        answer = v1.CreateTopicResponse(
            code=v2.OK, message="OK", topic=topic_message(topic), created=known is None
        )
        if topic == known:
            return answer
        self._check_writable()
        self._node.metadata.check_room_for_topic(topic.name)
        return self._durable(self._node.meta_log.write_topic(topic), answer)

    def create_group(
        self, request: v1.CreateGroupRequest, ctx: RequestContext
    ) -> asyncio.Future[v1.CreateGroupResponse] | v1.CreateGroupResponse:
        """Create a group, or alter it to what the request says."""
        check_group(request.name)
        if not 0 <= request.max_attempts <= _ATTEMPTS_MAX:
            raise WireError(v2.BAD_REQUEST, f"max_attempts must be 1 to {_ATTEMPTS_MAX}")
        known = self._node.metadata.group(request.name)
        base = known or Group(request.name)
        group = Group(
            base.name,
            request.orderly,
            request.max_attempts or base.max_attempts,
            base.consume_enable,
            base.retry_queues,
            base.attributes,
            base.extra,
        )
        answer = v1.CreateGroupResponse(
            code=v2.OK, message="OK", group=group_message(group), created=known is None
        )
        if group == known:
            return answer
        self._check_writable()
        self._node.metadata.check_room_for_group(group.name)
        return self._durable(self._node.meta_log.write_group(group), answer)

    def list_topics(
        self, request: v1.ListTopicsRequest, ctx: RequestContext
    ) -> v1.ListTopicsResponse:
        """All topics of this broker by name."""
        topics = sorted(self._node.metadata.topics.values(), key=lambda topic: topic.name)
        return v1.ListTopicsResponse(
            code=v2.OK,
            message="OK",
            topics=[
                topic_message(topic)
                for topic in topics
                if request.include_system or not is_system_topic(topic.name)
            ],
        )

    def describe_topic(
        self, request: v1.DescribeTopicRequest, ctx: RequestContext
    ) -> v1.DescribeTopicResponse:
        """One topic and its queues."""
        topic = self._node.metadata.topic(request.name)
        if topic is None:
            raise WireError(v2.TOPIC_NOT_FOUND, f"topic {request.name} does not exist")
        return v1.DescribeTopicResponse(
            code=v2.OK,
            message="OK",
            topic=topic_message(topic),
            queues=queue_status(self._node, topic),
        )

    def list_groups(
        self, request: v1.ListGroupsRequest, ctx: RequestContext
    ) -> v1.ListGroupsResponse:
        """All consumer groups of this broker by name."""
        groups = sorted(self._node.metadata.groups.values(), key=lambda group: group.name)
        return v1.ListGroupsResponse(
            code=v2.OK,
            message="OK",
            groups=[
                group_message(group)
                for group in groups
                if request.include_system or not is_system_group(group.name)
            ],
        )

    def describe_group(
        self, request: v1.DescribeGroupRequest, ctx: RequestContext
    ) -> v1.DescribeGroupResponse:
        """One group: its lag, what is in flight, and its clients."""
        group = self._node.metadata.group(request.name)
        if group is None:
            raise WireError(
                v2.CONSUMER_GROUP_NOT_FOUND, f"consumer group {request.name} does not exist"
            )
        queues = group_queues(self._node, group.name, request.topic)
        now_ns = self._node.clock.steady_ns()
        clients = [
            v1.GroupClient(
                client_id=client.client_id,
                language=client.language,
                version=client.version,
                peer=client.peer,
                last_seen_ms_ago=(now_ns - client.last_seen_ns) // _NS_PER_MS,
            )
            for client in self._node.clients
            if client.group == group.name and self._node.clients.alive(client.client_id, now_ns)
        ]
        return v1.DescribeGroupResponse(
            code=v2.OK,
            message="OK",
            group=group_message(group),
            queues=queues,
            lag=sum(queue.lag for queue in queues),
            in_flight=sum(queue.in_flight for queue in queues),
            clients=clients,
        )

    def describe_cluster(
        self, request: v1.DescribeClusterRequest, ctx: RequestContext
    ) -> v1.DescribeClusterResponse:
        """The members of this group as this node sees them."""
        return describe_cluster(self._node, self._door())

    def get_config(self, request: v1.GetConfigRequest, ctx: RequestContext) -> v1.GetConfigResponse:
        """Settings of this process; secrets are not shown."""
        keys = list(request.keys) or sorted(self._settings)
        unknown = [key for key in keys if key not in self._settings]
        if unknown:
            raise WireError(v2.NOT_FOUND, f"there is no setting {unknown[0]}")
        return v1.GetConfigResponse(
            code=v2.OK,
            message="OK",
            entries=[
                v1.ConfigEntry(key=key, value=value, origin=origin)
                for key in keys
                for value, origin in (self._settings[key],)
            ],
        )

    def _topic(self, request: v1.CreateTopicRequest, known: Topic | None) -> Topic:
        """What the topic shall be; zeros in the request keep what is there, or mean the default."""
        if request.message_type and request.message_type not in _KNOWN_TYPES:
            raise WireError(v2.BAD_REQUEST, f"there is no message type {request.message_type}")
        if not 0 <= request.queues <= _QUEUES_MAX:
            raise WireError(v2.BAD_REQUEST, f"a topic has 1 to {_QUEUES_MAX} queues")
        if request.perm & ~PERM_DEFAULT:
            raise WireError(v2.BAD_REQUEST, "perm is 2 (write), 4 (read) or 6 (both)")
        if known is None:
            queues = request.queues or self._node.config.default_topic_queue_nums
            kind = request.message_type or v2.NORMAL
            perm = request.perm or PERM_DEFAULT
            return Topic(request.name, queues, queues, perm, kind, type_attribute(kind))
        if request.queues and request.queues < max(known.read_queues, known.write_queues):
            text = f"topic {known.name} has {known.read_queues} queues: a topic cannot lose queues"
            raise WireError(v2.BAD_REQUEST, text)
        kind = request.message_type or known.message_type
        return Topic(
            known.name,
            request.queues or known.read_queues,
            request.queues or known.write_queues,
            request.perm or known.perm,
            kind,
            known.attributes
            if kind == known.message_type
            else {**known.attributes, **type_attribute(kind)},
            known.extra,
        )

    def _check_writable(self) -> None:
        node = self._node
        if not node.is_leader:
            raise WireError(v2.HA_NOT_AVAILABLE, "the leader is not reachable: try again")
        if not node.store.writable:
            raise WireError(v2.INTERNAL_SERVER_ERROR, node.store.refusal)
        refusal = node.replication.write_refusal()
        if refusal is not None:
            raise WireError(v2.HA_NOT_AVAILABLE, refusal)

    def _durable(self, end: int, answer: Response) -> asyncio.Future[Response]:
        """The answer, when the log is safe up to `end`."""
        future: asyncio.Future[Response] = self._node.loop.create_future()

        def done(status: PutStatus) -> None:
            if future.done():
                return
            if status is PutStatus.PUT_OK:
                future.set_result(answer)
            else:
                future.set_exception(WireError(*_UNKNOWN_OUTCOME[status]))

        self._node.appended()
        self._node.durability.wait(end, done)
        return future


def is_system_topic(name: str) -> bool:
    """Topics that belong to the broker; tools hide them unless asked."""
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(name: str) -> bool:
    """Groups that belong to the broker."""
    return name in SYSTEM_GROUPS
