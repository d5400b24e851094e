"""Log protocol of the planner: bounds of queues, physical offsets of messages, parts to read.

Implementations: `store_log.StoreLog` (files), `wire.WireLog` and `pulled.PulledLog` (brokers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..splits import Split
from .marks import Mark

#: Topic, queue id.
QueueName = tuple[str, int]


@dataclass(frozen=True, slots=True)
class BrokerLog:
    """Current bounds of a broker's readable log and of its queues, [first, end)."""

    log_start: int
    log_end: int
    queues: dict[QueueName, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WireSplit:
    """A range of a broker's log: the records that start in [start, end)."""

    broker: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PullSplit:
    """A range [start, end) of queue offsets, for brokers without ReadLog."""

    broker: str
    topic: str
    queue_id: int
    start: int
    end: int


AnySplit = Split | WireSplit | PullSplit


class Log(Protocol):
    """The logs of one or several brokers."""

    #: Whether parts are ranges of a log. If False, parts are ranges of queues.
    physical: bool
    #: Names of brokers in checkpoints of older versions, and the names that they have now.
    former_names: Mapping[str, str]

    def snapshot(self) -> dict[str, BrokerLog]:
        """Return every broker's log with the selected queues."""
        ...

    def offsets_at_position(self, broker: str, position: int) -> dict[QueueName, int]:
        """Return each queue's first offset at or above a physical offset, or its end."""
        ...

    def offsets_at_time(self, broker: str, time_ms: int) -> dict[QueueName, int]:
        """Return each queue's first offset stored at or after a time, or its end."""
        ...

    def positions(
        self, broker: str, messages: Sequence[tuple[str, int, int]]
    ) -> list[tuple[int, int] | None]:
        """Return physical offset and size of messages (topic, queue, offset), None if missing."""
        ...

    def split_range(self, broker: str, start: int, end: int, split_bytes: int) -> list[AnySplit]:
        """Divide [start, end) of a log into parts of about this size.

        Raises DataLossError for a gap.
        """
        ...

    def pick(
        self, broker: str, ranges: Mapping[QueueName, tuple[int, int]], span: tuple[int, int]
    ) -> list[AnySplit] | None:
        """Return parts with the records of these messages alone, by their queues; None if to read
        the span of the log is cheaper."""
        ...

    def last_mark(self, broker: str) -> Mark | None:
        """Return the mark of the last record below the readable end; None if logs have no bytes."""
        ...

    def mark_at(self, broker: str, position: int) -> Mark | None:
        """Return the mark of the record at a physical offset; None if no record begins there."""
        ...

    def missing_topics(self, topics: Sequence[str]) -> list[str]:
        """Return those of the topics that are known not to exist."""
        ...

    def topic_names(self) -> list[str]:
        """Return the existing topics, for suggestions; empty if unknown."""
        ...

    def close(self) -> None:
        """Close files and channels."""
        ...
