"""Metric families with the labels that every metric of a broker has.

Common labels: cluster, node type and node name (docs/formats/broker-semantics.md, section 11.1).
prometheus-client is imported by the first scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from ..config import BrokerConfig

COMMON = ("cluster", "node_type", "node_id")

Samples = Iterable[tuple[tuple[str, ...], float]]


@dataclass(slots=True)
class Buckets:
    """A histogram's counts; `bounds` are upper ones, in the unit of the metric."""

    bounds: Sequence[int]
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
    """Bound to one broker."""

    def __init__(self, config: BrokerConfig) -> None:
        self._common = (
            config.broker_cluster_name,
            "broker",
            f"{config.broker_name}-{config.broker_id}",
        )

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
