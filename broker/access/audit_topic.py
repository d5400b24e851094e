"""Audit topic: the entries of the audit log as messages of `rmq_sys_COMETMQ_AUDIT`, queue 0.

The body of a message is one line of the audit log (`audit.py`), its tag the call's name, its keys
`audit`, the call, the user and the target. Promises: only the leader appends, so a call that a
follower or a proxy refuses is in that node's file only; clients can neither send to the topic nor
receive from it, and tools read it with rights on the cluster (QueryMessages, ReadLog). No call
waits for its entry. Entries above the rates, or refused by the log, are dropped and counted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ...auth.quota import TokenBucket
from ...proto import v2
from ...proto.errors import WireError
from ...store.format.properties import encode_properties
from ...store.format.record import Message

if TYPE_CHECKING:
    from collections import Counter

    from ...front.clock import Clock
    from ..base.internal_appender import InternalAppender
    from ..base.leadership import Leadership
    from ..metadata.system_topics import SystemTopics
    from .audit import Entry

AUDIT_TOPIC: Final = "rmq_sys_COMETMQ_AUDIT"
#: Key of every entry.
EVERY_ENTRY: Final = "audit"
# Entries a second. An entry has at most 2 KiB: a flood of calls that change nothing adds at most
# 1.7 GB a day, and takes no room from the entries of successful calls.
_REFUSED_RATE: Final = 10
_SERVED_RATE: Final = 100
# Spaces separate keys; other characters of a refused name are the caller's choice.
_KEY = re.compile(r"[\w%|:*.-]+", re.ASCII)


class AuditTopic:
    """Appends the entries of one broker."""

    def __init__(
        self,
        *,
        clock: Clock,
        leadership: Leadership,
        system_topics: SystemTopics,
        appender: InternalAppender,
        dropped: Counter[str],
    ) -> None:
        """`dropped` counts lost entries by reason: "rate" or "log"."""
        self._clock = clock
        self._leadership = leadership
        self._system_topics = system_topics
        self._appender = appender
        self._dropped = dropped
        now_ns = clock.steady_ns()
        self._served = TokenBucket(_SERVED_RATE, now_ns)
        self._refused = TokenBucket(_REFUSED_RATE, now_ns)

    def write(self, entry: Entry, line: str) -> None:
        """Append an entry if this node leads."""
        if not self._leadership.is_leader:
            return
        bucket = self._served if entry["code"] == v2.OK else self._refused
        if not bucket.admits(self._clock.steady_ns()):
            self._dropped["rate"] += 1
            return
        bucket.take(1)
        try:
            self._system_topics.ensure(AUDIT_TOPIC)
            self._appender.append(self._message(entry, line))
        except WireError:
            self._dropped["log"] += 1

    def _message(self, entry: Entry, line: str) -> Message:
        words = EVERY_ENTRY, entry["call"], entry["user"], entry["target"]
        keys = dict.fromkeys(word for word in words if _KEY.fullmatch(word))
        host = self._appender.store_host
        return Message(
            AUDIT_TOPIC,
            0,
            line.encode(),
            encode_properties({"KEYS": " ".join(keys), "TAGS": entry["call"]}),
            born_timestamp_ms=self._clock.wall_ms(),
            born_host=host,
            store_host=host,
        )
