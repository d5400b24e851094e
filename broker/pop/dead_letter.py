"""Dead letters: a message that nobody could consume goes to `%DLQ%<group>`.

The copy has the reference's properties (store format, section 2.12) and the two that say where it came
from (gRPC API, section 5.9 and 10.1). The topic is made with one queue when the first one comes.
Promises: the copy is appended before the original counts as consumed; a crash between the two leaves
it in both places, never in none. Only a leader can do it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.properties import decode_properties, encode_properties
from ...store.format.record import Message, decode_delivery
from ...store.format.topic_names import is_lmq
from ..messages.convert import SYS_COMPRESSED, SYS_COMPRESSION_MASK
from ..messages.stored_properties import in_bucket_order
from ..metadata.tables import Topic
from .retry import NOT_COPIED

if TYPE_CHECKING:
    from ...store.format.results import StoredRecord
    from ..node import Node

_PREFIX = "%DLQ%"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a dead letter comes from."""

    topic: str
    """That was consumed."""
    read_from: str
    """Where the record lies: the topic itself or a retry topic."""
    group: str


def dead_letter_topic(group: str) -> str:
    """Where the group's dead letters go."""
    return _PREFIX + group


def is_dead_letter_topic(topic: str) -> bool:
    """Messages of such a topic are not moved again: they would go round."""
    return topic.startswith(_PREFIX)


def move(node: Node, origin: Origin, stored: StoredRecord, attempts: int) -> int:
    """Append the copy; returns the log offset behind it. Raises WireError when it cannot be now."""
    end = node.sender.append(dead_letter(node, origin, stored, attempts)).end
    node.counters.dead[origin.topic, origin.group] += 1
    return end


def dead_letter(node: Node, origin: Origin, stored: StoredRecord, attempts: int) -> Message:
    """The copy of a record given out `attempts` times; makes its topic. Raises WireError."""
    if not node.leadership.pop_leads:
        raise WireError(v2.HA_NOT_AVAILABLE, "dead letters wait for the leader")
    target = dead_letter_topic(origin.group)
    make_topic(node, target)
    record = decode_delivery(stored.data)
    properties = decode_properties(record.properties)
    for name in NOT_COPIED:
        properties.pop(name, None)
    properties["WAIT"] = "false"
    properties["DELAY"] = "0"
    light = is_lmq(origin.read_from)
    properties.setdefault("RETRY_TOPIC", origin.topic if light else origin.read_from)
    offset_id = record.store_host + stored.physical_offset.to_bytes(8, "big")
    properties.setdefault("ORIGIN_MESSAGE_ID", offset_id.hex().upper())
    properties["DLQ_ORIGIN_TOPIC"] = origin.topic
    properties["DLQ_ORIGIN_MESSAGE_ID"] = properties.get("UNIQ_KEY", "")
    return Message(
        target,
        0,
        record.body,
        encode_properties(in_bucket_order(properties)),
        record.flag,
        record.sys_flag & (SYS_COMPRESSED | SYS_COMPRESSION_MASK),
        record.born_timestamp_ms,
        record.born_host,
        node.sender.store_host,
        # FIFO consumers retry by themselves and say how often; the log does not know.
        max(record.reconsume_times + 1, attempts),
    )


def make_topic(node: Node, name: str) -> None:
    """Make a group's retry or dead-letter topic when there is none. Raises WireError."""
    if node.metadata.topic(name) is None:
        node.metadata.check_topic_limit(name)
        node.meta_log.write_topic(Topic(name, 1, 1))
