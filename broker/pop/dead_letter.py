"""Dead letters: the copy of a message whose delivery attempts are used up, in `%DLQ%<group>`.

The copy has the reference's properties (docs/formats/store-format.md, section 2.12) and two that
name its origin (docs/formats/grpc-api.md, sections 5.9 and 10.1). The topic is created with one
queue for the first dead letter. Promises: the copy is appended before the original counts as
consumed; a crash between the two leaves the message in both places, never in none. Only a leader
moves messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.properties import decode_properties, encode_properties
from ...store.format.record import Message, decode_delivery
from ...store.format.topic_names import is_lmq
from ..messages.convert import SYS_COMPRESSED, SYS_COMPRESSION_MASK
from ..messages.stored_properties import in_bucket_order
from ..metadata.tables import Topic
from ..names.retry import NOT_COPIED

if TYPE_CHECKING:
    from ...store.format.results import StoredRecord
    from ..base.counters import Counters
    from ..base.internal_appender import InternalAppender
    from ..base.leadership import Leadership
    from ..metadata.log import MetaLog
    from ..metadata.tables import Metadata

_PREFIX = "%DLQ%"


class Origin(Struct, frozen=True):
    """Where a dead letter comes from."""

    #: The topic that the group consumes.
    topic: str
    #: The topic of the record: the same or a retry topic.
    read_from: str
    group: str


def dead_letter_topic(group: str) -> str:
    """Return the name of the group's dead-letter topic."""
    return _PREFIX + group


def is_dead_letter_topic(topic: str) -> bool:
    """Return whether messages of the topic are dead letters; they are not moved again."""
    return topic.startswith(_PREFIX)


class GroupTopics:
    """Creates the retry and dead-letter topics of groups."""

    def __init__(self, metadata: Metadata, meta_log: MetaLog) -> None:
        self._metadata = metadata
        self._meta_log = meta_log

    def ensure(self, name: str) -> bool:
        """Create the topic, with one queue, if it does not exist; return whether it was created.

        Raises WireError.
        """
        if self._metadata.topic(name) is not None:
            return False
        self._metadata.check_topic_limit(name)
        self._meta_log.write_topic(Topic(name, 1, 1))
        return True


class DeadLetters:
    """Copies messages to dead-letter topics."""

    def __init__(
        self,
        topics: GroupTopics,
        leadership: Leadership,
        appender: InternalAppender,
        counters: Counters,
    ) -> None:
        self._topics = topics
        self._leadership = leadership
        self._appender = appender
        self._counters = counters

    def append(self, origin: Origin, stored: StoredRecord, attempts: int) -> int:
        """Append the copy; return the log offset behind it. Raises WireError."""
        end = self._appender.append(self.copy(origin, stored, attempts)).end
        self._counters.dead[origin.topic, origin.group] += 1
        return end

    def copy(self, origin: Origin, stored: StoredRecord, attempts: int) -> Message:
        """Return the copy of a record delivered `attempts` times; create its topic.

        Raises WireError.
        """
        if not self._leadership.pop_leads:
            raise WireError(v2.HA_NOT_AVAILABLE, "dead letters wait for the leader")
        target = dead_letter_topic(origin.group)
        self._topics.ensure(target)
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
            self._appender.store_host,
            # FIFO consumers retry locally and report their attempts; the log does not have them.
            max(record.reconsume_times + 1, attempts),
        )
