"""Checks of record contents: properties, and the CRC of the whole record.

Properties are pairs `name 0x01 value 0x02` in UTF-8 (docs/formats/store-format.md, section 2.4);
the last pair of an old client may be unterminated. A record written with `enabledAppendPropCRC`
ends with `__CRC32#` 0x01 ten digits 0x02: the CRC-32 of all bytes before these twenty, least digit
first (2.8).

Each batch is first checked as a whole; single records are checked only in a batch with an error.
"""

import itertools
from collections.abc import Iterator
from typing import Final
from zlib import crc32

import numpy as np

from ..format.index_keys import KeyText, indexed
from ..format.record import CRC_DIGITS, CRC_NAME, CRC_TAIL_BYTES
from ..format.record_layout import (
    AT,
    BODY_CRC,
    CRC_MASK,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
)
from ..scan.raw import Flags, Integers
from ..scan.walk import Columns
from .log_walk import Batch
from .problems import Findings

_TAIL_NAME: Final = np.frombuffer(CRC_NAME, np.uint8)
_DIGITS: Final = slice(len(CRC_NAME), len(CRC_NAME) + CRC_DIGITS)
_POWERS: Final = 10 ** np.arange(10, dtype=np.int64)
_NONE: Final[Integers] = np.empty(0, np.int64)
_HOUR_MS: Final = 3_600_000
_NEARLY_BITS: Final = 3
#: No writer leaves so many zero bytes in a row in a text.
_ZERO_RUN: Final = bytes(8)


class RecordCheck:
    """Takes batches in log order. `messages` and `record_bytes` count the records."""

    def __init__(self, findings: Findings, name_of: dict[int, str]) -> None:
        self._findings = findings
        self._name_of = name_of  # start of a segment -> its name in findings
        self.torn_from = -1  #: offset from which on no record is whole, though lengths are right
        self._had_tail = False
        self._times: tuple[Integers, Integers, list[str]] = (_NONE, _NONE, [])
        # a record that lacks a CRC that others have
        self._missing: tuple[str, int, int] | None = None

    def add_batch(self, batch: Batch) -> None:
        file = self._name_of[batch.file.start]
        columns = batch.columns
        self._note_tail(batch)
        for at in np.flatnonzero(~columns.crc_ok).tolist():
            begin, end = _damaged_part(batch.raw.data, columns, at)
            offset = int(columns.physical_offset[at])
            topic = batch.topics.names[int(columns.topic_id[at])]
            what = (
                f"The body of the record at offset {offset} does not match its checksum "
                f"(message {int(columns.queue_offset[at])} of queue {topic}/"
                f"{int(columns.queue_id[at])})."
            )
            self._findings.add(file, begin, end, what, "body_crc")
        tails = self._tails(batch, file)
        self._neighbours(columns, tails, file)
        self._clock(batch, file)
        others = np.flatnonzero((columns.sys_flag & TRANSACTION_MASK) == TRANSACTION_ROLLBACK)
        suspects = [columns.take(others)] if len(others) else []
        suspects += [part for part, text in batch.texts() if not _is_clean(part, text, others)]
        for part in suspects:
            for begin, end, what in property_faults(batch.raw.data, part):
                self._findings.add(file, begin, end, what, "properties")

    def _note_tail(self, batch: Batch) -> None:
        """Note mismatching bodies, or zeros where the last properties should end: a torn write if
        nothing whole follows."""
        columns = batch.columns
        whole = columns.crc_ok.copy()
        last = int(columns.position[-1] + columns.size[-1]) - 1
        if columns.properties_length[-1] and not batch.raw.data[last]:
            whole[-1] = False
        good = np.flatnonzero(whole)
        first = int(good[-1]) + 1 if len(good) else 0
        if len(good):
            self.torn_from = -1
        if first < len(columns) and self.torn_from < 0:
            self.torn_from = int(columns.physical_offset[first])

    def _tails(self, batch: Batch, file: str) -> Flags:
        """Return which records have a CRC property; report mismatches."""
        columns, raw = batch.columns, batch.raw
        ends = columns.position + columns.size
        long_enough = columns.properties_length >= CRC_TAIL_BYTES
        starts = np.where(long_enough, ends - CRC_TAIL_BYTES, columns.position)
        tails = raw.blocks(starts, CRC_TAIL_BYTES).view(np.uint8).reshape(-1, CRC_TAIL_BYTES)
        has: Flags = long_enough & (tails[:, : len(_TAIL_NAME)] == _TAIL_NAME).all(axis=1)
        some = np.flatnonzero(has)
        if not len(some):
            return has
        digits = tails[some, _DIGITS].astype(np.int64) - ord("0")
        readable = ((digits >= 0) & (digits <= 9)).all(axis=1) & (tails[some, -1] == 2)
        said = (digits * _POWERS).sum(axis=1)
        data = raw.data
        begins, stops = columns.position[some], starts[some]
        real = np.array(
            [
                crc32(data[begin:stop]) & CRC_MASK
                for begin, stop in zip(begins.tolist(), stops.tolist(), strict=True)
            ]
        )
        for at in np.flatnonzero(~readable | (real != said)).tolist():
            begin, end = int(begins[at]), int(stops[at]) + CRC_TAIL_BYTES
            if not columns.crc_ok[some[at]]:
                continue  # the body was reported already
            if not readable[at]:
                what, begin = "The CRC property is not a number.", end - CRC_TAIL_BYTES
            else:
                what = "The record does not match the CRC in its last property."
            self._findings.add(file, begin, end, what, "record_crc")
        return has

    def _clock(self, batch: Batch, file: str) -> None:
        """Report a store time far from those before and behind it, which agree."""
        columns = batch.columns
        places = columns.store_host_start - 8
        times = np.concatenate((self._times[0], columns.store_timestamp))
        starts = np.concatenate((self._times[1], places))
        files = [*self._times[2], *itertools.repeat(file, len(columns))]
        before, here, behind = times[:-2], times[1:-1], times[2:]
        away = np.minimum(np.abs(here - before), np.abs(behind - here))
        odd = (away > _HOUR_MS) & (away > 2 * np.abs(behind - before))
        for at in (np.flatnonzero(odd) + 1).tolist():
            what = f"The store time {times[at]} lies far from those of the records around it."
            begin = int(starts[at])
            self._findings.add(files[at], begin, begin + 8, what, "record_time")
        self._times = (times[-2:], starts[-2:], files[-2:])

    def _neighbours(self, columns: Columns, tails: Flags, file: str) -> None:
        """Report a record without a CRC property between two that have one."""
        if self._missing is not None:
            if tails[0]:
                self._report_missing(*self._missing)
            self._missing = None
        before = np.concatenate(([self._had_tail], tails[:-1]))
        ends = columns.position + columns.size
        for at in np.flatnonzero(before & ~tails).tolist():
            end = int(ends[at])
            begin = max(end - CRC_TAIL_BYTES, int(columns.properties_start[at]))
            if at + 1 == len(tails):
                self._missing = (file, begin, end)
            elif tails[at + 1]:
                self._report_missing(file, begin, end)
        self._had_tail = bool(tails[-1])

    def _report_missing(self, file: str, begin: int, end: int) -> None:
        what = "The record has no CRC property; the ones before and behind it have one."
        self._findings.add(file, begin, end, what, "record_crc")


def _damaged_part(data: memoryview, columns: Columns, at: int) -> tuple[int, int]:
    """Return the damaged part: the body, or the checksum before it. One bit of a body changes about
    half of its checksum, so a checksum that is nearly right, or zero, is itself damaged."""
    begin = int(columns.body_start[at])
    end = begin + int(columns.body_length[at])
    said = int(columns.body_crc[at])
    apart = (said ^ crc32(data[begin:end]) & CRC_MASK).bit_count()
    if said == 0 or apart <= _NEARLY_BITS:
        field = int(columns.position[at]) + AT[BODY_CRC]
        return field, field + 4
    return begin, end


def _is_clean(part: Columns, text: KeyText, others: Integers) -> bool:
    """Return whether all properties in the text are pairs; may return false for valid ones."""
    data = text.bytes
    count = len(part) if not len(others) else len(indexed(part))
    if data.count(1) + 3 * count != data.count(2):
        return False
    if data.find(_ZERO_RUN) < len(data) - len(_ZERO_RUN):
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def property_faults(data: memoryview, columns: Columns) -> Iterator[tuple[int, int, str]]:
    """Yield begin, end and reason for every record with malformed properties."""
    begins = columns.properties_start.tolist()
    ends = (columns.properties_start + columns.properties_length).tolist()
    for begin, end in zip(begins, ends, strict=True):
        reason = _fault(bytes(data[begin:end]))
        if reason:
            yield begin, end, reason


def _fault(text: bytes) -> str:
    try:
        text.decode()
    except UnicodeDecodeError:
        return "The properties are not UTF-8."
    if _ZERO_RUN in text:
        return "The properties contain zeros."
    pairs = text.split(b"\x02")
    if pairs[-1] == b"":
        pairs.pop()
    if not all(b"\x01" in pair for pair in pairs):
        return "A property has no value: the separators do not form pairs."
    return ""
