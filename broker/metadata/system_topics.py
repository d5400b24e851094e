"""System topics: the leader creates one when the broker first writes to it.

Promises: a system topic has the name and size of Apache's, so that Apache finds it where it expects
it (docs/formats/store-format.md, section 12.3); it does not count against `maxTopics`; clients can
neither send to it nor receive from it, except classic ones with `OPEN_TOPICS`
(`messages/validation.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
from .tables import Topic

if TYPE_CHECKING:
    from ..base.leadership import Leadership
    from .log import MetaLog
    from .tables import Metadata

#: The consumer group under which the timers' progress is replicated with the consumer offsets.
#:
#: Timer topic: queue 0 holds the queue offset up to which messages were enqueued, queue 1 (which
#: does not exist) the time up to which slots were delivered. Schedule topic: each level's queue
#: offset. The next leader continues there; the file `timercheck` is not replicated.
PROGRESS_GROUP = "CID_RMQ_SYS_TIMER"
READ_TIME_QUEUE = 1


class SystemTopics:
    """Creates missing system topics."""

    def __init__(self, metadata: Metadata, meta_log: MetaLog, leadership: Leadership) -> None:
        self._metadata = metadata
        self._meta_log = meta_log
        self._leadership = leadership

    def ensure(self, name: str, queues: int = 1) -> None:
        """Create the topic if it does not exist. Raises WireError if the log accepts nothing."""
        if name not in self._metadata.topics:
            if not self._leadership.is_leader:
                # A follower's log is a byte copy of its leader's.
                raise WireError(
                    v2.HA_NOT_AVAILABLE, "this replica follows: its leader creates topics"
                )
            self._meta_log.write_topic(Topic(name, queues, queues))
