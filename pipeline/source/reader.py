"""Batch reader: plans on the driver, reads in tasks.

A read of directories without start and end options is planned from the log alone, so that damaged
or missing queues do not matter. With such options, or from brokers, queues locate the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from . import tasks
from .named_topics import refuse_missing_topics
from .offsets import EARLIEST, LATEST, OffsetSpec
from .opening import open_log
from .options import SourceOptions
from .planning import (
    PlannedTask,
    available_ranges,
    narrowed,
    plan_tasks,
    resolve_offsets,
)
from .store_log import StoreLog
from .tasks import LogPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter


def plan(options: SourceOptions, asked: SourceOptions | None = None) -> list[PlannedTask]:
    """Return the tasks of a batch read. `asked`: the options without pushed filters."""
    asked = asked or options
    log = open_log(options)
    try:
        whole_log = options.starting is None and options.ending is None
        if isinstance(log, StoreLog) and whole_log and options.assigned is None:
            logs = log.log_bounds()
            refuse_missing_topics(asked, log, logs)
            size = part_bytes(options, sum(one.log_end - one.log_start for one in logs.values()))
            return [
                PlannedTask(split, None)
                for broker, one in logs.items()
                for split in log.split_range(broker, one.log_start, one.log_end, size)
            ]
        logs = log.snapshot()
        refuse_missing_topics(asked, log, logs)
        starts = resolve_offsets(log, logs, options.starting or OffsetSpec("earliest"), EARLIEST)
        ends = resolve_offsets(log, logs, options.ending or OffsetSpec("latest"), LATEST)
        ranges = {queue: (start, ends[queue]) for queue, start in starts.items()}
        there = available_ranges(ranges, logs, frozenset(ranges), fail_on_loss=options.fail_on_loss)
        size = part_bytes(options, sum(one.log_end - one.log_start for one in logs.values()))
        return plan_tasks(log, narrowed(there, options.topics.offsets), size)
    finally:
        log.close()


def part_bytes(options: SourceOptions, log_bytes: int) -> int:
    """Return the size of a part: `splitBytes`, or less to reach `minPartitions`."""
    if not options.min_partitions:
        return options.split_bytes
    return max(min(options.split_bytes, log_bytes // options.min_partitions), 1)


class LogReader(DataSourceReader):
    """Reader without filter pushdown, which Spark refuses unless its setting is on."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = self._asked = options

    def partitions(self) -> list[InputPartition]:
        """Called by Spark, on the driver."""
        return [LogPartition(one) for one in plan(self.options, self._asked)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called by Spark, in a task."""
        return tasks.read(self.options, partition)


class FilteringLogReader(LogReader):
    """Reader with filters on topic (`filterPushdown`)."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Apply the supported filters. Yield the others, which Spark applies."""
        from .filter_pushdown import apply_filter  # Spark 4.0 has no filters

        for one in filters:
            found = apply_filter(self.options, one)
            if found is None:
                yield one
            else:
                self.options = found
