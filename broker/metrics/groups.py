"""Metrics of consumer groups: lag, messages in flight and ready and their age, dead letters.

Names are RocketMQ 5's (docs/formats/broker-semantics.md, section 11.2). Retry topics count under
their origin topic, with `is_retry`. Promises: a scrape reads at most `READS_MAX` records for the
ages, so that many groups do not hold the loop; a message whose age is not read yet has no sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...front.metrics.families import Families, flag
from ...store.format.record import decode
from ..metadata.tables import is_system_topic
from ..names.lite import parse_queue
from ..names.retry import origin_topic

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from ...proto import v1
    from ...store.message_store import MessageStore

_LABELS = ("consumer_group", "topic", "is_retry", "is_system")
#: About 5 ms of the loop.
READS_MAX = 200

Key = tuple[str, str, str, str]
#: Topic, queue id and offset of a message.
QueuePosition = tuple[str, int, int]


class StoreTimes:
    """Store times of the messages at which groups stand.

    The time of a message does not change, so each is read once; a scrape reads a part of what is
    new and the next one goes on from there.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._known: dict[QueuePosition, int] = {}
        self._begin = 0

    def of(self, positions: Sequence[QueuePosition]) -> dict[QueuePosition, int]:
        """The store times in milliseconds of those messages that were looked at."""
        known = {
            position: self._known[position] for position in positions if position in self._known
        }
        new = [position for position in dict.fromkeys(positions) if position not in known]
        begin = self._begin % len(new) if new else 0
        for position in [*new[begin:], *new[:begin]][:READS_MAX]:
            stored_ms = self._read(position)
            if stored_ms is not None:
                known[position] = stored_ms
        self._begin = begin + READS_MAX if len(new) > READS_MAX else 0
        self._known = known
        return known

    def _read(self, position: QueuePosition) -> int | None:
        topic, queue_id, offset = position
        records = self._store.get(topic, queue_id, offset, 1).records
        if not records:
            return None
        return decode(records[0].data, check_crc=False).store_timestamp_ms


class GroupSums:
    """The sums over the queues of all groups. `add` takes one queue at a time, so that its caller
    can pause; `families` reads nothing and may run in any thread."""

    def __init__(self) -> None:
        self._lag: Counter[Key] = Counter()
        self._in_flight: Counter[Key] = Counter()
        self._oldest: list[tuple[Key, QueuePosition]] = []
        self._ready: list[tuple[Key, QueuePosition]] = []
        self._stored: dict[QueuePosition, int] = {}

    def add(self, group: str, row: v1.GroupQueueStatus) -> None:
        """Add a queue of a group."""
        lite = parse_queue(row.topic)
        topic = lite[0] if lite is not None else origin_topic(row.topic, group)
        key = (group, topic, flag(row.retry), flag(is_system_topic(topic)))
        self._lag[key] += row.lag
        self._in_flight[key] += row.in_flight
        if row.lag:
            read = row.max_offset - (row.lag - row.in_flight)
            first = max(min(row.consumer_offset, read), row.min_offset)
            self._oldest.append((key, (row.topic, row.queue_id, first)))
            if read < row.max_offset:
                self._ready.append((key, (row.topic, row.queue_id, read)))

    def read_times(self, times: StoreTimes) -> None:
        """Read when the messages were stored at which the groups stand."""
        self._stored = times.of([position for _, position in (*self._oldest, *self._ready)])

    def families(
        self, dead: Mapping[tuple[str, str], int], now_ms: int, families: Families
    ) -> list[Metric]:
        """Return the metrics; `dead` counts dead letters by topic and group."""
        waited, queued = (
            _longest(positions, self._stored, now_ms) for positions in (self._oldest, self._ready)
        )
        lag, in_flight = self._lag, self._in_flight
        ready_messages = {key: max(0, lag[key] - in_flight[key]) for key in lag}
        gauge = families.gauge
        return [
            gauge(
                "rocketmq_consumer_lag_messages",
                "Messages that a group has not acknowledged.",
                lag.items(),
                _LABELS,
            ),
            gauge(
                "rocketmq_consumer_inflight_messages",
                "Messages delivered to a group and not acknowledged.",
                in_flight.items(),
                _LABELS,
            ),
            gauge(
                "rocketmq_consumer_ready_messages",
                "Messages ready to be delivered to a group.",
                ready_messages.items(),
                _LABELS,
            ),
            gauge(
                "rocketmq_consumer_lag_latency",
                "Milliseconds since the group's oldest unacknowledged message was stored.",
                waited.items(),
                _LABELS,
            ),
            gauge(
                "rocketmq_consumer_queueing_latency",
                "Milliseconds since the group's oldest ready message was stored.",
                queued.items(),
                _LABELS,
            ),
            _dead_letters(dead, families),
        ]


def _longest(
    positions: Sequence[tuple[Key, QueuePosition]], stored: Mapping[QueuePosition, int], now_ms: int
) -> dict[Key, int]:
    """By group and topic, how long ago the oldest of its messages was stored."""
    longest: dict[Key, int] = {}
    for key, position in positions:
        if position in stored:
            longest[key] = max(now_ms - stored[position], longest.get(key, 0))
    return longest


def _dead_letters(dead: Mapping[tuple[str, str], int], families: Families) -> Metric:
    return families.counter(
        "rocketmq_send_to_dlq_messages",
        "Messages that went to a dead-letter topic.",
        [
            ((group, topic, flag(is_system_topic(topic))), number)
            for (topic, group), number in dead.items()
        ],
        ("consumer_group", "topic", "is_system"),
    )
