"""Selection of records: topics, queues with offset ranges, tags. Pure.

System topics are internal topics of brokers, retry topics and dead-letter topics. They are left out
unless they are named or `include_system` is set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

#: (topic, queue) -> [start, end) of queue offsets.
Ranges = Mapping[tuple[str, int], tuple[int, int]]
NO_END: Final = 1 << 62
_SYSTEM_PREFIXES: Final = ("rmq_sys_", "RMQ_SYS_", "%RETRY%", "%DLQ%", "CID_RMQ_SYS_")
_SYSTEM_TOPICS: Final = frozenset(
    (
        *(
            "SCHEDULE_TOPIC_XXXX",
            "TBW102",
            "BenchmarkTest",
            "SELF_TEST_TOPIC",
            "OFFSET_MOVED_EVENT",
        ),
        *("TRANS_CHECK_MAX_TIME_TOPIC", "DefaultHeartBeatSyncerTopic"),
    )
)


def is_system_topic(topic: str) -> bool:
    """Whether a topic is internal, a retry topic or a dead-letter topic."""
    return topic.startswith(_SYSTEM_PREFIXES) or topic in _SYSTEM_TOPICS


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """A selection of records.

    `topics` and `pattern` None: every topic. `ranges` None: every record, including prepared and
    rolled-back ones, which are in no queue; otherwise only these queues and offsets. `queue_ids`,
    `offsets` and `times_ms` select rows by the values of their columns, bounds are [start, end).
    """

    topics: frozenset[str] | None = None
    pattern: str | None = None
    include_system: bool = True
    ranges: Ranges | None = None
    tags: frozenset[str] | None = None
    queues: Mapping[str, frozenset[int]] | None = field(default=None)
    queue_ids: frozenset[int] | None = None
    offsets: tuple[int, int] | None = None
    times_ms: tuple[int, int] | None = None

    def matches(self, topic: str) -> bool:
        """Whether records of this topic may match."""
        if self.topics is not None:
            return topic in self.topics
        if self.pattern is not None and _compiled(self.pattern).fullmatch(topic) is None:
            return False
        return self.include_system or not is_system_topic(topic)

    def matches_queue(self, topic: str, queue_id: int) -> bool:
        """Whether records of this queue may match."""
        if not self.matches(topic) or (
            self.queue_ids is not None and queue_id not in self.queue_ids
        ):
            return False
        return self.queues is None or queue_id in self.queues.get(topic, frozenset())

    @property
    def matches_all(self) -> bool:
        """Whether every record matches."""
        named = (
            *(self.topics, self.pattern, self.ranges, self.tags, self.queues),
            *(self.queue_ids, self.offsets, self.times_ms),
        )
        return self.include_system and all(one is None for one in named)
