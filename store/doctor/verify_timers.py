"""Check of timer log and timer wheel: units, chains, slots, and their messages.

The wheel is recomputed from the timer log: the first, the last and the number of units of every
time, in order of insertion (docs/formats/store-format.md, section 11.4). Slots that a later time
took over, and units whose file retention deleted, cannot be compared. A killed broker leaves a
wheel that is behind the log.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..config.store_config import TIMER_SLOTS as SLOTS
from ..format.properties import java_hash, property_value, whole_number
from ..format.sealed_fields import SealState
from ..scan.files import open_bytes
from ..scan.raw import Integers
from ..timer.checkpoint import USED_BYTES, TimerCheckpoint
from ..timer.rules import TIMER_TOPIC
from ..timer.unit import checksums_match
from ..timer.wheel import FILE_BYTES as WHEEL_BYTES
from ..timer.wheel import SLOT_BYTES
from .layout import DataFile, Layout
from .log_walk import Batch
from .problems import NOTE, PROBLEM, Findings
from .verify_log import LogVerdict

UNIT: Final = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("write_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("offset", ">i8"),
        ("message_size", ">i4"),
        ("topic_hash", ">i4"),
        ("reserved", ">i8"),
    ]
)
UNIT_BYTES: Final = UNIT.itemsize
SLOT: Final = np.dtype(
    [("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("num", ">i4"), ("magic", ">i4")]
)
_END_BYTES: Final = 16
_ROLL, _DELETE = 2, 4
_MAGICS: Final = (1, 3, 5, 7)
_BLANK_MAGIC: Final = 0xCBD43194 - (1 << 32)


@dataclass(slots=True)
class TimerUnits:
    """All units of the timer log in order; `position` is their position in it."""

    position: Integers
    units: npt.NDArray[Any]
    good: npt.NDArray[np.bool_]  #: the unit's own fields are plausible
    end: int  #: behind the last unit

    @property
    def slot_ms(self) -> Integers:
        times: Integers = self.units["write_ms"].astype(np.int64) + self.units["delay_ms"]
        return times


class TimerCheck:
    """Reads the timer files, then takes batches of the log, then `finish`."""

    def __init__(self, layout: Layout, findings: Findings) -> None:
        self._layout = layout
        self._findings = findings
        self._killed = not layout.clean or layout.in_use
        self.found = self._read()
        offsets = self.found.units["offset"].astype(np.int64)
        self._order: Integers = np.argsort(offsets, kind="stable")
        self._offsets: Integers = offsets[self._order]
        self._met = np.zeros(len(offsets), np.bool_)

    # -- the timer log by itself --------------------------------------------------------------

    def _read(self) -> TimerUnits:
        files = self._layout.timer_log
        parts, places = [], []
        end = files.start
        for file in files.files:
            name = self._layout.name(file.path)
            if file.length != files.size:
                what = f"The timer log file has {file.length} bytes, the others have {files.size}."
                begin, stop = sorted((file.length, files.size))
                last = file is files.files[-1]
                severity = NOTE if last and self._killed else PROBLEM
                self._findings.add(name, begin, stop, what, "timer_file", severity=severity)
            units = self._units_of(file, file is files.files[-1])
            parts.append(units)
            places.append(file.start + np.arange(len(units), dtype=np.int64) * UNIT_BYTES)
            end = file.start + len(units) * UNIT_BYTES
        units = np.concatenate(parts) if parts else np.empty(0, UNIT)
        position = np.concatenate(places) if places else np.empty(0, np.int64)
        timer_units = TimerUnits(position, units, self._fields_good(position, units), end)
        self._check_chains(timer_units)
        return timer_units

    def _units_of(self, file: DataFile, is_last: bool) -> npt.NDArray[Any]:
        """Return the units of one file; a file that others follow is full."""
        data = open_bytes(file.path)
        size = self._layout.timer_log.size
        room = (size - UNIT_BYTES - _END_BYTES) // UNIT_BYTES + 1
        room = max(min(room, len(data) // UNIT_BYTES), 0)
        units = np.frombuffer(data, UNIT, room)
        if is_last:
            used = np.flatnonzero(units.view(np.uint8).reshape(-1, UNIT_BYTES).any(axis=1))
            return units[: int(used[-1]) + 1 if len(used) else 0]
        mark = room * UNIT_BYTES
        if int.from_bytes(data[mark + 12 : mark + 16], "big", signed=True) != _BLANK_MAGIC:
            what = "The timer log file does not end with its mark."
            self._findings.add(
                self._layout.name(file.path), mark, mark + _END_BYTES, what, "timer_end"
            )
        return units

    def _fields_good(self, position: Integers, units: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        good: npt.NDArray[np.bool_] = (units["size"] == UNIT_BYTES) & checksums_match(units)
        good &= np.isin(units["magic"], _MAGICS)
        good &= (units["previous"] >= -1) & (units["previous"] < position)
        good &= (units["offset"] >= 0) & (units["message_size"] > 0)
        good &= units["write_ms"] > 0
        for at in np.flatnonzero(~good).tolist():
            torn = self._killed and bool(not good[at:].any())
            what = f"There is no unit at {position[at]} of the timer log."
            self._report(int(position[at]), what, "timer_unit", NOTE if torn else PROBLEM)
        return good

    def _report(self, position: int, what: str, kind: str, severity: str = PROBLEM) -> None:
        files = self._layout.timer_log
        for file in files.files:
            if file.start <= position < file.start + files.size:
                begin = position - file.start
                name = self._layout.name(file.path)
                self._findings.add(name, begin, begin + UNIT_BYTES, what, kind, severity=severity)

    def _check_chains(self, timer_units: TimerUnits) -> None:
        """Check that each unit names the previous one of the same time."""
        rows = np.flatnonzero(timer_units.good)
        times = timer_units.slot_ms[rows] // self._layout.sizes.timer_precision_ms
        order = np.argsort(times, kind="stable")
        same = np.zeros(len(order), np.bool_)
        same[1:] = times[order][1:] == times[order][:-1]
        expected = np.full(len(order), -1, np.int64)
        expected[1:][same[1:]] = timer_units.position[rows][order[:-1]][same[1:]]
        said = timer_units.units["previous"][rows][order].astype(np.int64)
        # A first unit may name one that retention deleted.
        known = (expected >= 0) | (said >= self._layout.timer_log.start) | (said < 0)
        self._check_order(timer_units)
        bad = set(timer_units.position[~timer_units.good].tolist())
        for row in np.flatnonzero((said != expected) & known).tolist():
            if int(said[row]) in bad:
                continue
            position = int(timer_units.position[rows[order[row]]])
            what = f"The unit at {position} names {said[row]} as the one before it in its slot, "
            self._report(position, what + f"not {expected[row]}.", "timer_chain")

    def _check_order(self, timer_units: TimerUnits) -> None:
        """Check that units are in the order of their messages; a restart may begin again further
        back, but two neighbours alone never swap."""
        offsets = timer_units.units["offset"].astype(np.int64)
        if len(offsets) < 4:
            return
        a, b, c, d = offsets[:-3], offsets[1:-2], offsets[2:-1], offsets[3:]
        for at in np.flatnonzero((b > c) & (a < c) & (b < d)).tolist():
            first, second = (int(timer_units.position[at + step]) for step in (1, 2))
            what = f"The units at {first} and {second} are swapped."
            for position in (first, second):
                self._report(position, what, "timer_order")

    # -- against the log ----------------------------------------------------------------------

    def add_batch(self, batch: Batch) -> None:
        """Compare the units of the records in this batch."""
        columns = batch.columns
        first, last = int(columns.physical_offset[0]), int(columns.physical_offset[-1])
        low = int(np.searchsorted(self._offsets, first))
        high = int(np.searchsorted(self._offsets, last, "right"))
        if low == high:
            return
        at = np.searchsorted(columns.physical_offset, self._offsets[low:high])
        hit = columns.physical_offset[at] == self._offsets[low:high]
        for index in np.flatnonzero(hit).tolist():
            row, record = int(self._order[low + index]), int(at[index])
            self._met[row] = True
            unit = self.found.units[row]
            if not self.found.good[row]:
                continue
            topic = batch.topics.names[int(columns.topic_id[record])]
            start = int(columns.properties_start[record])
            text = batch.raw.bytes_at(start, int(columns.properties_length[record]))
            if topic != TIMER_TOPIC or int(unit["message_size"]) != int(columns.size[record]):
                reason = "does not point to a timer message"
            else:
                reason = self._disagreement(unit, text)
            if reason:
                position = int(self.found.position[row])
                self._report(position, f"The unit at {position} {reason}.", "timer_message")

    def _disagreement(self, unit: Any, properties: bytes) -> str:
        real = property_value(properties, b"REAL_TOPIC").decode("utf-8", "replace")
        if (java_hash(real) if real else 0) != int(unit["topic_hash"]):
            return "has the hash of another topic than its message"
        due_ms = whole_number(property_value(properties, b"TIMER_OUT_MS"))
        slot_ms = int(unit["write_ms"]) + int(unit["delay_ms"])
        if due_ms is not None:
            if int(unit["magic"]) & _ROLL:
                return "" if slot_ms < due_ms else "rolls a message that is due before"
            if slot_ms != due_ms:
                return f"is due at {slot_ms}, its message at {due_ms}"
        return ""

    # -- at the end ---------------------------------------------------------------------------

    def finish(self, verdict: LogVerdict) -> None:
        """Report units without a message, then check the wheel."""
        start = self._layout.log.start
        for row in np.flatnonzero(~self._met & self.found.good).tolist():
            offset = int(self.found.units["offset"][row])
            if offset < start or any(r.begin <= offset < r.end for r in verdict.lost):
                continue
            behind = offset >= verdict.end
            position = int(self.found.position[row])
            what = f"The unit at {position} points to offset {offset}, where no record begins."
            severity = NOTE if behind and self._killed else PROBLEM
            self._report(position, what, "timer_message", severity)
        if self._layout.timer_wheel is not None:
            self._check_wheel(self._layout.timer_wheel)

    def _check_wheel(self, path: Path) -> None:
        name = self._layout.name(path)
        length = path.stat().st_size
        if length != WHEEL_BYTES:
            begin, end = sorted((length, WHEEL_BYTES))
            what = f"The timer wheel has {length} bytes, not {WHEEL_BYTES}."
            severity = NOTE if not length and self._killed else PROBLEM
            self._findings.add(name, begin, end, what, "timer_wheel", severity=severity)
        data = open_bytes(path)
        slots = np.frombuffer(data, SLOT, min(len(data) // SLOT_BYTES, SLOTS))
        expected = expected_slots(self.found, self._layout.sizes.timer_precision_ms)
        used = np.flatnonzero(slots.view(np.uint8).reshape(-1, SLOT_BYTES).any(axis=1))
        for at in sorted({*used.tolist(), *expected}):
            if at < len(slots):
                self._check_slot(name, at, slots[at], expected.get(at))

    def _check_slot(
        self, name: str, at: int, slot: Any, due: tuple[int, int, int, int] | None
    ) -> None:
        said = tuple(int(slot[field]) for field in ("time", "first", "last", "num"))
        trimmed = self._layout.timer_log.start > 0
        if said == due and not int(slot["magic"]):
            return
        if due is None or said[0] != due[0]:
            gone = trimmed and 0 <= said[2] < self._layout.timer_log.start
            if gone and said[0] % SLOTS == at:
                return  # its units were deleted
        elif trimmed and said[1] < self._layout.timer_log.start and said[2] == due[2]:
            return  # begun in a file that was deleted
        behind = due is not None and (said[0] < due[0] or said[2] < due[2])
        ahead = said[2] >= self.found.end
        severity = NOTE if self._killed and (behind or ahead) else PROBLEM
        what = f"Slot {at} is {said}, the timer log says {due} (time, first, last, number)."
        begin = at * SLOT_BYTES
        self._findings.add(name, begin, begin + SLOT_BYTES, what, "timer_slot", severity=severity)


def expected_slots(
    timer_units: TimerUnits, precision_ms: int
) -> dict[int, tuple[int, int, int, int]]:
    """Return slot number -> time, first, last, number of units, computed from the timer log."""
    rows = np.flatnonzero(timer_units.good)
    times = timer_units.slot_ms[rows] // precision_ms
    slots: dict[int, tuple[int, int, int, int]] = {}
    positions = timer_units.position[rows].tolist()
    magics = timer_units.units["magic"][rows].tolist()
    for time, position, magic in zip(times.tolist(), positions, magics, strict=True):
        at = time % SLOTS
        change = -1 if magic & _DELETE else 1
        slot = slots.get(at)
        if slot is None or slot[0] != time:
            slots[at] = (time, position, position, change)
        else:
            slots[at] = (time, slot[1], position, slot[3] + change)
    return slots


def check_timercheck(
    layout: Layout, timer_units: TimerUnits, queue_end: int, findings: Findings
) -> None:
    """Check `config/timercheck` against log, queue and clock (docs/formats/store-format.md,
    11.4)."""
    path = layout.root / "config" / "timercheck"
    if not path.is_file():
        return
    data = path.read_bytes()
    name = layout.name(path)
    killed = not layout.clean or layout.in_use
    if len(data) != 4096:
        what = f"The timer checkpoint has {len(data)} bytes, not 4096."
        severity = NOTE if not data and killed else PROBLEM
        begin, end = sorted((len(data), 4096))
        findings.add(name, begin, end, what, "timercheck", severity=severity)
    if len(data) < 56:
        return
    check, state = TimerCheckpoint.examine(data)
    if state in (SealState.DAMAGED, SealState.LOST):
        what = f"The timer checkpoint is damaged: {state.value}."
        findings.add(name, 0, USED_BYTES, what, "timercheck")
    limit_ms = 1 << 43
    checks = [
        (0, 8, 0 <= check.last_read_ms < limit_ms, f"read time is {check.last_read_ms}"),
        (
            8,
            16,
            0 <= check.last_timer_log_flush_pos <= timer_units.end,
            _flushed(check, timer_units.end),
        ),
        (16, 24, 0 <= check.last_timer_queue_offset <= queue_end, _queue(check, queue_end)),
        (24, 32, 0 <= check.master_timer_queue_offset < limit_ms, "master queue offset is odd"),
        (32, 40, 0 <= check.state_version < limit_ms, f"state version is {check.state_version}"),
        (40, 48, 0 <= check.version_ms < limit_ms, f"version time is {check.version_ms}"),
        (48, 56, 0 <= check.counter < limit_ms, f"version counter is {check.counter}"),
        (USED_BYTES, 4096, not any(data[USED_BYTES:]), "unused rest is not zero"),
    ]
    for begin, end, good, what in checks:
        if not good:
            findings.add(name, begin, end, f"The timer checkpoint's {what}.", "timercheck")


def _flushed(check: TimerCheckpoint, end: int) -> str:
    return f"flushed position is {check.last_timer_log_flush_pos}, the timer log ends at {end}"


def _queue(check: TimerCheckpoint, end: int) -> str:
    return f"queue offset is {check.last_timer_queue_offset}, the queue ends at {end}"
