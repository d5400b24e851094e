"""Check of the index against the log, in both directions, as two parallel streams.

Log and index are written in one order, so expected and stored entries run in step. Where they
differ, the shortest explanation counts: some entries are damaged, some are missing, some are extra.
An entry that contradicts its record, but is in the chain of its own hash, counts against the record
(docs/formats/store-format.md, section 4).

Valid are: an index that begins later than the log (entries lost in a crash are not rebuilt),
duplicate entries of the last record (a restart), and files of RocketMQ before 5.5 without entries
for tags.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np

from ..format.index_file import HEADER, MS_PER_SECOND, PREVIOUS_AT, SECONDS_AT, IndexHeader
from ..format.index_keys import TAG, Entries
from ..scan.files import open_bytes
from .index_view import UNKNOWN, IndexView, layouts_of
from .layout import Layout
from .log_walk import Batch, locate
from .problems import NOTE, PROBLEM, Findings, span
from .verify_index_file import IndexFileState, check_file
from .verify_log import LogVerdict, read_checkpoint

_WINDOW: Final = 4096
#: This many equal entries in a row show that the streams are in step again.
_PROOF: Final = 3
#: How far back other entries of the same record are searched; more than a record usually has.
_LOOK_BACK: Final = 128
_SECONDS_MAX: Final = (1 << 31) - 1


class IndexCheck:
    """Takes batches in log order, then `finish`."""

    def __init__(self, layout: Layout, findings: Findings) -> None:
        self._layout = layout
        self._findings = findings
        self._killed = not layout.clean or layout.in_use
        self._files: list[IndexFileState] = []
        self._at = 0
        self._begun = False
        self._behind = -1  # offset of the first record behind the index
        self._extra: list[tuple[IndexFileState, int, int]] = []  # file, entry, offset
        self._accused: set[int] = set()
        for path, file_layout in zip(
            layout.index, layouts_of(layout.index, layout.sizes), strict=True
        ):
            name = layout.name(path)
            if file_layout is None:
                self._report_unknown(name, path)
                continue
            view = IndexView(path, file_layout)
            if view.length != file_layout.file_bytes:
                what = f"The index file has {view.length} bytes, not {file_layout.file_bytes}."
                begin, end = sorted((view.length, file_layout.file_bytes))
                empty = not view.length and self._killed
                findings.add(
                    name, begin, end, what, "index_file", severity=NOTE if empty else PROBLEM
                )
            self._files.append(IndexFileState(view, name))
        if self._killed:
            self._demote_unconfirmed_files()
        self._skip_expired()

    def _report_unknown(self, name: str, path: Path) -> None:
        """Report a file of unknown sizes, unless it was being filled."""
        data = open_bytes(path)
        filling = len(data) >= HEADER.size and IndexHeader.decode(data).is_empty
        severity = NOTE if self._killed and filling else PROBLEM
        what = "The numbers of slots and entries are unknown: use --config or --index-slots."
        self._findings.add(name, 0, len(data), what, "index_file", severity=severity)

    def _demote_unconfirmed_files(self) -> None:
        """After an unclean stop, files that are newer than the checkpoint are rebuilt anyway: their
        slots were in memory, and they count only what was written out."""
        vouched_ms = read_checkpoint(self._layout).index_msg_timestamp_ms
        ends_ms = [file.view.header.end_timestamp_ms for file in self._files]
        for at, file in enumerate(self._files):
            header = file.view.header
            full = header.count >= file.view.layout.entries
            covered = vouched_ms in ends_ms[at:]  # as in `Index.recover`
            if not full or (not covered and header.end_timestamp_ms > vouched_ms):
                file.severity = NOTE
                if header.count < file.view.count:
                    file.view.count = max(header.count, 1)

    def _skip_expired(self) -> None:
        """Skip entries of records that retention deleted."""
        start = self._layout.log.start
        for file in self._files:
            offsets = file.view.entries["offset"][1 : file.view.count]
            held = offsets >= start
            file.number = 1 + int(held.argmax()) if held.any() else file.view.count
            if file.number > 1:
                self._begun = True
                file.last = (int(offsets[file.number - 2]), 0)

    # -- from the log -------------------------------------------------------------------------

    def add_batch(self, batch: Batch) -> None:
        if not self._files:
            return
        for _, text in batch.texts():
            self._expect(text.entries())

    def _expect(self, due: Entries) -> None:
        """Compare with the next stored entries."""
        while len(due):
            file = self._current()
            if file is None:
                if self._behind < 0:
                    self._behind = int(due.offsets[0])
                return
            if file.tags is False and (due.kinds == TAG).any():
                due = _take(due, due.kinds != TAG)
                continue
            end = min(file.number + min(len(due), _WINDOW), file.view.count)
            there = file.view.entries[file.number : end]
            same = self._agreement(file, there, due)
            agreed = len(same) if same.all() else int(np.argmin(same))
            if agreed:
                self._agree(file, due, agreed)
                due = _take(due, slice(agreed, None))
            elif len(there):
                due = self._resynchronize(file, there, due)

    def _current(self) -> IndexFileState | None:
        """Return the file of the next entry."""
        while self._at < len(self._files):
            file = self._files[self._at]
            if file.number < file.view.count:
                return file
            self._at += 1
        return None

    def _agreement(self, file: IndexFileState, there: Any, due: Entries, shift: int = 0) -> Any:
        count = min(len(there), len(due) - shift)
        part = slice(shift, shift + count)
        same = (there["offset"][:count] == due.offsets[part]) & (
            there["hash"][:count] == due.hashes[part]
        )
        return same

    def _agree(self, file: IndexFileState, due: Entries, count: int) -> None:
        first = file.number
        file.number += count
        self._begun = True
        file.last = (int(due.offsets[count - 1]), int(due.times[count - 1]))
        if file.tags is None and (due.kinds[:count] == TAG).any():
            file.tags = True
        begin_ms = file.view.header.begin_timestamp_ms
        if first == 1:
            file.seconds = begin_ms == int(due.times[0])
            if not file.seconds:
                what = "The header's first time is not that of the first entry's record."
                self._findings.add(file.name, 0, 8, what, "index_header", severity=file.severity)
        if not file.seconds or begin_ms <= 0:
            return
        expected = np.maximum(due.times[:count] - begin_ms, 0) // MS_PER_SECOND
        said = file.view.entries["seconds"][first : first + count]
        wrong = np.flatnonzero(said != np.minimum(expected, _SECONDS_MAX))
        for at in wrong.tolist():
            if first + at > 1:  # the first entry counts from the file before
                self._report_seconds(file, first + at, int(due.offsets[at]))

    # -- where they part ----------------------------------------------------------------------

    def _resynchronize(self, file: IndexFileState, there: Any, due: Entries) -> Entries:
        """The first entry differs from the expected one: find where the streams agree again."""
        offset = int(there["offset"][0])
        if not self._begun and offset > int(due.offsets[0]):
            return self._note_later_start(file, offset, due)
        if file.tags is None and due.kinds[0] == TAG:
            rest = _take(due, due.kinds != TAG)
            if not len(rest) or self._agreement(file, there[:1], rest).all():
                file.tags = False
                return rest
        if self._is_duplicate(file, there[0]):
            self._skip(file, 1)
            return due
        damaged = _first_proof(self._agreement(file, there, due), 1)
        extra = self._steps_to(there, due, of_due=False)
        missing = self._steps_to(there, due, of_due=True)
        steps = min(damaged, extra, missing)
        if steps > _WINDOW:  # no agreement within the window
            steps = min(len(there), len(due))
            damaged = steps
            beyond = there["offset"][:_PROOF]
            if (beyond > due.offsets[-1]).all() and (beyond < self._layout.log.end).all():
                self._report_missing(file, due, len(due))
                return _take(due, slice(len(due), None))
            if (beyond < due.offsets[0]).all() and (beyond >= 0).all():
                damaged, extra = steps + 1, len(there)
        if steps == damaged:
            self._report_damaged(file, due, damaged)
            self._skip(file, damaged)
            return _take(due, slice(damaged, None))
        if steps == missing:
            self._report_missing(file, due, missing)
            return _take(due, slice(missing, None))
        for at in range(extra):
            self._extra.append((file, file.number + at, int(there["offset"][at])))
        self._skip(file, extra)
        return due

    def _note_later_start(self, file: IndexFileState, offset: int, due: Entries) -> Entries:
        """The index begins behind the log's start."""
        if offset >= self._layout.log.end or offset != file.view.header.begin_offset:
            self._begun = True
            return due
        before = int(np.searchsorted(due.offsets, offset))
        if before < len(due):
            self._begun = True
            what = f"The index begins at offset {offset}; records before it are not found by key."
            self._findings.add(file.name, 0, 0, what, "index_begin", severity=NOTE)
        return _take(due, slice(before, None))

    def _is_duplicate(self, file: IndexFileState, entry: Any) -> bool:
        """Return whether this is the last record's entry again, in the same or the next file (a
        restart)."""
        looked = [(file.view, file.number)]
        if self._at and file.number <= _LOOK_BACK:
            before = self._files[self._at - 1].view
            looked.append((before, before.count))
        for view, end in looked:
            past = view.entries[max(end - _LOOK_BACK, 1) : end]
            if ((past["offset"] == entry["offset"]) & (past["hash"] == entry["hash"])).any():
                return int(entry["offset"]) in (file.last[0], self._files[self._at - 1].last[0])
        return False

    def _skip(self, file: IndexFileState, count: int) -> None:
        file.number += count

    def _steps_to(self, there: Any, due: Entries, of_due: bool) -> int:
        """Return how many of one stream to skip until the heads agree; more than any window if
        none."""
        none = _WINDOW + 1
        if of_due:
            candidates = np.flatnonzero(
                (due.offsets[:_WINDOW] == there["offset"][0])
                & (due.hashes[:_WINDOW] == there["hash"][0])
            )
        else:
            candidates = np.flatnonzero(
                (there["offset"] == due.offsets[0]) & (there["hash"] == due.hashes[0])
            )
        for at in candidates.tolist():
            left, right = (0, at) if of_due else (at, 0)
            count = min(_PROOF, len(there) - left, len(due) - right)
            one = there[left : left + count]
            same = (one["offset"] == due.offsets[right : right + count]) & (
                one["hash"] == due.hashes[right : right + count]
            )
            if same.all():
                return int(at)
        return none

    def _report_damaged(self, file: IndexFileState, due: Entries, count: int) -> None:
        for at in range(count):
            number, offset = file.number + at, int(due.offsets[at])
            entry = file.view.entries[number]
            if int(entry["offset"]) == offset and file.view.in_chain(number):
                self._report_record(offset, number)
                continue
            file.corrections[number] = int(due.hashes[at])
            begin, end = file.view.entry_range(number, number + 1)
            what = f"Entry {number} is not that of the record at offset {offset}."
            self._findings.add(file.name, begin, end, what, "index_entry", severity=file.severity)

    def _report_record(self, offset: int, number: int) -> None:
        """Report a record whose valid index entry has another key."""
        if offset in self._accused:
            return
        self._accused.add(offset)
        record = locate(self._layout, offset, "properties")
        if record is not None:
            what = f"The record at offset {offset} has other keys than index entry {number}."
            self._findings.add(*record, what, "record_keys", record=offset)

    def _report_seconds(self, file: IndexFileState, number: int, offset: int) -> None:
        begin = file.view.layout.entry_at(number)
        what = f"Entry {number} and the record at offset {offset} have different times."
        place = begin + SECONDS_AT, begin + PREVIOUS_AT
        self._findings.add(file.name, *place, what, "index_time", severity=file.severity)
        record = locate(self._layout, offset, "store_timestamp")
        if record is not None and offset not in self._accused:
            self._accused.add(offset)
            self._findings.add(*record, what, "record_time")

    def _report_missing(self, file: IndexFileState, due: Entries, count: int) -> None:
        begin, _ = file.view.entry_range(file.number, file.number)
        what = f"{count} entries of records from offset {int(due.offsets[0])} on are missing here."
        self._findings.add(file.name, begin, begin, what, "index_missing", severity=file.severity)

    # -- at the end ---------------------------------------------------------------------------

    def finish(self, verdict: LogVerdict) -> None:
        """Report the remaining differences, then check every file."""
        file = self._current()
        while file is not None:
            entry = file.view.entries[file.number]
            offset = int(entry["offset"])
            if not self._is_duplicate(file, entry):
                self._extra.append((file, file.number, offset))
            self._skip(file, 1)
            file = self._current()
        self._report_extra(verdict)
        if self._behind >= 0:
            last = self._files[-1]
            begin, _ = last.view.entry_range(last.view.count, last.view.count)
            what = f"The index ends before the record at offset {self._behind}."
            severity = NOTE if self._killed else PROBLEM
            self._findings.add(last.name, begin, begin, what, "index_behind", severity=severity)
        for one in self._files:
            check_file(one, self._findings)

    def _report_extra(self, verdict: LogVerdict) -> None:
        """Report entries without a record, one finding for neighbours."""
        run: tuple[IndexFileState, int, int, bool] | None = None  # file, first, end, behind the log
        for file, number, offset in self._extra:
            if any(lost.begin <= offset < lost.end for lost in verdict.lost):
                continue
            file.corrections[number] = UNKNOWN
            behind = offset >= verdict.end
            if run is not None and run[0] is file and run[2:] == (number, behind):
                run = (file, run[1], number + 1, behind)
                continue
            self._report_run(run)
            run = (file, number, number + 1, behind)
        self._report_run(run)

    def _report_run(self, run: tuple[IndexFileState, int, int, bool] | None) -> None:
        if run is None:
            return
        file, first, stop, behind = run
        begin, end = file.view.entry_range(first, stop)
        what = f"No record for {span('entry', first, stop, 'entries')}"
        what += ", which would lie behind the log's end." if behind else " with such a key."
        severity = NOTE if behind and self._killed else file.severity
        self._findings.add(file.name, begin, end, what, "index_extra", severity=severity)


def _first_proof(same: Any, begin: int) -> int:
    """Return the first position from `begin` on from which the streams agree; more than the window
    if none."""
    good = np.flatnonzero(same[begin:]) + begin
    for at in good.tolist():
        if same[at : at + _PROOF].all():
            return int(at)
    return _WINDOW + 1


def _take(due: Entries, which: Any) -> Entries:
    return Entries(due.hashes[which], due.offsets[which], due.times[which], due.kinds[which])
