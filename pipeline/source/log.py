"""What the planner asks of a log, wherever it lies: bounds of queues, places of messages, parts to read.

Two things answer: `store_log.StoreLog` from the files, `wire_log.WireLog` from brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..splits import Split

#: Topic, queue id.
QueueName = tuple[str, int]


@dataclass(frozen=True, slots=True)
class BrokerLog:
    """One broker's log as it is now: what may be read, and what its queues hold, [first, end)."""

    log_start: int
    log_end: int
    queues: dict[QueueName, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WireSplit:
    """A part of a broker's log; owns the records that start in [start, end)."""

    broker: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PullSplit:
    """A part of one queue of a broker that has no ReadLog: offsets [start, end)."""

    broker: str
    topic: str
    queue_id: int
    start: int
    end: int


AnySplit = Split | WireSplit | PullSplit


class Log(Protocol):
    """The logs of one or several brokers."""

    #: Whether parts are ranges of a log. If not, places are of no use, and parts are of queues.
    physical: bool

    def snapshot(self) -> dict[str, BrokerLog]:
        """Every broker's log, with the queues that are wanted."""
        ...

    def offsets_at_position(self, broker: str, place: int) -> dict[QueueName, int]:
        """Each queue's first message at this place of the log or above; its end where none is."""
        ...

    def offsets_at_time(self, broker: str, time_ms: int) -> dict[QueueName, int]:
        """Each queue's first message that was stored then or later; its end where none is."""
        ...

    def positions(
        self, broker: str, messages: Sequence[tuple[str, int, int]]
    ) -> list[tuple[int, int] | None]:
        """Place and size of messages (topic, queue, offset); None for one that is not there."""
        ...

    def split_range(self, broker: str, start: int, end: int, split_bytes: int) -> list[AnySplit]:
        """[start, end) of a log in parts of about this size. Raises DataLossError for a gap."""
        ...

    def missing_topics(self, topics: Sequence[str]) -> list[str]:
        """Those of these topics that do not exist, as far as that can be told."""
        ...

    def topic_names(self) -> list[str]:
        """The topics that there are, to name the suggestion; none where nobody says."""
        ...

    def close(self) -> None:
        """Let go of what is open."""
        ...
