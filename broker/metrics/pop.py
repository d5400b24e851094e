"""Metrics of pops, under RocketMQ 5's names (docs/formats/broker-semantics.md, section 11.3).

Journal records written and surfaced, retry copies, and the lag of the revive topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..journal.revive_codec import ACK_TAG, BATCH_ACK_TAG, CK_TAG

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from ...front.metrics.families import Families, Samples
    from ..journal.service import JournalService

_TYPES = {CK_TAG: "CK", ACK_TAG: "ACK", BATCH_ACK_TAG: "BATCH_ACK"}


def pop_families(
    journal: JournalService, revived: Mapping[tuple[str, str], int], now_ms: int, families: Families
) -> list[Metric]:
    """Metrics of the pop state; `revived` counts retry copies by topic and group."""
    return [
        *_records(journal, families),
        *_revived(revived, families),
        *_revive_queues(journal, now_ms, families),
        *_buffers(journal, families),
    ]


def _records(journal: JournalService, families: Families) -> list[Metric]:
    written = [
        ((_TYPES[tag], status, topic, group), number)
        for (tag, status, topic, group), number in journal.writer.counts.items()
    ]
    surfaced = [
        ((_TYPES[CK_TAG], str(queue), topic, group), number)
        for (queue, topic, group), number in journal.surfaced.items()
    ]
    return [
        families.counter(
            "rocketmq_pop_revive_in_message",
            "Checkpoints and acknowledgements written to the revive topic, by put_status.",
            written,
            ("revive_message_type", "put_status", "topic", "consumer_group"),
        ),
        families.counter(
            "rocketmq_pop_revive_out_message",
            "Checkpoints that the timers delivered to the revive topic.",
            surfaced,
            ("revive_message_type", "queue_id", "topic", "consumer_group"),
        ),
    ]


def _revived(revived: Mapping[tuple[str, str], int], families: Families) -> list[Metric]:
    samples: Samples = [
        ((topic, group, "PUT_OK"), number) for (topic, group), number in revived.items()
    ]
    return [
        families.counter(
            "rocketmq_pop_revive_retry_messages",
            "Messages copied to their retry topic after their invisible time.",
            samples,
            ("topic", "consumer_group", "put_status"),
        )
    ]


def _revive_queues(journal: JournalService, now_ms: int, families: Families) -> list[Metric]:
    rows = journal.revive_rows()
    return [
        families.gauge(
            "rocketmq_pop_revive_lag",
            "Records of a revive queue from the first unsettled checkpoint to the end.",
            [((str(queue_id),), lag) for queue_id, lag, _ in rows],
            ("queue_id",),
        ),
        families.gauge(
            "rocketmq_pop_revive_latency",
            "Time since the first unsettled checkpoint of a revive queue became due, ms.",
            [
                ((str(queue_id),), max(0, now_ms - due_ms) if due_ms is not None else 0)
                for queue_id, _, due_ms in rows
            ],
            ("queue_id",),
        ),
    ]


def _buffers(journal: JournalService, families: Families) -> list[Metric]:
    sizes = dict(journal.core.sizes())
    return [
        families.one(
            "rocketmq_pop_checkpoint_buffer_size",
            "Checkpoints of batches in flight that are not in the log yet.",
            sizes["buffered"],
        ),
        families.one(
            "rocketmq_pop_offset_buffer_size",
            "Checkpoints in the log that are not settled.",
            sizes["written"],
        ),
        families.gauge(
            "cometmq_journal_batches",
            "Batches in flight, by the state of their checkpoint: buffered, written, surfaced.",
            [((state,), number) for state, number in sizes.items()],
            ("state",),
        ),
        families.histogram(
            "rocketmq_pop_buffer_scan_time_consume",
            "Duration of one scan of the checkpoint buffer, ms.",
            [((), journal.writer.took)],
        ),
    ]
