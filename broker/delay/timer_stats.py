"""What the timers count, for metrics and tests: plain numbers, read by `metrics/timers.py`. In memory but
for the waiting messages by topic, which `config/timermetrics` keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..metrics.families import Buckets

if TYPE_CHECKING:
    from ...store.timer.metrics import TimerMetrics

DELAY_BOUNDS_S = (60, 600, 3_600, 43_200, 86_400, 259_200)


@dataclass(slots=True)
class TimerStats:
    """Totals since the start."""

    enqueued_by_topic: dict[str, int] = field(default_factory=dict)
    """Bounded by the topics of the broker: a message names one that exists when it is sent."""
    dequeued_by_topic: dict[str, int] = field(default_factory=dict)
    delays: Buckets = field(default_factory=lambda: Buckets(DELAY_BOUNDS_S))
    """How far ahead messages were sent, in seconds."""
    gone: int = 0
    """Records that retention took before they were due, or that are no timer messages."""
    without_topic: int = 0
    """Messages whose topic was deleted while they waited."""
    undeliverable: int = 0
    broken: bool = False
    """A flush failed: the progress on the disk stands still, and a restart repeats messages."""
    timing: TimerMetrics | None = None

    def enqueued(self, topic: str, ahead_ms: int) -> None:
        """A message was put into the wheel, or was due already."""
        self.enqueued_by_topic[topic] = self.enqueued_by_topic.get(topic, 0) + 1
        self.delays.add(ahead_ms / 1000)

    def dequeued(self, topic: str) -> None:
        """A message is done with."""
        self.dequeued_by_topic[topic] = self.dequeued_by_topic.get(topic, 0) + 1
