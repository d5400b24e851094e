"""Latencies of a run: an HDR histogram, and its curve over time.

Histograms keep three significant digits from 1 us to 10 minutes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hdrh.histogram import HdrHistogram

_LARGEST_US = 600_000_000
#: Percentiles of the HTML page, equally spaced on its axis of nines.
PERCENTILES = (10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99, 99.995, 99.999, 100)


def _histogram() -> Any:
    return HdrHistogram(1, _LARGEST_US, 3)


def _ms(us: float) -> float:
    return round(us / 1_000, 3)


@dataclass(frozen=True, slots=True)
class Point:
    """One second of a run."""

    second: int
    messages: int
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None


@dataclass(slots=True)
class Latencies:
    """Records operations of one or more messages."""

    messages: int = 0
    points: list[Point] = field(default_factory=list)
    _all: Any = field(default_factory=_histogram)
    _second: Any = field(default_factory=_histogram)
    _messages_before: int = 0

    def record(self, latency_ns: int, messages: int = 1) -> None:
        """Record one operation; a latency outside the range counts as the nearest bound."""
        us = min(max(latency_ns // 1_000, 1), _LARGEST_US)
        self._all.record_value(us)
        self._second.record_value(us)
        self.messages += messages

    def end_second(self) -> Point:
        """Add a point to the curve: the operations since the last one."""
        second, messages = self._second, self.messages - self._messages_before
        at: list[float | None] = [None, None, None]
        if second.get_total_count():
            at = [_ms(second.get_value_at_percentile(each)) for each in (50, 99, 100)]
        point = Point(len(self.points) + 1, messages, *at)
        self.points.append(point)
        self._messages_before = self.messages
        self._second.reset()
        return point

    def summary(self) -> dict[str, float] | None:
        """Return the latencies in ms, or None without an operation."""
        if not self._all.get_total_count():
            return None
        names = {"p50": 50, "p90": 90, "p99": 99, "p99_9": 99.9, "max": 100}
        found = {name: _ms(self._all.get_value_at_percentile(at)) for name, at in names.items()}
        return {"mean": _ms(self._all.get_mean_value()), **found}

    def percentiles(self) -> Sequence[tuple[float, float]]:
        """Return the percentiles with their latencies in ms."""
        if not self._all.get_total_count():
            return []
        return [(at, _ms(self._all.get_value_at_percentile(at))) for at in PERCENTILES]
