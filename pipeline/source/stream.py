"""Streaming reader: micro-batches by ranges of the log, with limits and Trigger.AvailableNow.

Offsets are next offsets and ends are exclusive, so restarts neither repeat nor skip messages. A
batch that Spark repeats has the same tasks (`$plan`). New queues start at their first message. Each
batch begins with a comparison of its checkpoint with the logs (`continuity.py`).
Batches end at or below the readable end of the log. Progress is committed to a consumer group only
after Spark has committed the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ...client.clock import steady_s
from ..errors import OptionError
from ..spark_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from . import tasks
from .channel import pause
from .continuity import Gap, compare, missing_brokers, report_gaps
from .log import BrokerLog, Log
from .marks import Mark
from .named_topics import warn_missing_topics
from .offsets import EARLIEST, LOST, Checkpoint, Offsets, OffsetSpec, Queue, to_json
from .opening import open_log
from .options import SourceOptions
from .planning import QueueRanges, available_ranges, limit_batch, plan_tasks, resolve_offsets
from .tasks import LogPartition

if TYPE_CHECKING:
    import pyarrow as pa


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Source of one streaming query. It stays on the driver; tasks get only its options."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._opened: Log | None = None
        self._target: Offsets | None = None  # Trigger.AvailableNow ends here
        self._begun_s = -math.inf  # when the last batch began
        self._lost_before = 0  # messages that the checkpoint counts as lost
        self._lost = 0  # messages that the next one adds
        self._is_reported = False  # the consumer group exists
        self._agreed: tuple[Checkpoint, dict[str, BrokerLog]] | None = None  # without gaps
        self._is_checked = False  # the checkpoint's brokers are known

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
        offsets = resolve_offsets(log, logs, where, EARLIEST)
        return self._checkpoint(offsets, self._marks(logs)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Called by Spark: the limits of the options."""
        if self._options.max_bytes:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.max_rows:
            return ReadMaxRows(self._options.max_rows)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Called by Spark: return the end of the next micro-batch. Raises DataLossError."""
        known = self._known(start)
        logs, gaps = self._compared(known)
        report_gaps(gaps, fail_on_loss=self._options.fail_on_loss)
        self._lost_before = known.lost
        self._lost += sum(gap.lost for gap in gaps)
        begun = _after_gaps(known.offsets, gaps)
        ends = self._ends(logs, begun)
        ranges = {queue: (begun[queue], end) for queue, end in ends.items()}
        waiting = sum(end - begin for begin, end in ranges.values())
        if not gaps and (not waiting or self._waits(waiting)):
            return start
        self._check_group(begun)
        found = limit_batch(
            self._log(),
            ranges,
            max_rows=limit.max_rows if isinstance(limit, ReadMaxRows) else 0,
            max_bytes=limit.max_bytes if isinstance(limit, ReadMaxBytes) else 0,
        )
        begins = {
            queue: begin
            for queue, (begin, _) in ranges.items()
            if begin != known.offsets.get(queue, 0)
        }
        marks = {**known.marks, **self._marks(logs)}
        return self._checkpoint({**begun, **found}, marks, begins).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Called by Spark for its progress reports."""
        lost = self._lost_before + self._lost
        ends = to_json(_bounds_of(self._log().snapshot(), 1))
        return {**ends, LOST: lost} if lost else ends

    def prepareForTriggerAvailableNow(self) -> None:
        """Called by Spark: read up to the current ends."""
        self._target = _bounds_of(self._log().snapshot(), 1)

    def _check_group(self, begun: Offsets) -> None:
        """Report the progress before the first batch: an error later would follow its output."""
        if self._options.consumer_group and not self._is_reported:
            self._report(begun)
            self._is_reported = True

    def _report(self, offsets: Offsets) -> None:
        if self._options.consumer_group:
            from .wire import report_progress

            report_progress(self._options, offsets)

    def _ends(self, logs: dict[str, BrokerLog], begun: Offsets) -> Offsets:
        """Return every queue's end, at least its start. Adds new queues to `begun`."""
        ends = _bounds_of(logs, 1)
        if self._target is not None:
            ends = {queue: min(ends.get(queue, end), end) for queue, end in self._target.items()}
        firsts = _bounds_of(logs, 0)
        return {
            queue: max(end, begun.setdefault(queue, firsts.get(queue, 0)))
            for queue, end in ends.items()
        }

    def _waits(self, waiting: int) -> bool:
        """Whether to wait for more messages (`minOffsetsPerTrigger`).

        The first batch of a query does not wait, as with Kafka's source.
        """
        options = self._options
        now = steady_s()
        if (
            self._target is None
            and waiting < options.min_rows
            and now - self._begun_s < options.max_delay_ms / 1000
        ):
            return True
        self._begun_s = now
        return False

    def _compared(self, known: Checkpoint) -> tuple[dict[str, BrokerLog], list[Gap]]:
        """Return the logs, and what they lack of a checkpoint.

        Look twice, because retention may delete between two reads. A cluster gets `wireTimeoutMs`
        for what a failover or a restart may show for a moment.
        """
        log, access = self._log(), self._options.access
        stop = steady_s() + (access.timeout_ms / 1000 if access is not None else 0)
        looks = 0
        while True:
            logs = log.snapshot()
            if self._agreed == (known, logs):
                return logs, []  # nothing has changed: an idle query makes no more calls
            gaps = compare(
                log, logs, known, self._wants, named=self._options.topics.topics is not None
            )
            gaps += self._missing(known, logs)
            looks += 1
            if not gaps or (looks > 1 and not any(gap.may_pass for gap in gaps)):
                break
            if looks > 1:
                if steady_s() >= stop:
                    break
                pause()
        self._is_checked = True
        self._agreed = None if gaps else (known, logs)
        return logs, gaps

    def _missing(self, known: Checkpoint, logs: dict[str, BrokerLog]) -> list[Gap]:
        """Compare the names of brokers when a query starts. Raises OptionError for directories."""
        names = [] if self._is_checked else missing_brokers(known, logs)
        if names and self._options.access is None:
            raise OptionError(
                f"The checkpoint is of broker {names[0]!r}, and path has stores of "
                f"{', '.join(sorted(logs))}. Name the stores as the checkpoint does with "
                f"brokerName={names[0]}, or use the checkpoint of these stores."
            )
        text = "is in the checkpoint and not in the cluster, which has"
        return [
            Gap(f"Broker {name!r} {text} {', '.join(sorted(logs))}.", may_pass=True)
            for name in names
        ]

    def _wants(self, queue: Queue) -> bool:
        broker, topic, queue_id = queue
        return self._options.queue_filter(broker).matches_queue(topic, queue_id)

    def _known(self, document: dict[str, Any]) -> Checkpoint:
        """Return the checkpoint in a document, with the names that brokers have now."""
        known = Checkpoint.of(document)
        former = self._log().former_names
        if known.marks or not former:
            return known
        offsets = {
            (former.get(broker, broker), topic, queue_id): offset
            for (broker, topic, queue_id), offset in known.offsets.items()
        }
        return replace(known, offsets=offsets)

    def _marks(self, logs: dict[str, BrokerLog]) -> dict[str, Mark]:
        found = {broker: self._log().last_mark(broker) for broker in logs}
        return {broker: mark for broker, mark in found.items() if mark is not None}

    def _checkpoint(
        self, offsets: Offsets, marks: dict[str, Mark], begins: Offsets | None = None
    ) -> Checkpoint:
        self._lost_before, self._lost = self._lost_before + self._lost, 0
        size = self._options.split_bytes
        return Checkpoint(offsets, size, marks, begins or {}, self._lost_before)

    # -- tasks --------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Called by Spark: the tasks of one micro-batch. Raises DataLossError."""
        known, done = self._known(start), self._known(end)
        begins = done.begins if done.is_compared else self._compared_late(known)
        ranges: QueueRanges = {}
        for queue, stop in done.offsets.items():
            begin = begins.get(queue, known.offsets.get(queue, 0))
            if begin < stop:
                ranges[queue] = begin, stop
        if not ranges:
            return []
        logs, gaps = self._compared(replace(done, offsets={q: done.offsets[q] for q in ranges}))
        fail = self._options.fail_on_loss
        # What retention has deleted is compared below; what is new belongs to the next batch.
        changed = [gap for gap in gaps if not gap.lost]
        report_gaps(changed, fail_on_loss=fail)
        for gap in changed:
            if gap.queue is not None:
                begin, _ = ranges.pop(gap.queue)
                if gap.following is not None and begin < gap.following:
                    ranges[gap.queue] = begin, gap.following
        # Versions without marks did not record where new queues begin.
        begun = frozenset(ranges if done.marks else known.offsets)
        there = available_ranges(ranges, logs, begun, fail_on_loss=fail)
        self._lost += sum(end - begin for begin, end in ranges.values())
        self._lost -= sum(end - begin for begin, end in there.values())
        size = done.split_bytes or self._options.split_bytes
        return [LogPartition(one) for one in plan_tasks(self._log(), there, size)]

    def _compared_late(self, known: Checkpoint) -> Offsets:
        """Compare the checkpoint of a batch whose end was asked for without its start. Return
        where each queue begins."""
        logs, gaps = self._compared(known)
        report_gaps(gaps, fail_on_loss=self._options.fail_on_loss)
        self._lost_before = known.lost
        self._lost += sum(gap.lost for gap in gaps)
        begun = _after_gaps(known.offsets, gaps)
        self._ends(logs, begun)
        self._check_group(begun)
        return begun

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called by Spark, in a task."""
        return tasks.read(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Called by Spark when a batch is committed."""
        self._report(Checkpoint.of(end).offsets)

    def stop(self) -> None:
        """Called by Spark at the end of the query."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _log(self) -> Log:
        if self._opened is None:
            self._opened = open_log(self._options)
        return self._opened


def _bounds_of(logs: dict[str, BrokerLog], side: Literal[0, 1]) -> Offsets:
    """Return every queue's first offset (0) or end (1)."""
    return {
        (broker, *name): bounds[side]
        for broker, one in logs.items()
        for name, bounds in one.queues.items()
    }


def _after_gaps(offsets: Offsets, gaps: list[Gap]) -> Offsets:
    """Return the next offsets behind the gaps."""
    found = dict(offsets)
    for gap in gaps:
        if gap.queue is None:
            continue
        if gap.following is None:
            del found[gap.queue]
        else:
            found[gap.queue] = gap.following
    return found
