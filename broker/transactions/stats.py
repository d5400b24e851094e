"""What is counted of transactions, and `config/transactionMetrics` in RocketMQ's form.

Names of the metrics: broker semantics, section 11.2; the file: section 5.4, store format, section 12.3.
Promises: the file says how many half messages of each topic are open, at most
`transactionMetricFlushInterval` after it changed; it is for tools and for Apache, and read by nobody
here. Derived: losing it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..metadata import json_file
from ..metrics.families import Buckets
from .core import Half, Outcome

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from ..metrics.families import Families
    from .service import Transactions

LATENCY_BOUNDS_S = (5, 60, 600, 3_600, 43_200, 86_400)
"""Of the time from prepare to commit: 5 s, 1 min, 10 min, 1 h, 12 h, 24 h."""


@dataclass(slots=True)
class TransactionStats:
    """Totals since the start."""

    committed: dict[str, int] = field(default_factory=dict)
    """By topic."""
    rolled_back: dict[str, int] = field(default_factory=dict)
    latency: Buckets = field(default_factory=lambda: Buckets(LATENCY_BOUNDS_S))
    """Commits by the seconds since their half message."""
    asked: int = 0
    unreachable: int = 0
    """Questions for which there was no producer."""
    given_up: int = 0

    def ended(self, half: Half, outcome: Outcome, now_ms: int) -> None:
        """A producer told an outcome."""
        totals = self.committed if outcome is Outcome.COMMITTED else self.rolled_back
        totals[half.topic] = totals.get(half.topic, 0) + 1
        if outcome is Outcome.COMMITTED:
            self.latency.add(max(0, now_ms - half.since_ms) / 1000)


class CountsFile:
    """`config/transactionMetrics`."""

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
        """Go on from the version that is there; what is not ours stays in the file."""
        self._rest = json_file.load(self._path, dict) or {}
        self._version.update(self._rest.get("dataVersion") or {})

    def changed(self) -> None:
        """A half message came or went; needs the running loop."""
        self._version["counter"] += 1
        self._saver.changed()

    async def close(self) -> None:
        """Write what is left."""
        await self._saver.close()

    def render(self) -> str:
        """The text."""
        now_ms = self._wall_ms()
        self._version["timestamp"] = now_ms
        counts = {
            topic: {"count": count, "timeStamp": now_ms}
            for topic, count in sorted(self._counts().items())
        }
        content = {**self._rest, "dataVersion": self._version, "transactionCount": counts}
        return json_file.dumps(content, compact=True)


def transaction_families(transactions: Transactions, families: Families) -> list[Metric]:
    """What Prometheus is told."""
    stats, waiting = transactions.stats, transactions.table.waiting()
    topic = ("topic",)
    return [
        families.histogram(
            "rocketmq_finish_message_latency",
            "Seconds from a half message to its commit.",
            [((), stats.latency)],
        ),
        families.gauge(
            "rocketmq_half_messages",
            "Half messages that wait for a commit or a rollback.",
            [((name,), count) for name, count in waiting.items()],
            topic,
        ),
        families.counter(
            "rocketmq_commit_messages",
            "Transactions that were committed.",
            [((name,), count) for name, count in stats.committed.items()],
            topic,
        ),
        families.counter(
            "rocketmq_rollback_messages",
            "Transactions that were rolled back.",
            [((name,), count) for name, count in stats.rolled_back.items()],
            topic,
        ),
        families.counter(
            "cometmq_transaction_checks",
            "Questions about the outcome of a transaction, by what became of them.",
            [
                (("asked",), stats.asked),
                (("no_producer",), stats.unreachable),
                (("given_up",), stats.given_up),
            ],
            ("result",),
        ),
    ]
