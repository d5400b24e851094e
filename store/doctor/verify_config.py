"""Checks of the checkpoint and the JSON files.

A checkpoint may be behind the log (a start takes longer then), not ahead of it, and offsets in it
must be those of records (docs/formats/store-format.md, section 5). JSON files must be readable
(12.2), and no consumer may be ahead of its queue.
"""

from pathlib import Path
from typing import Final

import numpy as np

from ..format.checkpoint import FILE_BYTES, USED_BYTES, Checkpoint
from ..format.json_file import ConfigSyntaxError, loads, unseal
from ..format.sealed_fields import SealState
from ..holdings import FILE_NAME as HOLDINGS
from ..holdings import load as load_holdings
from .layout import Layout
from .log_walk import Batch
from .problems import NOTE, PROBLEM, Findings
from .verify_log import LogVerdict

#: JSON files of `config/` without the extension.
_JSON_NAMES: Final = ("timermetrics", "transactionMetrics")
_BYTES_MIN: Final = 48  # minimum of any writer
_TIME_MAX_MS: Final = 1 << 43


class CheckpointCheck:
    """Takes batches in log order, then `finish`."""

    def __init__(self, layout: Layout, findings: Findings) -> None:
        self._layout = layout
        self._findings = findings
        self._values: Checkpoint | None = None
        self._times = (0, 0)  # first and last store time of the log
        self._at: dict[int, int] = {}  # offset of interest -> store time of the record there
        if layout.checkpoint is not None:
            self._values = self._read(layout.checkpoint)

    def _read(self, path: Path) -> Checkpoint | None:
        data = path.read_bytes()
        killed = not self._layout.clean or self._layout.in_use
        if len(data) != FILE_BYTES:
            what = f"The checkpoint has {len(data)} bytes, not {FILE_BYTES}."
            severity = NOTE if not data and killed else PROBLEM
            begin, end = sorted((len(data), FILE_BYTES))
            self._add(begin, end, what, severity)
        if any(data[USED_BYTES:]):
            self._add(USED_BYTES, len(data), "The unused rest of the checkpoint is not zero.")
        if len(data) < _BYTES_MIN:
            return None
        checkpoint, state = Checkpoint.examine(data)
        if state in (SealState.DAMAGED, SealState.LOST):
            self._add(0, USED_BYTES, f"The checkpoint is damaged: {state.value}.")
        return checkpoint

    def _add(self, begin: int, end: int, what: str, severity: str = PROBLEM) -> None:
        self._findings.add("checkpoint", begin, end, what, "checkpoint", severity=severity)

    def add_batch(self, batch: Batch) -> None:
        columns = batch.columns
        times = columns.store_timestamp
        first = self._times[0] or int(times[0])
        self._times = (first, max(self._times[1], int(times.max())))
        if self._values is None:
            return
        for offset in _record_starts(self._values):
            at = int(np.searchsorted(columns.physical_offset, offset))
            if at < len(columns) and int(columns.physical_offset[at]) == offset:
                self._at[offset] = int(times[at])

    def finish(self, verdict: LogVerdict) -> None:
        values = self._values
        if values is None:
            return
        last_ms = self._times[1]
        times = (
            (0, "log was flushed up to", values.physic_msg_timestamp_ms),
            (8, "queues were flushed up to", values.logics_msg_timestamp_ms),
            (16, "index was flushed up to", values.index_msg_timestamp_ms),
        )
        for begin, what, value in times:
            # An empty log gives no limit for times.
            limit = last_ms if last_ms else _TIME_MAX_MS
            if not 0 <= value <= limit:
                self._add(begin, begin + 8, f"The {what} {value}, the log ends at {last_ms}.")
        offsets = (
            (32, "confirmed offset", values.confirm_physical_offset),
            (40, "offset of the last flushed unit and entry", values.logics_physical_offset),
            (64, "offset of the last flushed queue unit", max(values.queued_offset, 0)),
        )
        if not 0 <= values.master_flushed_offset < 1 << 62:
            self._add(24, 32, f"The master's flushed offset is {values.master_flushed_offset}.")
        if values.flushed_end > verdict.end:
            what = f"The log was flushed up to {values.flushed_end}, and now ends before that."
            self._findings.add("checkpoint", 48, 56, what, "checkpoint_ahead")
        for begin, what, value in offsets:
            held = self._layout.log.start <= value < verdict.end
            lost = any(r.begin <= value < r.end for r in verdict.lost)
            if value < 0 or value > verdict.end or (held and value not in self._at and not lost):
                self._add(begin, begin + 8, f"The {what} is {value}: no record begins there.")
        known = self._at.get(values.logics_physical_offset)
        queued_ms = values.logics_msg_timestamp_ms
        if values.logics_physical_offset and queued_ms and known and known != queued_ms:
            what = f"The record at offset {values.logics_physical_offset} is of time {known}, the "
            self._add(8, 16, what + f"queues were flushed up to {queued_ms}.")


def check_holdings(layout: Layout, verdict: LogVerdict, findings: Findings) -> None:
    """Compare the log with the record of what the store has, unless Apache's broker has written
    the store since."""
    held = load_holdings(layout.root)
    checkpoint = layout.checkpoint.read_bytes() if layout.checkpoint is not None else b""
    if not held or Checkpoint.decode(checkpoint.ljust(FILE_BYTES, b"\0")).is_foreign:
        return
    name = f"ha/{HOLDINGS}"
    if held[0].log_end > verdict.end:
        what = f"The log was flushed up to {held[0].log_end}, and now ends before that."
        findings.add(name, 0, 0, what, "holdings_ahead")
    if layout.log.start > held[0].log_start:
        what = f"Retention has left the log from {held[0].log_start} on, and it now begins later."
        findings.add(name, 0, 0, what, "holdings_begin")


def _record_starts(values: Checkpoint) -> tuple[int, ...]:
    return values.confirm_physical_offset, values.logics_physical_offset, values.queued_offset


def check_json(layout: Layout, findings: Findings) -> None:
    """Check that every configuration file can be read; a broken backup is a note."""
    for path in layout.config:
        name = path.name.removesuffix(".bak")
        if not name.endswith(".json") and name not in _JSON_NAMES:
            continue
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            # A store that is in use replaces it now: its former content is the backup.
            continue
        is_backup = path.name.endswith(".bak")
        reason = _json_fault(data)
        if not reason or (not data and is_backup):
            continue
        other = path.with_name(path.name.removesuffix(".bak") if is_backup else f"{name}.bak")
        severity = NOTE if is_backup and other.exists() else PROBLEM
        what = f"The file cannot be read: {reason}."
        findings.add(layout.name(path), 0, len(data), what, "json", severity=severity)


def _json_fault(data: bytes) -> str:
    if not data:
        return "it is empty"
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 at byte {error.start}"
    if "\0" in text:
        return f"it contains zeros from byte {data.index(0)} on"
    try:
        loads(unseal(text))
    except ConfigSyntaxError as error:
        line = text.count("\n", 0, error.position) + 1
        return f"line {line}: {error.reason}"
    return ""


def check_offsets(layout: Layout, ends: dict[tuple[str, int], int], findings: Findings) -> None:
    """Check that no consumer is ahead of its queue; `ends` has the number behind the last unit of
    each."""
    path = layout.root / "config" / "consumerOffset.json"
    try:
        data = path.read_bytes()
    except (
        FileNotFoundError,
        IsADirectoryError,
    ):  # there is none, or a store that is in use replaces it now
        return
    if _json_fault(data):
        return
    table = loads(data.decode()).get("offsetTable")
    for key, offsets in (table if isinstance(table, dict) else {}).items():
        topic = str(key).partition("@")[0]
        for queue_id, offset in (offsets if isinstance(offsets, dict) else {}).items():
            end = ends.get((topic, _number(queue_id)))
            if end is not None and isinstance(offset, int) and offset > end:
                what = f"{key} is at {offset} in queue {queue_id}, which ends at {end}."
                findings.add(layout.name(path), 0, len(data), what, "consumer_offset")


def _number(key: str | int) -> int:
    try:
        return int(key)
    except ValueError:
        return -1
