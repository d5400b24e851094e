"""Consumer groups in a scrape: lag, what is in flight and ready, and how old it is; dead letters.

Names are RocketMQ 5's (broker semantics, section 11.2). Retry topics count under the topic whose messages
they hold, with `is_retry`. Promises: a scrape reads at most `READS_MAX` records for the ages, so that many
groups do not hold the loop; what was not looked at yet has no sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...store.format.record import decode
from ..admin.progress import all_group_queues
from ..lite.names import parse_queue
from ..metadata.tables import is_system_topic
from ..pop.retry import origin_topic
from .families import Families, flag

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from ..node import Node

_LABELS = ("consumer_group", "topic", "is_retry", "is_system")
READS_MAX = 200
"""About 5 ms of the loop."""

Key = tuple[str, str, str, str]
Place = tuple[str, int, int]
"""Topic, queue id and offset of a message."""


class StoreTimes:
    """Store times of the messages at which groups stand.

    The time of a message does not change, so each is read once; a scrape reads a part of what is new
    and the next one goes on from there.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._known: dict[Place, int] = {}
        self._begin = 0

    def of(self, places: Sequence[Place]) -> dict[Place, int]:
        """The store times in milliseconds of those messages that were looked at."""
        known = {place: self._known[place] for place in places if place in self._known}
        new = [place for place in dict.fromkeys(places) if place not in known]
        begin = self._begin % len(new) if new else 0
        for place in [*new[begin:], *new[:begin]][:READS_MAX]:
            stored_ms = self._read(place)
            if stored_ms is not None:
                known[place] = stored_ms
        self._begin = begin + READS_MAX if len(new) > READS_MAX else 0
        self._known = known
        return known

    def _read(self, place: Place) -> int | None:
        topic, queue_id, offset = place
        records = self._node.store.get(topic, queue_id, offset, 1).records
        if not records:
            return None
        return decode(records[0].data, check_crc=False).store_timestamp_ms


def group_families(node: Node, families: Families, times: StoreTimes) -> list[Metric]:
    """Everything about the groups of this replica."""
    lag: Counter[Key] = Counter()
    in_flight: Counter[Key] = Counter()
    oldest: list[tuple[Key, Place]] = []
    ready: list[tuple[Key, Place]] = []
    for group, row in all_group_queues(node):
        lite = parse_queue(row.topic)
        topic = lite[0] if lite is not None else origin_topic(row.topic, group)
        key = (group, topic, flag(row.retry), flag(is_system_topic(topic)))
        lag[key] += row.lag
        in_flight[key] += row.in_flight
        if row.lag:
            read = row.max_offset - (row.lag - row.in_flight)
            first = max(min(row.consumer_offset, read), row.min_offset)
            oldest.append((key, (row.topic, row.queue_id, first)))
            if read < row.max_offset:
                ready.append((key, (row.topic, row.queue_id, read)))
    stored = times.of([place for _, place in (*oldest, *ready)])
    now_ms = node.clock.wall_ms()
    waited, queued = (_longest(places, stored, now_ms) for places in (oldest, ready))
    ready_messages = {key: max(0, lag[key] - in_flight[key]) for key in lag}
    gauge = families.gauge
    return [
        gauge("rocketmq_consumer_lag_messages", "Not consumed yet.", lag.items(), _LABELS),
        gauge(
            "rocketmq_consumer_inflight_messages",
            "Delivered and not acknowledged.",
            in_flight.items(),
            _LABELS,
        ),
        gauge(
            "rocketmq_consumer_ready_messages",
            "Ready to be delivered.",
            ready_messages.items(),
            _LABELS,
        ),
        gauge(
            "rocketmq_consumer_lag_latency",
            "Milliseconds since the oldest message that is not consumed was stored.",
            waited.items(),
            _LABELS,
        ),
        gauge(
            "rocketmq_consumer_queueing_latency",
            "Milliseconds since the oldest message that is ready was stored.",
            queued.items(),
            _LABELS,
        ),
        _dead_letters(node, families),
    ]


def _longest(
    places: Sequence[tuple[Key, Place]], stored: Mapping[Place, int], now_ms: int
) -> dict[Key, int]:
    """By group and topic, how long ago the oldest of its messages was stored."""
    longest: dict[Key, int] = {}
    for key, place in places:
        if place in stored:
            longest[key] = max(now_ms - stored[place], longest.get(key, 0))
    return longest


def _dead_letters(node: Node, families: Families) -> Metric:
    dead = node.counters.dead + node.pop.reviver.dead
    return families.counter(
        "rocketmq_send_to_dlq_messages",
        "Messages that went to a dead-letter topic.",
        [
            ((group, topic, flag(is_system_topic(topic))), number)
            for (topic, group), number in dead.items()
        ],
        ("consumer_group", "topic", "is_system"),
    )
