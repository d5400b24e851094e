"""`store dump` and `store export`: the content of a store as rows, streamed.

Damaged ranges are left out and counted in `DumpState.lost`. Message offsets are physical; `begin`
and `end` bound them, or unit numbers of queues.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..format.batch_queue import BatchQueue
from ..format.json_file import loads
from ..format.queue_ext import decode_unit, is_address, position_of
from ..format.record import decode
from ..format.record_layout import FILLER_SIZE
from ..scan.walk import Columns, LostRange
from .documents import message_document
from .index_view import IndexView, layouts_of
from .layout import Layout, QueueFolder
from .listing import checkpoint
from .log_walk import LogWalk
from .problems import Findings
from .queue_view import OpenFiles, Units, read_bytes, written_units
from .verify_timers import TimerCheck

Row = dict[str, Any]
NO_END = 1 << 62


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages or units; None and NO_END mean all."""

    topic: str | None = None
    queue_id: int | None = None
    begin: int = 0
    end: int = NO_END

    def has_queue(self, topic: str, queue_id: int) -> bool:
        return self.topic in (None, topic) and self.queue_id in (None, queue_id)


@dataclass(slots=True)
class DumpState:
    """What was left out."""

    lost: list[LostRange] = field(default_factory=list)


def messages(
    layout: Layout, selection: Selection, state: DumpState, *, by_number: bool = False
) -> Iterator[Row]:
    """Yield every message in log order. `by_number`: the selection bounds queue offsets."""
    begin, end = (0, NO_END) if by_number else (selection.begin, selection.end)
    walk = LogWalk(layout, check_crc=False, begin=begin, end=min(end, layout.log.end))
    for batch in walk:
        rows = _selected(batch.columns, selection, batch.topics.names, by_number)
        columns = batch.columns
        data = batch.raw.data
        for at in rows:
            start = int(columns.position[at])
            record = decode(data[start : start + int(columns.size[at])], check_crc=False)
            yield message_document(record)
    for one in walk.ends:
        state.lost += one.lost


def _selected(
    columns: Columns, selection: Selection, topics: list[str], by_number: bool
) -> list[int]:
    keep = np.ones(len(columns), np.bool_)
    if selection.topic is not None:
        wanted = topics.index(selection.topic) if selection.topic in topics else -1
        keep &= columns.topic_id == wanted
    if selection.queue_id is not None:
        keep &= columns.queue_id == selection.queue_id
    numbers = columns.queue_offset if by_number else columns.physical_offset
    keep &= (numbers >= selection.begin) & (numbers < selection.end)
    rows: list[int] = np.flatnonzero(keep).tolist()
    return rows


def units(layout: Layout, selection: Selection) -> Iterator[Row]:
    """Yield every unit of the selected queues, with its extension; fillers are marked."""
    opened = OpenFiles()
    exts = {(q.topic, q.queue_id): q for q in layout.of_kind("consumequeue_ext")}
    try:
        for queue in layout.of_kind("consumequeue"):
            if not selection.has_queue(queue.topic, queue.queue_id):
                continue
            ext = exts.get((queue.topic, queue.queue_id))
            for first, part in written_units(opened, queue, selection.begin, selection.end):
                yield from _unit_rows(queue, first, part, ext, opened)
    finally:
        opened.close()
    yield from batch_units(layout, selection)


def batch_units(layout: Layout, selection: Selection) -> Iterator[Row]:
    """Yield every unit of the selected batch queues."""
    for queue in layout.of_kind("batchconsumequeue"):
        if not selection.has_queue(queue.topic, queue.queue_id) or not queue.files.files:
            continue
        for unit in BatchQueue(str(queue.files.files[0].path.parent)):
            if selection.begin <= unit.base_offset < selection.end:
                yield {
                    "topic": queue.topic,
                    "queue_id": queue.queue_id,
                    "queue_offset": unit.base_offset,
                    "physical_offset": unit.physical_offset,
                    "size": unit.size,
                    "tags_code": unit.tags_code,
                    "store_timestamp": unit.store_timestamp_ms,
                    "messages": unit.messages,
                }


def _unit_rows(
    queue: QueueFolder, first: int, part: Units, ext: QueueFolder | None, opened: OpenFiles
) -> Iterator[Row]:
    for at in np.flatnonzero(part["size"]).tolist():
        unit = part[at]
        code = int(unit["code"])
        row: Row = {
            "topic": queue.topic,
            "queue_id": queue.queue_id,
            "queue_offset": first + at,
            "physical_offset": int(unit["offset"]),
            "size": int(unit["size"]),
            "tags_code": code,
        }
        if int(unit["size"]) == FILLER_SIZE:
            row["filler"] = True
        if is_address(code):
            place = position_of(code)
            row["ext_position"] = place
            data = read_bytes(opened, ext.files, place, 512) if ext is not None else b""
            found = decode_unit(data, 0)
            row["tags_code"] = found.tags_code if found else None
            if found:
                row["ext_store_timestamp"] = found.store_timestamp_ms
                row["ext_bitmap"] = found.bitmap.hex()
        yield row


def index_entries(layout: Layout) -> Iterator[Row]:
    """Yield every entry of every index file, oldest file first."""
    for path, file_layout in zip(layout.index, layouts_of(layout.index, layout.sizes), strict=True):
        if file_layout is None:
            continue
        view = IndexView(path, file_layout)
        begin_ms = view.header.begin_timestamp_ms
        for number in range(1, view.count):
            hash_, offset, seconds, previous = view.entries[number].tolist()
            yield {
                "file": layout.name(path),
                "entry": number,
                "slot": hash_ % file_layout.slots,
                "key_hash": hash_,
                "physical_offset": offset,
                "seconds": seconds,
                "time_ms": begin_ms + seconds * 1000,
                "previous": previous,
            }


def timers(layout: Layout, selection: Selection) -> Iterator[Row]:
    """Yield every unit of the timer log."""
    units = TimerCheck(layout, Findings()).found
    for at in range(len(units.units)):
        unit = units.units[at]
        offset, magic = int(unit["offset"]), int(unit["magic"])
        if not selection.begin <= offset < selection.end:
            continue
        yield {
            "position": int(units.position[at]),
            "slot_ms": int(unit["write_ms"]) + int(unit["delay_ms"]),
            "write_ms": int(unit["write_ms"]),
            "delay_ms": int(unit["delay_ms"]),
            "physical_offset": offset,
            "size": int(unit["message_size"]),
            "topic_hash": int(unit["topic_hash"]),
            "rolled": bool(magic & 2),
            "cancels": bool(magic & 4),
            "previous": int(unit["previous"]),
        }


def checkpoint_rows(layout: Layout) -> Iterator[Row]:
    """Yield the checkpoint, one row."""
    values = checkpoint(layout)
    if values is not None:
        yield dict(values)


def config_rows(layout: Layout) -> Iterator[Row]:
    """Yield every JSON file with its content; null for an unreadable one."""
    for path in layout.config:
        if path.name.endswith(".bak") or path.name == "timercheck":
            continue
        yield {"file": layout.name(path), "content": _content(path)}


def _content(path: Path) -> Any:
    try:
        # Numeric keys become text: the output is strict JSON.
        return json.loads(json.dumps(loads(path.read_text("utf-8"))))
    except (ValueError, OSError):
        return None
