"""Running totals of one broker, kept as plain numbers on the hot paths and read by the metrics.

Adding costs one dictionary access and no lock (the event loop is the only writer). Exported names:
docs/formats/broker-semantics.md, section 11.2. Derived and in memory: a restart starts at zero.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from msgspec import Struct, field

from ...front.metrics.families import Buckets
from ...proto import v2

#: Bytes: the buckets of rocketmq_message_size.
SIZE_BOUNDS = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
CREATION_BOUNDS_MS = (10, 100, 1_000, 3_000, 5_000)


class Total(Struct):
    """Messages and their bytes."""

    messages: int = 0
    bytes: int = 0
    #: Sent messages by size; those of one request count as equally large.
    sizes: list[int] = field(default_factory=lambda: [0] * (len(SIZE_BOUNDS) + 1))

    def add(self, messages: int, size: int) -> None:
        """Count `messages` of together `size` bytes."""
        self.messages += messages
        self.bytes += size


class Counters(Struct):
    """Totals since the start; topics and groups are bounded by the metadata."""

    #: By topic and message type.
    sent: dict[tuple[str, int], Total] = field(default_factory=dict)
    #: By topic, group and whether it was a redelivery.
    received: dict[tuple[str, str, bool], Total] = field(default_factory=dict)
    #: Messages moved to dead letters while a consumer asked for them, by topic and group.
    dead: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Messages that classic consumers sent back, by topic and group.
    sent_back: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Milliseconds that making a topic or group took, by what it is, outcome and whether the
    #: system's.
    created: dict[tuple[str, str, bool], Buckets] = field(default_factory=dict)
    acked: int = 0
    #: Messages delivered again because their pop state was not handed over: another replica or an
    #: earlier instance had delivered them.
    redelivered_without_handover: int = 0
    forwarded: int = 0
    #: Messages that were not stored again, because their ids were sent inside the window.
    repeated: int = 0
    internal_errors: int = 0
    #: What was read on a follower because it is old: reads "passed_on", records "fetched", fetches
    #: "refused".
    cold: Counter[str] = field(default_factory=Counter)
    #: Sends that were not stored, by cause: the guard that refused, or the code of the answer.
    refused_sends: Counter[str] = field(default_factory=Counter)
    #: Calls refused by the guard: for their "signature", "clock" or "permission".
    refused_calls: Counter[str] = field(default_factory=Counter)
    #: Entries missing in the audit topic: above the "rate", or refused by the "log".
    audit_dropped: Counter[str] = field(default_factory=Counter)
    #: Steps of the wall clock: "forward" or "back".
    clock_steps: Counter[str] = field(default_factory=Counter)
    #: Calls refused by a quota: by "User" or "Topic", and limit.
    refused_by_quota: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add_sent(self, topic: str, message_type: int, messages: int, size: int) -> None:
        """Messages of one request that were appended."""
        total = self._sent_total(topic, message_type)
        total.messages += messages
        total.bytes += size
        total.sizes[bisect_left(SIZE_BOUNDS, size / messages if messages else 0)] += messages

    def add_sent_requests(
        self, topic: str, message_type: int, messages: int, size: int, sizes: Sequence[int]
    ) -> None:
        """Messages of several requests that were appended; `sizes`: their number by SIZE_BOUNDS."""
        total = self._sent_total(topic, message_type)
        total.messages += messages
        total.bytes += size
        if messages in sizes:  # then all are in one slot, as usual: cheaper than the loop
            total.sizes[sizes.index(messages)] += messages
            return
        for slot, count in enumerate(sizes):
            total.sizes[slot] += count

    def _sent_total(self, topic: str, message_type: int) -> Total:
        total = self.sent.get((topic, message_type))
        if total is None:
            total = self.sent[topic, message_type] = Total()
        return total

    def sent_bytes(self, topic: str) -> int:
        """Return the bytes of all messages that were appended to a topic."""
        kinds = v2.MessageType.values()
        return sum(total.bytes for kind in kinds if (total := self.sent.get((topic, kind))))

    def received_bytes(self, topic: str, group: str) -> int:
        """Return the bytes of all messages of a topic that were handed to a group."""
        totals = (self.received.get((topic, group, retry)) for retry in (False, True))
        return sum(total.bytes for total in totals if total is not None)

    def add_created(self, what: str, outcome: str, system: bool, took_ms: float) -> None:
        """A topic or a group was made, or could not be."""
        key = (what, outcome, system)
        if key not in self.created:
            self.created[key] = Buckets(CREATION_BOUNDS_MS)
        self.created[key].add(took_ms)

    def add_received(self, topic: str, group: str, retry: bool, messages: int, size: int) -> None:
        """Messages that were handed to a consumer."""
        total = self.received.get((topic, group, retry))
        if total is None:
            total = self.received[topic, group, retry] = Total()
        total.messages += messages
        total.bytes += size
