"""`cometmq.v1.Admin`, topics: create, alter, delete, list, describe.

Promises: what is not said stays as it is; creating again with the same settings changes nothing; read
queues go only when nobody misses a message of theirs (or says that he accepts it); system topics are
refused (broker semantics, sections 8.1-8.3 and 8.7). A deletion takes the groups' offsets on the topic
and their retry topics along. The messages stay in the log until retention takes them, so a topic that
is made again begins behind them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...proto import v1, v2
from ...proto.errors import WireError
from ..messages.validation import MIXED, check_topic
from ..metadata.codec import topic_message
from ..metadata.tables import PERM_DEFAULT, TYPE_NAMES, Topic, is_internal_topic, type_name
from .attributes import MESSAGE_TYPE, TOPIC_RULES, changed
from .progress import all_group_queues, held_messages
from .removal import retry_topics_of_topic
from .status import queue_status

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ..node import Node

QUEUES_MAX = 1_024
_KNOWN_TYPES = frozenset(TYPE_NAMES.values())


class TopicAdmin:
    """Handlers of the service that are about topics."""

    def __init__(self, node: Node) -> None:
        self._node = node
        config = node.config
        # Apache's broker makes topics of these names for itself.
        self._own_names = frozenset(
            (
                config.broker_cluster_name,
                config.broker_name,
                f"{config.broker_cluster_name}_REPLY_TOPIC",
            )
        )

    def create(
        self, request: v1.CreateTopicRequest, ctx: RequestContext
    ) -> asyncio.Future[v1.CreateTopicResponse] | v1.CreateTopicResponse:
        """Create a topic, or alter it to what the request says."""
        self._check_name(request.name)
        metadata = self._node.metadata
        known = metadata.topic(request.name)
        if known is None and request.must_exist:
            raise _unknown(request.name)
        topic = self._wanted(request, known)
        is_new, differs = known is None, topic != known
        answer = v1.CreateTopicResponse(
            code=v2.OK,
            message="OK",
            topic=topic_message(topic),
            created=is_new,
            altered=differs and not is_new,
        )
        if not differs:
            return answer
        metadata.check_room_for_topic(topic.name)
        self._node.changes.check_writable()
        if request.dry_run:
            return answer
        node, begin_ns = self._node, self._node.clock.steady_ns()
        future = node.changes.when_durable(node.meta_log.write_topic(topic), answer)
        if is_new:
            answer.topic.CopyFrom(topic_message(topic))  # it may begin behind an old one
            node.changes.count_creation("topic", is_internal_topic(topic.name), begin_ns, future)
        return future

    def delete(
        self, request: v1.DeleteTopicRequest, ctx: RequestContext
    ) -> asyncio.Future[v1.DeleteTopicResponse] | v1.DeleteTopicResponse:
        """Delete a topic with what hangs on it; its own record is the last, so that a deletion that
        is cut off can be asked for again."""
        self._check_name(request.name)
        node = self._node
        if node.metadata.topic(request.name) is None:
            raise _unknown(request.name)
        node.pump.catch_up()
        groups = {group for topic, group, _, _ in node.offsets if topic == request.name}
        known = groups | node.metadata.groups.keys()
        retries = retry_topics_of_topic(node.metadata, request.name, known)
        answer = v1.DeleteTopicResponse(
            code=v2.OK,
            message="OK",
            topics=[request.name, *retries],
            messages=sum(held_messages(node, name) for name in (request.name, *retries)),
            groups=sorted(groups),
            in_flight=sum(
                row.in_flight for _, row in all_group_queues(node) if row.topic == request.name
            ),
        )
        if request.dry_run:
            return answer
        if answer.messages and not request.accept_loss:
            raise WireError(
                v2.FORBIDDEN,
                f"topic {request.name} holds {answer.messages} messages: accept the loss",
            )
        node.changes.check_writable()
        for name in retries:
            node.meta_log.delete_topic(name)
        return node.changes.when_durable(node.meta_log.delete_topic(request.name), answer)

    def list_all(self, request: v1.ListTopicsRequest, ctx: RequestContext) -> v1.ListTopicsResponse:
        """All topics of this broker by name."""
        topics = sorted(self._node.metadata.topics.values(), key=lambda topic: topic.name)
        return v1.ListTopicsResponse(
            code=v2.OK,
            message="OK",
            topics=[
                topic_message(topic)
                for topic in topics
                if request.include_system or not self._is_internal(topic.name)
            ],
        )

    def describe(
        self, request: v1.DescribeTopicRequest, ctx: RequestContext
    ) -> v1.DescribeTopicResponse:
        """One topic and its queues."""
        topic = self._node.metadata.topic(request.name)
        if topic is None:
            raise _unknown(request.name)
        return v1.DescribeTopicResponse(
            code=v2.OK,
            message="OK",
            topic=topic_message(topic),
            queues=queue_status(self._node, topic),
        )

    def _check_name(self, name: str) -> None:
        check_topic(name)
        if name in self._own_names:
            raise WireError(v2.ILLEGAL_TOPIC, f"{name} is a system topic")

    def _is_internal(self, name: str) -> bool:
        return name in self._own_names or is_internal_topic(name)

    def _wanted(self, request: v1.CreateTopicRequest, known: Topic | None) -> Topic:
        """What the topic shall be."""
        read, write = self._queue_counts(request, known)
        if request.perm & ~PERM_DEFAULT:
            raise _bad("perm is 0 (nothing), 2 (write), 4 (read) or 6 (both)")
        perm = known.perm if known else PERM_DEFAULT
        if request.HasField("perm"):
            perm = request.perm
        kind, attributes = self._type_and_attributes(request, known)
        if known is None:
            return Topic(request.name, read, write, perm, kind, attributes)
        if read < known.read_queues and not request.accept_loss:
            self._check_unread(known, read)
        return Topic(
            known.name, read, write, perm, kind, attributes, known.extra, known.first_offsets
        )

    def _queue_counts(self, request: v1.CreateTopicRequest, known: Topic | None) -> tuple[int, int]:
        default = self._node.config.default_topic_queue_nums
        read, write = (known.read_queues, known.write_queues) if known else (default, default)
        for count in (request.queues, request.read_queues, request.write_queues):
            if not 0 <= count <= QUEUES_MAX:
                raise _bad(f"a topic has 1 to {QUEUES_MAX} queues")
        if request.queues:
            if request.read_queues or request.write_queues:
                raise _bad("queues means both counts: leave out read_queues and write_queues")
            if known is not None and request.queues < max(read, write):
                raise _bad(
                    f"topic {known.name} has {max(read, write)} queues: a topic cannot lose queues "
                    "in one step. Lower its write queues, and its read queues when they are read"
                )
            return request.queues, request.queues
        return request.read_queues or read, request.write_queues or write

    def _type_and_attributes(
        self, request: v1.CreateTopicRequest, known: Topic | None
    ) -> tuple[int, dict[str, str]]:
        before = known.attributes if known else {}
        attributes = changed(TOPIC_RULES, before, request.attributes, new=known is None)
        kind = known.message_type if known else int(v2.NORMAL)
        if attributes.get(MESSAGE_TYPE) != before.get(MESSAGE_TYPE):
            kind = TYPE_NAMES.get(attributes.get(MESSAGE_TYPE, ""), v2.NORMAL)
            if request.message_type not in (0, kind):
                raise _bad(f"two message types are named: +{MESSAGE_TYPE} and message_type")
        elif request.message_type:
            kind = request.message_type
            if kind not in _KNOWN_TYPES:
                raise _bad(f"there is no message type {kind}")
        if kind == MIXED and not self._node.config.enable_mixed_message_type:
            raise _bad("topics of type MIXED are switched off: enableMixedMessageType")
        if known is None or kind != known.message_type:
            attributes[MESSAGE_TYPE] = type_name(kind)
        return kind, attributes

    def _check_unread(self, topic: Topic, read_queues: int) -> None:
        """Refuse to hide messages that somebody has not consumed, or nobody has looked at."""
        node = self._node
        node.pump.catch_up()
        consumed: dict[int, int] = {}
        for name, _, queue_id, offset in node.offsets:
            if name == topic.name:
                consumed[queue_id] = min(offset, consumed.get(queue_id, offset))
        for queue_id in range(read_queues, topic.read_queues):
            end = node.store.max_offset(topic.name, queue_id)
            first = max(node.store.min_offset(topic.name, queue_id), consumed.get(queue_id, 0))
            if first < end:
                raise WireError(
                    v2.FORBIDDEN,
                    f"queue {queue_id} of {topic.name} holds {end - first} messages that are not "
                    "consumed: wait for it, or accept the loss",
                )


def _unknown(name: str) -> WireError:
    return WireError(v2.TOPIC_NOT_FOUND, f"topic {name} does not exist")


def _bad(sentence: str) -> WireError:
    return WireError(v2.BAD_REQUEST, sentence)
