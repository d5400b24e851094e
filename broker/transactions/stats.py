"""Transaction counters, and `config/transactionMetrics` in RocketMQ's format.

Metric names: docs/formats/broker-semantics.md, section 11.2; file: section 5.4, and
docs/formats/store-format.md, section 12.3. The file holds the number of open half messages per
topic, written at most `transactionMetricFlushInterval` after a change; it is for tools and Apache
and never read here, except for its version. Derived: losing it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from ...front.metrics.families import Buckets
from ..base import json_file
from .core import HalfMessage, Outcome

#: Buckets of the time from prepare to commit: 5 s, 1 min, 10 min, 1 h, 12 h, 24 h.
LATENCY_BOUNDS_S = (5, 60, 600, 3_600, 43_200, 86_400)


class TransactionStats(Struct):
    """Totals since the start."""

    #: By topic.
    committed: dict[str, int] = field(default_factory=dict)
    rolled_back: dict[str, int] = field(default_factory=dict)
    #: Commits by the seconds since their half message, by topic.
    latency: dict[str, Buckets] = field(default_factory=dict)
    asked: int = 0
    #: Checks for which there was no producer.
    unreachable: int = 0
    given_up: int = 0
    #: Half messages that retention deleted before their end.
    lost: int = 0

    def ended(self, half: HalfMessage, outcome: Outcome, now_ms: int) -> None:
        """Count an outcome sent by a producer."""
        totals = self.committed if outcome is Outcome.COMMITTED else self.rolled_back
        totals[half.topic] = totals.get(half.topic, 0) + 1
        if outcome is Outcome.COMMITTED:
            latency = self.latency.get(half.topic)
            if latency is None:
                latency = self.latency[half.topic] = Buckets(LATENCY_BOUNDS_S)
            latency.add(max(0, now_ms - half.since_ms) / 1000)


class CountsFile:
    """The file `config/transactionMetrics`."""

    def __init__(
        self,
        path: Path,
        counts: Callable[[], Mapping[str, int]],
        wall_ms: Callable[[], int],
        interval_ms: int,
    ) -> None:
        self._counts = counts
        self._wall_ms = wall_ms
        self._version: dict[str, Any] = {"counter": 0, "stateVersion": 0}
        self._rest: dict[Any, Any] = {}
        self._path = path
        self._saver = json_file.Saver(path, self.render, interval_ms / 1000)

    def load(self) -> None:
        """Continue from the stored version; foreign fields stay in the file."""
        self._rest = json_file.load(self._path, dict) or {}
        self._version.update(self._rest.get("dataVersion") or {})

    def changed(self) -> None:
        """Schedule a write after a half message was added or removed; needs the running loop."""
        self._version["counter"] += 1
        self._saver.changed()

    async def close(self) -> None:
        """Write pending changes."""
        await self._saver.close()

    def render(self) -> str:
        """Return the file's text."""
        now_ms = self._wall_ms()
        self._version["timestamp"] = now_ms
        counts = {
            topic: {"count": count, "timeStamp": now_ms}
            for topic, count in sorted(self._counts().items())
        }
        content = {**self._rest, "dataVersion": self._version, "transactionCount": counts}
        return json_file.dumps(content, compact=True)
