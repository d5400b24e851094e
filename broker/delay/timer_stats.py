"""Timer counters for metrics and tests, read by `metrics/timers.py`.

In memory, except the number of waiting messages by topic, which `config/timermetrics` stores.
"""

from __future__ import annotations

from msgspec import Struct, field

from ...front.metrics.families import Buckets

DELAY_BOUNDS_S = (60, 600, 3_600, 43_200, 86_400, 259_200)


class TimerStats(Struct):
    """Totals since the start."""

    #: Bounded by the topics of the broker: a message's topic exists when it is sent.
    enqueued_by_topic: dict[str, int] = field(default_factory=dict)
    dequeued_by_topic: dict[str, int] = field(default_factory=dict)
    #: Delays of sent messages, in seconds, by topic.
    delays: dict[str, Buckets] = field(default_factory=dict)
    #: Records, also of delay levels, that retention deleted before they were due, or that are not
    #: timer messages.
    gone: int = 0
    #: Records that are damaged.
    damaged: int = 0
    #: Messages whose topic was deleted while they waited.
    without_topic: int = 0
    undeliverable: int = 0
    #: A flush failed: the progress on disk does not move, and a restart repeats messages.
    broken: bool = False

    def enqueued(self, topic: str, ahead_ms: int) -> None:
        """Count a message that was put into the wheel or was due already."""
        self.enqueued_by_topic[topic] = self.enqueued_by_topic.get(topic, 0) + 1
        delays = self.delays.get(topic)
        if delays is None:
            delays = self.delays[topic] = Buckets(DELAY_BOUNDS_S)
        delays.add(ahead_ms / 1000)

    def dequeued(self, topic: str) -> None:
        """Count a message that is delivered or dropped."""
        self.dequeued_by_topic[topic] = self.dequeued_by_topic.get(topic, 0) + 1
