"""Topics that the broker itself writes to: made when they are first needed, on the leader alone.

Promises: such a topic is an ordinary one of Apache's name and size, so that Apache finds it where it
looks (store format, section 12.3); it is never counted against `maxTopics`, and clients can neither
send to it nor receive from it (`validation.check_topic`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
from .tables import Topic

PROGRESS_GROUP = "CID_RMQ_SYS_TIMER"
"""Under its name the timers' progress travels to the followers with the consumer offsets, which a replica
takes only with the log that they rely on: in the timer topic queue 0 has the offset up to which messages
were enqueued and queue 1, which does not exist, the time up to which slots were delivered; in the schedule
topic each level has its queue's offset. Who leads next goes on there (`timercheck` is not replicated)."""
READ_TIME_QUEUE = 1

if TYPE_CHECKING:
    from ..node import Node


def ensure_system_topic(node: Node, name: str, queues: int = 1) -> None:
    """Make the topic when it is not there. Raises WireError when the log takes nothing now."""
    if name not in node.metadata.topics:
        if not node.leadership.is_leader:
            # A follower's log is its leader's, byte for byte.
            raise WireError(v2.HA_NOT_AVAILABLE, "this replica follows: its leader makes topics")
        node.meta_log.write_topic(Topic(name, queues, queues))
