"""Pop's part of a scrape, under RocketMQ 5's names (broker semantics, section 11.3): what the journal of
pop state writes, what comes back, and how far the revive topic is. Read from the parts' own counts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ..journal.revive_codec import ACK_TAG, BATCH_ACK_TAG, CK_TAG
from ..journal.service import JournalService

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from ..node import Node
    from .families import Families, Samples

_TYPES = {CK_TAG: "CK", ACK_TAG: "ACK", BATCH_ACK_TAG: "BATCH_ACK"}


def pop_families(node: Node, families: Families) -> list[Metric]:
    """Everything about pop state; nothing before the journal is there."""
    journal = node.journal
    if not isinstance(journal, JournalService):
        return []
    return [
        *_records(journal, families),
        *_revived(node, families),
        *_places(node, journal, families),
        *_buffers(journal, families),
    ]


def _records(journal: JournalService, families: Families) -> list[Metric]:
    written: Counter[tuple[str, ...]] = Counter()
    for (tag, status, queue_id), number in journal.writer.counts.items():
        written[_TYPES[tag], status, str(queue_id)] += number
    surfaced = [((_TYPES[CK_TAG], str(queue)), n) for queue, n in journal.surfaced.items()]
    return [
        families.counter(
            "rocketmq_pop_revive_in_message",
            "Checkpoints and acks written for the revive topic, and those refused for now.",
            written.items(),
            ("revive_message_type", "put_status", "queue_id"),
        ),
        families.counter(
            "rocketmq_pop_revive_out_message",
            "Checkpoints that surfaced in the revive topic.",
            surfaced,
            ("revive_message_type", "queue_id"),
        ),
    ]


def _revived(node: Node, families: Families) -> list[Metric]:
    samples: Samples = [
        ((topic, group, "PUT_OK"), number)
        for (topic, group), number in node.pop.reviver.revived.items()
    ]
    return [
        families.counter(
            "rocketmq_pop_revive_retry_messages",
            "Messages whose invisible time was over, copied to their retry topic.",
            samples,
            ("topic", "consumer_group", "put_status"),
        )
    ]


def _places(node: Node, journal: JournalService, families: Families) -> list[Metric]:
    now_ms = node.clock.wall_ms()
    rows = journal.revive_rows()
    return [
        families.gauge(
            "rocketmq_pop_revive_lag",
            "Records of a queue of the revive topic behind the first that is not settled.",
            [((str(queue_id),), lag) for queue_id, lag, _ in rows],
            ("queue_id",),
        ),
        families.gauge(
            "rocketmq_pop_revive_latency",
            "For how long that one's messages have been due, ms.",
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
            "Batches in flight that are not written yet.",
            sizes["buffered"],
        ),
        families.one(
            "rocketmq_pop_offset_buffer_size",
            "Checkpoints in the log that are not finished with.",
            sizes["written"],
        ),
        families.histogram(
            "rocketmq_pop_buffer_scan_time_consume",
            "Time of one look at what is to be written, ms.",
            [((), journal.writer.took)],
        ),
    ]
