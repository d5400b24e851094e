"""The statistics of a store at one moment, from all of its parts."""

from typing import TYPE_CHECKING

from .stats import StoreStats

if TYPE_CHECKING:
    from .message_store import MessageStore


def store_stats(store: "MessageStore") -> StoreStats:
    """Return counters, positions and disk state of this moment."""
    meter, log, retention = store.meter, store.log, store.retention
    log_end = log.readable_end
    return StoreStats(
        put_messages=meter.put_messages,
        put_bytes=meter.put_bytes,
        put_batches=meter.put_batches,
        put_refused=meter.put_refused,
        put_latency=meter.latency_buckets(),
        put_longest_us=meter.longest_ns // 1_000,
        gets=meter.gets,
        get_misses=meter.get_misses,
        queue_units_repaired=store.reader.units.repaired,
        record_mismatches=dict(store.reader.check.mismatches),
        missing_messages=len(store.reader.gaps),
        index_files_damaged=store.index.damaged,
        get_messages=meter.get_messages,
        get_bytes=meter.get_bytes,
        rates=meter.rates(),
        log_start=log.start,
        log_end=log_end,
        flush_behind=max(log_end - store.flushed_offset, 0),
        dispatch_behind=max(log_end - store.dispatched_offset, 0),
        index_behind=store.index.behind,
        segments=len(log.segments),
        segment_size=store.config.mapped_file_size_commit_log,
        queues=len(store.queue_table.queues),
        disk_use=retention.disk_use,
        pressure=retention.pressure.name.lower(),
        archive_watermark=retention.watermark.value,
        refusal=store.refusal,
    )
