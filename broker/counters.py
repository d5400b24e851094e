"""Running totals of one broker, kept as plain numbers on the hot paths and read by the metrics.

Promises: adding costs one dictionary access and no lock (the event loop is the only writer). The
names under which they are exported are RocketMQ 5's (broker semantics, section 11.2). Derived and
in memory: a restart starts at zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Total:
    """Messages and their bytes."""

    messages: int = 0
    bytes: int = 0

    def add(self, messages: int, size: int) -> None:
        """Count `messages` of together `size` bytes."""
        self.messages += messages
        self.bytes += size


@dataclass(slots=True)
class Counters:
    """Totals since the start; topics and groups are bounded by the metadata."""

    sent: dict[tuple[str, int], Total] = field(default_factory=dict)
    """By topic and message type."""
    received: dict[tuple[str, str, bool], Total] = field(default_factory=dict)
    """By topic, group and whether it was a redelivery."""
    acked: int = 0
    redelivered_without_handover: int = 0
    """Deliveries repeated because pop state is not handed over between replicas."""
    forwarded: int = 0
    internal_errors: int = 0

    def add_sent(self, topic: str, message_type: int, messages: int, size: int) -> None:
        """Messages that were appended."""
        total = self.sent.get((topic, message_type))
        if total is None:
            total = self.sent[topic, message_type] = Total()
        total.messages += messages
        total.bytes += size

    def add_received(self, topic: str, group: str, retry: bool, messages: int, size: int) -> None:
        """Messages that were handed to a consumer."""
        total = self.received.get((topic, group, retry))
        if total is None:
            total = self.received[topic, group, retry] = Total()
        total.messages += messages
        total.bytes += size
