"""Planner: resolves options to offset ranges of queues, and those to tasks.

A micro-batch ends at one physical offset of the log, not at an offset per queue: records that were
written together are read together, so every byte is read once however queues lag. The plan depends
only on options and the log, not on a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..errors import OptionError
from .log import AnySplit, BrokerLog, Log, PullSplit, QueueName
from .loss import queue_text, report_loss
from .offsets import EARLIEST, LATEST, Offsets, OffsetSpec, Queue

#: Fraction of a row limit that is good enough; an exact cut would need more requests.
_CLOSE_ENOUGH: Final = 0.9
#: Queue -> [start, end).
QueueRanges = dict[Queue, tuple[int, int]]
Logs = Mapping[str, BrokerLog]


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task: the range that it reads, and the queue offsets that it returns."""

    split: AnySplit
    ranges: Mapping[QueueName, tuple[int, int]] | None


def resolve_offsets(log: Log, logs: Logs, where: OffsetSpec, default: int) -> Offsets:
    """Return the offset of every queue. `default`: EARLIEST or LATEST, for unnamed queues."""
    word = {"earliest": EARLIEST, "latest": LATEST}.get(where.kind)
    at_time = _Times(log)
    found: Offsets = {}
    for broker, one in logs.items():
        for name, (first, end) in one.queues.items():
            queue = (broker, *name)
            named = word if word is not None else where.of(queue)
            if where.kind == "time":
                found[queue] = at_time.offset(queue, where.time_ms, where.strict, end)
            elif where.kind == "times" and named is not None:
                found[queue] = at_time.offset(queue, named, where.strict, end)
            else:
                offset = default if named is None or where.kind == "times" else named
                found[queue] = {LATEST: end, EARLIEST: first}.get(offset, offset)
    _check_named(where, logs)
    return found


def _check_named(where: OffsetSpec, logs: Logs) -> None:
    brokers = {broker for broker, _, _ in where.offsets}
    unknown = brokers - set(logs) - {""}
    if unknown:
        raise OptionError(
            f"There is no broker {sorted(unknown)[0]!r}. Brokers are: {', '.join(sorted(logs))}."
        )
    if "" in brokers and len(logs) > 1:
        raise OptionError(
            "Offsets need the broker's level because there are several brokers: "
            f"{', '.join(sorted(logs))}."
        )


class _Times:
    """Looks up offsets by time, with one request per broker and time."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: dict[tuple[str, int], dict[QueueName, int]] = {}

    def offset(self, queue: Queue, time_ms: int, strict: bool, end: int) -> int:
        broker, topic, queue_id = queue
        key = (broker, time_ms)
        if key not in self._known:
            self._known[key] = self._log.offsets_at_time(broker, time_ms)
        found = self._known[key].get((topic, queue_id), end)
        if found >= end and strict:
            raise OptionError(
                f"Queue {queue[2]} of {queue[1]} ({broker}) has no message stored at or after "
                f"{time_ms}. With startingOffsetsByTimestampStrategy=latest it starts at its end."
            )
        return found


def available_ranges(
    ranges: QueueRanges, logs: Logs, begun: frozenset[Queue], *, fail_on_loss: bool
) -> QueueRanges:
    """Return the ranges limited to existing messages.

    Missing messages raise DataLossError or, without `fail_on_loss`, are logged and left out.
    `begun`: queues that were read before; missing first messages of a new queue are no loss.
    """
    found: QueueRanges = {}
    for queue, (start, end) in ranges.items():
        broker, topic, queue_id = queue
        one = logs.get(broker)
        first, last = one.queues.get((topic, queue_id), (0, 0)) if one is not None else (0, 0)
        if start >= end and start <= last:
            continue
        if (start < first and queue in begun) or max(start, end) > last:
            why = (
                "Retention deleted them, or the topic was deleted."
                if start < first
                else "The log lost its end or was replaced, the topic was deleted, or the offset "
                "was never reached."
            )
            report_loss(
                f"Messages {start} to {end} of {queue_text(queue)} were requested; the queue has "
                f"{first} to {last}. {why}",
                fail_on_loss=fail_on_loss,
            )
        available = (max(start, first), min(end, last))
        if available[0] < available[1]:
            found[queue] = available
    return found


def narrowed(ranges: QueueRanges, offsets: tuple[int, int] | None) -> QueueRanges:
    """Return the ranges within bounds [start, end) of every queue's offsets."""
    if offsets is None:
        return ranges
    found = {
        queue: (max(start, offsets[0]), min(end, offsets[1]))
        for queue, (start, end) in ranges.items()
    }
    return {queue: bounds for queue, bounds in found.items() if bounds[0] < bounds[1]}


def plan_tasks(log: Log, ranges: QueueRanges, split_bytes: int) -> list[PlannedTask]:
    """Return tasks that together read these messages."""
    if not log.physical:
        return [
            PlannedTask(PullSplit(*queue, *bounds), None)
            for queue, bounds in sorted(ranges.items())
        ]
    found: list[PlannedTask] = []
    for broker in sorted({queue[0] for queue in ranges}):
        mine = {queue[1:]: bounds for queue, bounds in ranges.items() if queue[0] == broker}
        low, high = span(log, broker, mine)
        parts = log.pick(broker, mine, (low, high))
        if parts is None:
            parts = log.split_range(broker, low, high, split_bytes)
        found += [PlannedTask(split, mine) for split in parts]
    return found


def span(log: Log, broker: str, ranges: Mapping[QueueName, tuple[int, int]]) -> tuple[int, int]:
    """Return the range of the log that contains all of these messages."""
    edges = [
        (*name, offset) for name, (start, end) in ranges.items() for offset in (start, end - 1)
    ]
    found = [record for record in log.positions(broker, edges) if record is not None]
    if not found:
        return 0, 0
    return min(start for start, _ in found), max(start + size for start, size in found)


def limit_batch(log: Log, ranges: QueueRanges, *, max_rows: int, max_bytes: int) -> Offsets:
    """Return the ends of the next micro-batch, limited by messages or log bytes; 0: no limit."""
    ends = {queue: end for queue, (_, end) in ranges.items()}
    count = sum(end - start for start, end in ranges.values())
    if not count or (not max_bytes and (not max_rows or count <= max_rows)):
        return ends
    if not log.physical:
        return _shares(ranges, max_rows or max(max_bytes // 1024, 1))
    for broker in {queue[0] for queue in ranges}:
        mine = {queue[1:]: bounds for queue, bounds in ranges.items() if queue[0] == broker}
        waiting = sum(end - start for start, end in mine.values())
        # Each broker gets its share of the limit, at least one message.
        rows = max(max_rows * waiting // count, 1)
        size = max(max_bytes * waiting // count, 1)
        for name, end in _cut(log, broker, mine, 0 if max_bytes else rows, size).items():
            ends[broker, *name] = end
    return ends


def _cut(
    log: Log,
    broker: str,
    ranges: Mapping[QueueName, tuple[int, int]],
    max_rows: int,
    max_bytes: int,
) -> dict[QueueName, int]:
    waiting = {name: bounds for name, bounds in ranges.items() if bounds[0] < bounds[1]}
    low, high = span(log, broker, waiting)

    def ends_at(position: int) -> dict[QueueName, int]:
        found = log.offsets_at_position(broker, position)
        return {
            name: min(max(found.get(name, start), start), end)
            for name, (start, end) in ranges.items()
        }

    def count(ends: Mapping[QueueName, int]) -> int:
        return sum(end - ranges[name][0] for name, end in ends.items())

    if not max_rows:
        return ends_at(min(max(low + max_bytes, low + 1), high))
    best = ends_at(low + 1)  # the one message at `low`
    low += 1
    while low < high:
        middle = (low + high) // 2
        ends = ends_at(middle)
        if count(ends) > max_rows:
            high = middle
            continue
        best, low = ends, middle + 1
        if count(ends) >= max_rows * _CLOSE_ENOUGH:
            break
    return best


def _shares(ranges: QueueRanges, max_rows: int) -> Offsets:
    """Divide a limit in proportion to each queue's backlog, as Kafka's source does."""
    count = sum(end - start for start, end in ranges.values())
    return {
        queue: min(start + max((end - start) * max_rows // count, min(end - start, 1)), end)
        for queue, (start, end) in ranges.items()
    }
