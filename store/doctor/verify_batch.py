"""Check of batch consume queues: one unit for each record of a BatchCQ topic, in log order.

A record with an inner batch holds its number of messages (`INNER_NUM`) and the queue offset of the
first (`INNER_BASE`); any other counts as one message at its own queue offset
(docs/formats/store-format.md, section 3.8).
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..format.batch_queue import UNIT_BYTES
from ..format.properties import property_value, whole_number
from ..scan.files import open_bytes
from ..scan.properties import TagsCodes, by_queue
from ..scan.walk import Columns, RawBytes
from .layout import Layout, QueueFolder
from .log_walk import Batch
from .problems import NOTE, PROBLEM, Findings
from .verify_log import LogVerdict

UNIT: Final = np.dtype(
    [
        ("offset", ">i8"),
        ("size", ">i4"),
        ("code", ">i8"),
        ("time", ">i8"),
        ("base", ">i8"),
        ("messages", ">i2"),
        ("compacted", ">i4"),
        ("reserved", ">i4"),
    ]
)
assert UNIT.itemsize == UNIT_BYTES


@dataclass(slots=True)
class _Queue:
    folder: QueueFolder
    units: npt.NDArray[Any]
    met: npt.NDArray[np.bool_]
    behind: int = -1  # offset of the first record without a unit
    end: int = 0  # behind the last unit


class BatchCheck:
    """Takes batches in log order, then `finish`."""

    def __init__(self, layout: Layout, findings: Findings) -> None:
        self._layout = layout
        self._findings = findings
        self._killed = not layout.clean or layout.in_use
        self._queues = {
            (folder.topic, folder.queue_id): _load(folder)
            for folder in layout.of_kind("batchconsumequeue")
        }
        self._codes = TagsCodes()

    def add_batch(self, batch: Batch) -> None:
        if not self._queues:
            return
        codes = self._codes.of(batch.raw, batch.columns, batch.topics)
        for topic_id, queue_id, rows in by_queue(batch.columns):
            queue = self._queues.get((batch.topics.names[topic_id], queue_id))
            if queue is None:
                continue
            columns = batch.columns.take(rows)
            for row, code in enumerate(codes[rows].tolist()):
                self._compare(queue, batch.raw, columns, row, code)

    def _compare(self, queue: _Queue, raw: RawBytes, columns: Columns, row: int, code: int) -> None:
        offset = int(columns.physical_offset[row])
        at = int(np.searchsorted(queue.units["offset"][: queue.end], offset))
        if at >= queue.end or int(queue.units["offset"][at]) != offset:
            if at >= queue.end:
                queue.behind = offset if queue.behind < 0 else queue.behind
            else:
                what = f"No unit for the record at offset {offset}, or a wrong one."
                self._report(queue, at, what, "batch_unit", PROBLEM)
            return
        queue.met[at] = True
        start, length = int(columns.properties_start[row]), int(columns.properties_length[row])
        properties = raw.bytes_at(start, length)
        count = whole_number(property_value(properties, b"INNER_NUM"))
        base = whole_number(property_value(properties, b"INNER_BASE"))
        expected = (
            int(columns.size[row]),
            code,
            int(columns.store_timestamp[row]),
            int(columns.queue_offset[row]) if base is None else base,
            1 if count is None else count,
        )
        unit = queue.units[at]
        said = tuple(int(unit[n]) for n in ("size", "code", "time", "base", "messages"))
        if said != expected or int(unit["reserved"]):
            what = f"The unit is not that of the record at offset {offset}."
            self._report(queue, at, what, "batch_unit", PROBLEM)

    def _report(self, queue: _Queue, at: int, what: str, kind: str, severity: str) -> None:
        for file in queue.folder.files.files:
            room = file.length // UNIT_BYTES
            if at < room:
                begin = at * UNIT_BYTES
                name = self._layout.name(file.path)
                self._findings.add(name, begin, begin + UNIT_BYTES, what, kind, severity=severity)
                return
            at -= room

    def finish(self, verdict: LogVerdict) -> None:
        """Report units without a record, and queues that are behind the log."""
        start = self._layout.log.start
        for queue in self._queues.values():
            for at in np.flatnonzero(~queue.met[: queue.end]).tolist():
                offset = int(queue.units["offset"][at])
                lost = any(one.begin <= offset < one.end for one in verdict.lost)
                if lost or 0 <= offset < start:
                    continue
                behind = offset >= verdict.end
                severity = NOTE if behind and self._killed else PROBLEM
                what = f"No record for the unit that points to offset {offset}."
                self._report(queue, at, what, "batch_orphan", severity)
            if queue.behind >= 0:
                severity = NOTE if self._killed else PROBLEM
                what = f"The queue ends before the record at offset {queue.behind}."
                self._report(queue, queue.end, what, "batch_behind", severity)


def _load(folder: QueueFolder) -> _Queue:
    parts = []
    for file in folder.files.files:
        data = open_bytes(file.path)
        parts.append(np.frombuffer(data, UNIT, len(data) // UNIT_BYTES))
    units = np.concatenate(parts) if parts else np.empty(0, UNIT)
    used = np.flatnonzero(units["size"])
    end = int(used[-1]) + 1 if len(used) else 0
    return _Queue(folder, units, np.zeros(len(units), np.bool_), end=end)
