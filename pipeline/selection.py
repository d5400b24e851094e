"""Which records a reader wants: topics, queues with ranges of offsets, tags. Pure.

System topics (DESIGN, section 8.7) are those that brokers keep for themselves, and retry and dead letter
topics: they are left out unless somebody names them or asks for all.
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
    """Whether a topic is left out unless it is named."""
    return topic.startswith(_SYSTEM_PREFIXES) or topic in _SYSTEM_TOPICS


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """A choice of records. `topics` and `pattern` None: every topic. `ranges` None: every record, also
    those that no queue holds (prepared and rolled back); otherwise only these queues and offsets."""

    topics: frozenset[str] | None = None
    pattern: str | None = None
    include_system: bool = True
    ranges: Ranges | None = None
    tags: frozenset[str] | None = None
    queues: Mapping[str, frozenset[int]] | None = field(default=None)

    def wants(self, topic: str) -> bool:
        """Whether records of this topic may be wanted."""
        if self.topics is not None:
            return topic in self.topics
        if self.pattern is not None and _compiled(self.pattern).fullmatch(topic) is None:
            return False
        return self.include_system or not is_system_topic(topic)

    def wants_queue(self, topic: str, queue_id: int) -> bool:
        """Whether records of this queue may be wanted."""
        if not self.wants(topic):
            return False
        return self.queues is None or queue_id in self.queues.get(topic, frozenset())

    @property
    def takes_all(self) -> bool:
        """Whether there is nothing to leave out."""
        named = (self.topics, self.pattern, self.ranges, self.tags, self.queues)
        return self.include_system and all(one is None for one in named)
