"""From options and bounds of queues to ranges of offsets, and from those to parts of logs.

A micro-batch is cut at a place of the log, not at an offset of each queue: what was written together is
read together, so that every byte is read once however queues lag (pipeline note, section 3). Everything here is
a function of what the log says; nothing reads a clock.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..errors import DataLossError, OptionError
from .log import AnySplit, BrokerLog, Log, PullSplit, QueueName
from .offsets import EARLIEST, LATEST, Offsets, OffsetSpec, Queue

_log = logging.getLogger(__name__)
#: A limit counts as met from here on; exact cuts would cost questions, not messages.
_CLOSE_ENOUGH: Final = 0.9
#: Queue -> [start, end).
QueueRanges = dict[Queue, tuple[int, int]]
Logs = Mapping[str, BrokerLog]


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task: what it reads, and which offsets of which queues it may give."""

    split: AnySplit
    ranges: Mapping[QueueName, tuple[int, int]] | None


def resolve_offsets(log: Log, logs: Logs, where: OffsetSpec, default: int) -> Offsets:
    """The offset of every queue that there is. `default`: EARLIEST or LATEST, for those not named."""
    word = {"earliest": EARLIEST, "latest": LATEST}.get(where.kind)
    at_time = _Times(log)
    found: Offsets = {}
    for broker, one in logs.items():
        for name, (first, end) in one.queues.items():
            queue = (broker, *name)
            said = word if word is not None else where.of(queue)
            if where.kind == "time":
                found[queue] = at_time.offset(queue, where.time_ms, where.strict, end)
            elif where.kind == "times" and said is not None:
                found[queue] = at_time.offset(queue, said, where.strict, end)
            else:
                offset = default if said is None or where.kind == "times" else said
                found[queue] = {LATEST: end, EARLIEST: first}.get(offset, offset)
    _check_named(where, logs)
    return found


def _check_named(where: OffsetSpec, logs: Logs) -> None:
    brokers = {broker for broker, _, _ in where.offsets}
    unknown = brokers - set(logs) - {""}
    if unknown:
        raise OptionError(
            f"There is no broker {sorted(unknown)[0]!r}; there are: {', '.join(sorted(logs))}."
        )
    if "" in brokers and len(logs) > 1:
        raise OptionError(
            f"Offsets need the broker's level where there are several: {', '.join(sorted(logs))}."
        )


class _Times:
    """Offsets by time; all queues of a broker are asked for at once."""

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
                f"Queue {queue[2]} of {queue[1]} ({broker}) has no message of {time_ms} or later."
            )
        return found


def available_ranges(
    ranges: QueueRanges, logs: Logs, begun: frozenset[Queue], *, fail_on_loss: bool
) -> QueueRanges:
    """Ranges of messages that are there. What is gone is an error or, if that is allowed, left out.

    `begun`: queues that were read before; the first messages of a new one may be gone already.
    """
    found: QueueRanges = {}
    for queue, (start, end) in ranges.items():
        broker, topic, queue_id = queue
        one = logs.get(broker)
        first, last = one.queues.get((topic, queue_id), (0, 0)) if one is not None else (0, 0)
        if start >= end:
            continue
        lost = (start < first and queue in begun) or end > last
        if lost:
            text = (
                f"Messages {start} to {end} of queue {queue_id} of {topic} ({broker}) were to be read; "
                f"there are {first} to {last}."
            )
            if fail_on_loss:
                raise DataLossError(
                    f"{text} Retention took them, or the topic was made anew. "
                    "Set failOnDataLoss=false to go on with what is there."
                )
            _log.warning("pipeline.data_loss %s", text)
        there = (max(start, first), min(end, last))
        if there[0] < there[1]:
            found[queue] = there
    return found


def plan_tasks(log: Log, ranges: QueueRanges, split_bytes: int) -> list[PlannedTask]:
    """Tasks that together give these messages. A function of the ranges and the log alone."""
    if not log.physical:
        return [
            PlannedTask(PullSplit(*queue, *bounds), None)
            for queue, bounds in sorted(ranges.items())
        ]
    found: list[PlannedTask] = []
    for broker in sorted({queue[0] for queue in ranges}):
        mine = {queue[1:]: bounds for queue, bounds in ranges.items() if queue[0] == broker}
        low, high = span(log, broker, mine)
        found += [
            PlannedTask(split, mine) for split in log.split_range(broker, low, high, split_bytes)
        ]
    return found


def span(log: Log, broker: str, ranges: Mapping[QueueName, tuple[int, int]]) -> tuple[int, int]:
    """The range of the log that holds all of these messages."""
    asked = [
        (*name, offset) for name, (start, end) in ranges.items() for offset in (start, end - 1)
    ]
    found = [place for place in log.positions(broker, asked) if place is not None]
    if not found:
        return 0, 0
    return min(place for place, _ in found), max(place + size for place, size in found)


def limit_batch(log: Log, ranges: QueueRanges, *, max_rows: int, max_bytes: int) -> Offsets:
    """OffsetSpec the next micro-batch ends, by a limit of messages or of bytes of the log; 0: none."""
    ends = {queue: end for queue, (_, end) in ranges.items()}
    count = sum(end - start for start, end in ranges.values())
    if not count or (not max_bytes and (not max_rows or count <= max_rows)):
        return ends
    if not log.physical:
        return _shares(ranges, max_rows or max(max_bytes // 1024, 1))
    for broker in {queue[0] for queue in ranges}:
        mine = {queue[1:]: bounds for queue, bounds in ranges.items() if queue[0] == broker}
        waiting = sum(end - start for start, end in mine.values())
        # Each broker has its share of the limit; at least one message goes.
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

    def ends_at(place: int) -> dict[QueueName, int]:
        found = log.offsets_at_position(broker, place)
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
    """A limit in proportion to what waits in each queue, as Kafka's source has it."""
    count = sum(end - start for start, end in ranges.values())
    return {
        queue: min(start + max((end - start) * max_rows // count, min(end - start, 1)), end)
        for queue, (start, end) in ranges.items()
    }
