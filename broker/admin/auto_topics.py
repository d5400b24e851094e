"""Topics that are made by their first use, where `autoCreateTopicEnable` says so.

Off by default: with Apache's proxy, too, clients of the gRPC protocol never create a topic, and a typing
mistake stays an error (broker semantics, section 8.1). On, the first question for a topic's route or
the first message makes it, of type NORMAL with at most four queues, as Apache's broker makes those of
its remoting clients. Names that the broker uses itself are never made this way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto import v2
from ..metadata.changes import check_writable
from ..metadata.tables import Topic, type_attribute

if TYPE_CHECKING:
    from ..node import Node

QUEUES_MAX = 4
_NOT_MADE = ("%RETRY%", "%DLQ%", "%LMQ%")


def topic_or_new(node: Node, name: str) -> Topic | None:
    """The topic; made when there is none and it may be. `name` is a legal one. Raises WireError."""
    topic = node.metadata.topic(name)
    if topic is not None or not _may_make(node, name):
        return topic
    check_writable(node)
    node.metadata.check_room_for_topic(name)
    queues = min(QUEUES_MAX, node.config.default_topic_queue_nums)
    topic = Topic(name, queues, queues, attributes=type_attribute(v2.NORMAL))
    node.meta_log.write_topic(topic)
    node.pump.appended()
    return topic


def _may_make(node: Node, name: str) -> bool:
    return (
        node.config.auto_create_topic_enable
        and node.leadership.is_leader
        and not name.startswith(_NOT_MADE)
        # Another group of the cluster has it: clients send there.
        and not node.cluster.others_with(name)
    )
