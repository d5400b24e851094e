"""Streaming reader: micro-batches by ranges of the log, with limits and Trigger.AvailableNow.

Offsets are next offsets and ends are exclusive, so restarts neither repeat nor skip messages. A
batch that Spark repeats has the same tasks (`$plan`). New queues start at their first message.
Batches end at or below the readable end of the log. Progress is committed to a consumer group only
after Spark has committed the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ...client.clock import steady_s
from . import tasks
from .log import BrokerLog, Log
from .named_topics import warn_missing_topics
from .offsets import EARLIEST, Offsets, OffsetSpec, Queue, from_json, to_json
from .opening import open_log
from .options import SourceOptions
from .planning import QueueRanges, available_ranges, limit_batch, plan_tasks, resolve_offsets
from .tasks import LogPartition

if TYPE_CHECKING:
    import pyarrow as pa

_SPLIT_BYTES = "splitBytes"


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Source of one streaming query. It stays on the driver; tasks get only its options."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._opened: Log | None = None
        self._target: Offsets | None = None  # Trigger.AvailableNow ends here
        self._waiting_since: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_options"])  # type: ignore[misc]

    # -- offsets ------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Called by Spark for a query without a checkpoint."""
        log, where = self._log(), self._options.starting or OffsetSpec("latest")
        logs = log.snapshot()
        warn_missing_topics(self._options, log, logs)
        return self._to_json(resolve_offsets(log, logs, where, EARLIEST))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Called by Spark: the limits of the options."""
        if self._options.max_bytes:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.max_rows:
            return ReadMaxRows(self._options.max_rows)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Called by Spark: return the end of the next micro-batch."""
        log = self._log()
        begun, _ = from_json(start)
        ends = self._ends(log.snapshot(), begun)
        ranges = {queue: (self._start(begun, queue), end) for queue, end in ends.items()}
        waiting = sum(end - begin for begin, end in ranges.values())
        if not waiting or self._waits(waiting):
            return start
        found = limit_batch(
            log,
            ranges,
            max_rows=limit.max_rows if isinstance(limit, ReadMaxRows) else 0,
            max_bytes=limit.max_bytes if isinstance(limit, ReadMaxBytes) else 0,
        )
        return self._to_json({**begun, **found})

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Called by Spark for its progress reports."""
        return to_json(_ends_of(self._log().snapshot()))

    def prepareForTriggerAvailableNow(self) -> None:
        """Called by Spark: read up to the current ends."""
        self._target = _ends_of(self._log().snapshot())

    def _ends(self, logs: dict[str, BrokerLog], begun: Offsets) -> Offsets:
        """Return every queue's end, at least its start."""
        ends = _ends_of(logs)
        if self._target is not None:
            ends = {queue: min(ends.get(queue, end), end) for queue, end in self._target.items()}
        firsts = {
            (broker, *name): first
            for broker, one in logs.items()
            for name, (first, _) in one.queues.items()
        }
        self._firsts = firsts
        return {queue: max(end, begun.get(queue, 0)) for queue, end in ends.items()}

    def _start(self, begun: Offsets, queue: Queue) -> int:
        """Return a queue's next offset; for a new queue its first message."""
        found = begun.get(queue)
        return self._firsts.get(queue, 0) if found is None else found

    def _waits(self, waiting: int) -> bool:
        """Whether to wait for more messages (`minOffsetsPerTrigger`)."""
        options = self._options
        if self._target is not None or waiting >= options.min_rows:
            self._waiting_since = None
            return False
        now = steady_s()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < options.max_delay_ms / 1000:
            return True
        self._waiting_since = None
        return False

    def _to_json(self, offsets: Offsets) -> dict[str, Any]:
        return to_json(offsets, {_SPLIT_BYTES: self._options.split_bytes})

    # -- tasks --------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Called by Spark: the tasks of one micro-batch."""
        log = self._log()
        begun, _ = from_json(start)
        ends, plan = from_json(end)
        ranges: QueueRanges = {
            queue: (begun.get(queue, 0), stop)
            for queue, stop in ends.items()
            if begun.get(queue, 0) < stop
        }
        if not ranges:
            return []
        there = available_ranges(
            ranges, log.snapshot(), frozenset(begun), fail_on_loss=self._options.fail_on_loss
        )
        size = plan.get(_SPLIT_BYTES, self._options.split_bytes)
        return [LogPartition(one) for one in plan_tasks(log, there, size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called by Spark, in a task."""
        return tasks.read(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Called by Spark when a batch is committed."""
        if self._options.consumer_group:
            from .wire import report_progress

            report_progress(self._options, from_json(end)[0])

    def stop(self) -> None:
        """Called by Spark at the end of the query."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _log(self) -> Log:
        if self._opened is None:
            self._opened = open_log(self._options)
        return self._opened


def _ends_of(logs: dict[str, BrokerLog]) -> Offsets:
    return {
        (broker, *name): end
        for broker, one in logs.items()
        for name, (_, end) in one.queues.items()
    }
