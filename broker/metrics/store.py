"""Metrics of the store: sizes, lag, rates, put latency, disk and retention.

Names are RocketMQ 5's where they exist (docs/formats/broker-semantics.md, section 11.3); names with
`cometmq_` are ours. Values come from the store's statistics on the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from ...store.stats import StoreStats

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from ...front.metrics.families import Families
    from ...store.message_store import MessageStore

_STORAGE = ("storage_type", "storage_medium")
_STORAGE_VALUES = ("local", "disk")
_US_PER_S = 1_000_000
_PRESSURES = ("none", "any_hour", "forced", "stop")

Samples = Iterable[tuple[tuple[str, ...], float]]


class Family(Protocol):
    """Makes a family with the labels that every metric has."""

    def __call__(
        self, name: str, text: str, samples: Samples, labels: tuple[str, ...] = ()
    ) -> Metric: ...


def store_families(
    store: MessageStore, confirm: int, now_ms: int, families: Families
) -> list[Metric]:
    """Metrics of the store; `confirm` is the confirm offset, `now_ms` the wall time."""
    gauge, counter = families.gauge, families.counter
    stats = store.stats()
    waiting_from = store.retention.waiting_from()
    return [
        *_standard(store, stats, now_ms, gauge),
        gauge(
            "cometmq_log_offset",
            "Physical offsets of the commit log, by name; from `waiting` on, delayed messages and "
            "open transactions wait.",
            [
                (("start",), stats.log_start),
                (("end",), stats.log_end),
                (("flushed",), store.flushed_offset),
                (("confirm",), confirm),
                (("dispatched",), store.dispatched_offset),
                (("archived",), stats.archive_watermark),
                *([(("waiting",), waiting_from)] if waiting_from is not None else []),
            ],
            ("position",),
        ),
        gauge("cometmq_store_segments", "Files of the log.", [((), stats.segments)]),
        gauge("cometmq_store_queues", "Consume queues.", [((), stats.queues)]),
        gauge(
            "cometmq_index_behind_bytes",
            "Bytes of the log that are in the consume queues and not in the index yet.",
            [((), stats.index_behind)],
        ),
        counter(
            "cometmq_disk_calls",
            "System calls that write or flush files.",
            [((name,), number) for name, number in sorted(store.disk.counts.items())],
            ("call",),
        ),
        *_traffic(stats, gauge, counter),
        _put_latency(stats, families.common),
        *_disk_space(store, stats, gauge),
    ]


def _standard(store: MessageStore, stats: StoreStats, now_ms: int, gauge: Family) -> list[Metric]:
    reserved_ms = _reserve_time_ms(store, now_ms)
    return [
        gauge(
            "rocketmq_storage_size",
            "Bytes of the log.",
            [(_STORAGE_VALUES, stats.log_end - stats.log_start)],
            _STORAGE,
        ),
        gauge(
            "rocketmq_storage_flush_behind_bytes",
            "Bytes of the log that are not flushed yet.",
            [(_STORAGE_VALUES, stats.flush_behind)],
            _STORAGE,
        ),
        gauge(
            "rocketmq_storage_dispatch_behind_bytes",
            "Bytes of the log that are not in the consume queues yet.",
            [(_STORAGE_VALUES, stats.dispatch_behind)],
            _STORAGE,
        ),
        gauge(
            "rocketmq_storage_message_reserve_time",
            "Milliseconds since the oldest message of the log was stored.",
            [] if reserved_ms is None else [(_STORAGE_VALUES, reserved_ms)],
            _STORAGE,
        ),
    ]


def _reserve_time_ms(store: MessageStore, now_ms: int) -> int | None:
    stored_ms = store.log.oldest_store_ms()
    return None if stored_ms is None else max(now_ms - stored_ms, 0)


def _traffic(stats: StoreStats, gauge: Family, counter: Family) -> list[Metric]:
    windows = [(f"{rates.window_s}s", rates) for rates in stats.rates]
    return [
        counter("cometmq_store_put_messages", "Records appended.", [((), stats.put_messages)]),
        counter("cometmq_store_put_bytes", "Bytes appended.", [((), stats.put_bytes)]),
        counter("cometmq_store_put_batches", "Appends.", [((), stats.put_batches)]),
        counter("cometmq_store_put_refused", "Records refused.", [((), stats.put_refused)]),
        counter("cometmq_store_get_messages", "Records read.", [((), stats.get_messages)]),
        counter("cometmq_store_get_bytes", "Bytes read.", [((), stats.get_bytes)]),
        counter(
            "cometmq_store_gets",
            "Reads of a queue.",
            [(("found",), stats.gets - stats.get_misses), (("nothing",), stats.get_misses)],
            ("result",),
        ),
        counter(
            "cometmq_queue_units_repaired",
            "Units of consume queues that did not match the log and were written again.",
            [((), stats.queue_units_repaired)],
        ),
        counter(
            "cometmq_store_record_mismatches",
            "Reads of damaged records, by the part of the record that did not match.",
            [((part,), count) for part, count in sorted(stats.record_mismatches.items())],
            ("part",),
        ),
        gauge(
            "cometmq_store_missing_messages",
            "Messages that consumers do not get because their records are damaged; at most 1000 "
            "are counted.",
            [((), stats.missing_messages)],
        ),
        counter(
            "cometmq_index_files_damaged",
            "Index files that did not match their digest and were rebuilt.",
            [((), stats.index_files_damaged)],
        ),
        gauge(
            "cometmq_store_put_tps",
            "Records appended a second.",
            [((name,), rates.put_messages) for name, rates in windows],
            ("window",),
        ),
        gauge(
            "cometmq_store_get_tps",
            "Records read a second.",
            [((name,), rates.get_messages) for name, rates in windows],
            ("window",),
        ),
    ]


def _put_latency(stats: StoreStats, common: dict[str, str]) -> Metric:
    """A histogram; its sum is an estimate from the middle of the buckets."""
    from prometheus_client.metrics_core import HistogramMetricFamily

    family = HistogramMetricFamily(
        "cometmq_store_put_seconds",
        "Time inside one append, counted for each of its records.",
        labels=tuple(common),
    )
    bounds = [bound for bound, _ in stats.put_latency]
    counts = [count for _, count in stats.put_latency]
    total = 0.0
    lower = 0
    for bound, count in stats.put_latency:
        upper = stats.put_longest_us if bound is None else bound
        total += count * (lower + max(upper, lower)) / 2 / _US_PER_S
        lower = upper
    buckets = [
        ("+Inf" if bound is None else str(bound / _US_PER_S), float(count))
        for bound, count in zip(bounds, accumulate(counts), strict=True)
    ]
    family.add_metric(tuple(common.values()), buckets, total)
    return family


def _disk_space(store: MessageStore, stats: StoreStats, gauge: Family) -> list[Metric]:
    return [
        gauge(
            "cometmq_store_disk_use_percent",
            "Disk use that retention compares with its limits, percent; -1: unknown.",
            [((), stats.disk_use)],
        ),
        gauge(
            "cometmq_store_disk_pressure",
            "1 for the level of disk pressure that retention acts on.",
            [((name,), float(name == stats.pressure)) for name in _PRESSURES],
            ("pressure",),
        ),
        gauge(
            "cometmq_store_writable",
            "1 while the store accepts messages.",
            [((), float(not stats.refusal))],
        ),
        gauge(
            "cometmq_store_paused",
            "1 while the store refuses messages because the disk is full.",
            [((), float(store.paused))],
        ),
    ]
