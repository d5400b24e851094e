"""Metric families with the labels that every metric has, and the page made of them.

Common labels: cluster, node type and node name (docs/formats/broker-semantics.md, section 11.1).
RocketMQ's exporter adds the unit to the names of some metrics; dashboards have either name, so both
are on the page (`UNITS`). prometheus-client is imported by the first scrape, so that a process
without scrapes does not load it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

COMMON = ("cluster", "node_type", "node_id")

#: Metrics of RocketMQ that its exporter shows with a unit: `NAME_UNIT`. The values are the same,
#: also where the unit is wrong (rocketmq_finish_message_latency is in seconds).
UNITS = {
    **dict.fromkeys(
        (
            "rocketmq_consumer_group_create_execution_time",
            "rocketmq_consumer_lag_latency",
            "rocketmq_consumer_queueing_latency",
            "rocketmq_finish_message_latency",
            "rocketmq_pop_buffer_scan_time_consume",
            "rocketmq_pop_revive_lag",
            "rocketmq_pop_revive_latency",
            "rocketmq_rpc_latency",
            "rocketmq_storage_message_reserve_time",
            "rocketmq_timer_dequeue_latency",
            "rocketmq_timer_enqueue_latency",
            "rocketmq_topic_create_execution_time",
        ),
        "milliseconds",
    ),
    "rocketmq_delay_message_latency": "seconds",
    "rocketmq_storage_size": "bytes",
}

Samples = Iterable[tuple[tuple[str, ...], float]]


class Buckets(Struct):
    """A histogram's counts; `bounds` are upper ones, in the unit of the metric."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0

    def __post_init__(self) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float, number: int = 1) -> None:
        """Count `number` things of this size."""
        self.counts[bisect_left(self.bounds, value)] += number
        self.total += value * number


class Families:
    """Bound to one process."""

    def __init__(self, cluster: str, node_type: str, node_id: str) -> None:
        self._common = (cluster, node_type, node_id)

    @property
    def common(self) -> dict[str, str]:
        """The common labels and their values."""
        return dict(zip(COMMON, self._common, strict=True))

    def gauge(self, name: str, text: str, samples: Samples, labels: tuple[str, ...] = ()) -> Metric:
        """Values that go up and down."""
        from prometheus_client.metrics_core import GaugeMetricFamily

        family = GaugeMetricFamily(name, text, labels=(*COMMON, *labels))
        for values, number in samples:
            family.add_metric((*self._common, *values), number)
        return family

    def counter(
        self, name: str, text: str, samples: Samples, labels: tuple[str, ...] = ()
    ) -> Metric:
        """Totals; `_total` is added to the name."""
        from prometheus_client.metrics_core import CounterMetricFamily

        family = CounterMetricFamily(name, text, labels=(*COMMON, *labels))
        for values, number in samples:
            family.add_metric((*self._common, *values), number)
        return family

    def one(self, name: str, text: str, number: float) -> Metric:
        """One value."""
        return self.gauge(name, text, [((), number)])

    def histogram(
        self,
        name: str,
        text: str,
        samples: Iterable[tuple[tuple[str, ...], Buckets]],
        labels: tuple[str, ...] = (),
    ) -> Metric:
        """Counts by size."""
        from prometheus_client.metrics_core import HistogramMetricFamily

        family = HistogramMetricFamily(name, text, labels=(*COMMON, *labels))
        for values, buckets in samples:
            bounds = [*(str(float(bound)) for bound in buckets.bounds), "+Inf"]
            counts = map(float, accumulate(buckets.counts))
            family.add_metric(
                (*self._common, *values),
                list(zip(bounds, counts, strict=True)),
                buckets.total,
            )
        return family


def flag(value: bool) -> str:
    """A label that is true or false."""
    return "true" if value else "false"


def page_of(families: Iterable[Metric]) -> bytes:
    """Render the page of /metrics; may run in any thread."""
    from prometheus_client.exposition import generate_latest

    return generate_latest(_Collector([*_in_both_spellings(families)]))


def _in_both_spellings(families: Iterable[Metric]) -> Iterable[Metric]:
    from prometheus_client.metrics_core import Metric

    for family in families:
        yield family
        unit = UNITS.get(family.name)
        if unit is None:
            continue
        name = f"{family.name}_{unit}"
        twin = Metric(name, family.documentation, family.type)
        start = len(family.name)
        twin.samples = [
            sample._replace(name=name + sample.name[start:]) for sample in family.samples
        ]
        yield twin


class _Collector:
    """The collector interface of prometheus-client."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families
