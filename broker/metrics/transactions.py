"""The families of transactions (docs/formats/broker-semantics.md, section 11.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from ...front.metrics.families import Families
    from ..transactions.service import Transactions


def transaction_families(transactions: Transactions, families: Families) -> list[Metric]:
    """Yield the Prometheus metrics."""
    stats, waiting = transactions.stats, transactions.table.waiting()
    topic = ("topic",)
    return [
        families.histogram(
            "rocketmq_finish_message_latency",
            "Seconds from a half message to its commit.",
            [((name,), latency) for name, latency in stats.latency.items()],
            topic,
        ),
        families.gauge(
            "rocketmq_half_messages",
            "Half messages without a commit or rollback.",
            [((name,), count) for name, count in waiting.items()],
            topic,
        ),
        families.counter(
            "rocketmq_commit_messages",
            "Committed transactions.",
            [((name,), count) for name, count in stats.committed.items()],
            topic,
        ),
        families.counter(
            "rocketmq_rollback_messages",
            "Rolled back transactions.",
            [((name,), count) for name, count in stats.rolled_back.items()],
            topic,
        ),
        families.counter(
            "cometmq_transaction_checks",
            "Transaction checks by result.",
            [
                (("asked",), stats.asked),
                (("no_producer",), stats.unreachable),
                (("given_up",), stats.given_up),
                (("lost",), stats.lost),
            ],
            ("result",),
        ),
    ]
