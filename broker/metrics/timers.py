"""Metrics of delayed messages, under RocketMQ 5's names (docs/formats/broker-semantics.md, section
11.3); `cometmq_...` are ours. Reads the counts of the timer service on the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from ...front.metrics.families import Families
    from ..delay.timer_service import TimerService

_PLACE = ("local", "disk")
_PLACE_LABELS = ("storage_type", "storage_medium")
BOUNDS_S = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)


def timer_families(timers: TimerService, families: Families) -> list[Metric]:
    """Everything about messages that wait for a time."""
    return [*_positions(timers, families), *_by_topic(timers, families), *_ours(timers, families)]


def _positions(timers: TimerService, families: Families) -> list[Metric]:
    return [
        families.gauge(name, text, [(_PLACE, number)], _PLACE_LABELS)
        for name, text, number in (
            (
                "rocketmq_timer_enqueue_lag",
                "Delayed messages that are not in the wheel yet.",
                timers.enqueue_lag,
            ),
            (
                "rocketmq_timer_enqueue_latency",
                "Age of the oldest delayed message that is not in the wheel yet, ms.",
                timers.enqueue_latency_ms,
            ),
            (
                "rocketmq_timer_dequeue_lag",
                "Delayed messages that are due and not delivered yet.",
                timers.dequeue_lag,
            ),
            (
                "rocketmq_timer_dequeue_latency",
                "Time for which the oldest undelivered message has been due, ms.",
                timers.dequeue_latency_ms,
            ),
        )
    ]


def _by_topic(timers: TimerService, families: Families) -> list[Metric]:
    stats = timers.stats
    return [
        families.gauge(
            "rocketmq_timing_messages",
            "Delayed messages that are not due yet, by topic; an upper bound "
            "while many recalls are being counted.",
            [((topic, *_PLACE), number) for topic, number in timers.waiting_by_topic().items()],
            ("topic", *_PLACE_LABELS),
        ),
        *(
            families.counter(
                name,
                text,
                [((topic, *_PLACE), number) for topic, number in numbers.items()],
                ("topic", *_PLACE_LABELS),
            )
            for name, text, numbers in (
                (
                    "rocketmq_timer_enqueue",
                    "Delayed messages added to the timer wheel or due at once, by topic.",
                    stats.enqueued_by_topic,
                ),
                (
                    "rocketmq_timer_dequeue",
                    "Delayed messages delivered or dropped, by topic.",
                    stats.dequeued_by_topic,
                ),
            )
        ),
        families.gauge(
            "rocketmq_timer_message_snapshot",
            "Delayed messages that are due within timer_bound_s seconds.",
            [
                ((str(bound), *_PLACE), number)
                for bound, number in zip(BOUNDS_S, timers.due_within(BOUNDS_S), strict=True)
            ],
            ("timer_bound_s", *_PLACE_LABELS),
        ),
        families.histogram(
            "rocketmq_delay_message_latency",
            "Time from sending a delayed message to its delivery time, s.",
            [((topic, *_PLACE), delays) for topic, delays in stats.delays.items()],
            ("topic", *_PLACE_LABELS),
        ),
    ]


def _ours(timers: TimerService, families: Families) -> list[Metric]:
    stats = timers.stats
    return [
        families.counter(
            "cometmq_timer_dropped",
            "Delayed messages that could not be delivered.",
            [
                (("retention",), stats.gone),
                (("damaged",), stats.damaged),
                (("no_topic",), stats.without_topic),
                (("refused",), stats.undeliverable),
            ],
            ("reason",),
        ),
        families.one(
            "cometmq_timer_progress_stopped",
            "1: a flush of the timers failed; a restart repeats messages.",
            stats.broken,
        ),
    ]
