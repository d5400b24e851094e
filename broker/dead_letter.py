"""Dead letters: a message that nobody could consume goes to `%DLQ%<group>`.

The copy has the reference's properties (store format, section 2.12) and the two that say where it came
from (gRPC API, section 5.9 and 10.1). The topic is made with one queue when the first one comes.
Promises: the copy is appended before the original counts as consumed; a crash between the two leaves
it in both places, never in none. Only a leader can do it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..proto import v2
from ..proto.errors import WireError
from ..store.properties import decode_properties, encode_properties
from ..store.record import Message, decode_delivery
from .convert import SYS_COMPRESSED, SYS_COMPRESSION_MASK
from .metadata import Topic
from .stored_properties import in_bucket_order

if TYPE_CHECKING:
    from ..store.results import StoredRecord
    from .node import Node

_PREFIX = "%DLQ%"


def dead_letter_topic(group: str) -> str:
    """Where the group's dead letters go."""
    return _PREFIX + group


def is_dead_letter_topic(topic: str) -> bool:
    """Messages of such a topic are not moved again: they would go round."""
    return topic.startswith(_PREFIX)


def move(node: Node, topic: str, group: str, stored: StoredRecord, attempts: int) -> None:
    """Append the copy. Raises WireError when the log takes nothing now."""
    if not node.is_leader:
        raise WireError(v2.HA_NOT_AVAILABLE, "dead letters wait for the leader")
    target = dead_letter_topic(group)
    if node.metadata.topic(target) is None:
        node.metadata.check_room_for_topic(target)
        node.meta_log.write_topic(Topic(target, 1, 1))
    record = decode_delivery(stored.data)
    properties = decode_properties(record.properties)
    properties["WAIT"] = "false"
    properties["DELAY"] = "0"
    properties.setdefault("RETRY_TOPIC", topic)
    offset_id = record.store_host + stored.physical_offset.to_bytes(8, "big")
    properties.setdefault("ORIGIN_MESSAGE_ID", offset_id.hex().upper())
    properties["DLQ_ORIGIN_TOPIC"] = topic
    properties["DLQ_ORIGIN_MESSAGE_ID"] = properties.get("UNIQ_KEY", "")
    node.sender.append(
        Message(
            target,
            0,
            record.body,
            encode_properties(in_bucket_order(properties)),
            record.flag,
            record.sys_flag & (SYS_COMPRESSED | SYS_COMPRESSION_MASK),
            record.born_timestamp_ms,
            record.born_host,
            node.sender.store_host,
            record.reconsume_times + attempts,
        )
    )
