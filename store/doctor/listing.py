"""`store ls`: names, sizes, first and last of everything, in few reads.

The log is walked only in its last segment with records, to find its end; all else is read in
constant time per file (docs/formats/store-format.md, section 1).
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ..format.checkpoint import FILE_BYTES, Checkpoint
from ..format.record_layout import FILLER_SIZE, UNIT_BYTES
from .index_view import IndexView, layouts_of
from .layout import Layout, QueueFolder
from .log_walk import LogWalk, first_record
from .queue_view import OpenFiles, written_units


def list_store(layout: Layout) -> dict[str, Any]:
    """Return one document for the whole directory."""
    return {
        "directory": str(layout.root),
        "stopped_cleanly": layout.clean,
        "in_use": layout.in_use,
        "owner": layout.owner,
        "segments": segments(layout),
        "queues": queues(layout),
        "index": index_files(layout),
        "timers": timers(layout),
        "checkpoint": checkpoint(layout),
        "config": list(config_files(layout)),
        "foreign": list(layout.foreign),
        "strays": [layout.name(path) for path in layout.strays],
    }


def config_files(layout: Layout) -> Iterator[dict[str, Any]]:
    """Yield name and size of every configuration file."""
    for path in layout.config:
        with suppress(FileNotFoundError):  # a store that is in use replaces it now
            yield {"file": layout.name(path), "bytes": path.stat().st_size}


def segments(layout: Layout) -> list[dict[str, Any]]:
    """Return range and times of every segment; `end` is behind its last record."""
    rows: list[dict[str, Any]] = []
    last = True
    for file in reversed(layout.log.files):
        first = first_record(file)
        row: dict[str, Any] = {
            "file": layout.name(file.path),
            "bytes": file.length,
            "start": file.start,
            "end": file.start,
            "first_ms": None,
            "last_ms": None,
            "state": "empty",
        }
        if first is not None:
            row["first_ms"] = int(first.store_timestamp[0])
            row["end"] = file.start + file.length
            row["state"] = "full"
            if last:
                row |= _end_of(layout, file.start)
                last = False
            elif rows:
                row["last_ms"] = rows[-1]["first_ms"]
        rows.append(row)
    return rows[::-1]


def _end_of(layout: Layout, start: int) -> dict[str, Any]:
    """Return the end of the last segment with records, by a walk."""
    walk = LogWalk(layout, begin=start)
    last_ms = None
    for batch in walk:
        last_ms = int(batch.columns.store_timestamp[-1])
    end = walk.ends[0]
    return {
        "end": start + end.position,
        "last_ms": last_ms,
        "state": "damaged" if end.lost else "full" if end.stop.name == "BLANK" else "open",
    }


def queues(layout: Layout) -> list[dict[str, Any]]:
    """Return the first unit that points into the log, and the end, of every queue."""
    opened = OpenFiles()
    try:
        return [_queue(layout, queue, opened) for queue in layout.of_kind("consumequeue")]
    finally:
        opened.close()


def _queue(layout: Layout, queue: QueueFolder, opened: OpenFiles) -> dict[str, Any]:
    first = end = queue.files.start // UNIT_BYTES
    found = False
    for number, units in written_units(opened, queue):
        used = (units["size"] > 0).nonzero()[0]
        if not len(used):
            continue
        held = (units["size"] != FILLER_SIZE) & (units["size"] > 0)
        held &= units["offset"] >= layout.log.start
        if not found and held.any():
            first, found = number + int(held.argmax()), True
        end = number + int(used[-1]) + 1
    return {
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        "min": first if found else end,
        "max": end,
        "files": len(queue.files.files),
        "file_bytes": queue.files.size,
        "ext": any(
            (other.topic, other.queue_id) == (queue.topic, queue.queue_id)
            for other in layout.of_kind("consumequeue_ext")
        ),
    }


def index_files(layout: Layout) -> list[dict[str, Any]]:
    """Return the range of each index file, from its header."""
    rows = []
    for path, file_layout in zip(layout.index, layouts_of(layout.index, layout.sizes), strict=True):
        row: dict[str, Any] = {"file": layout.name(path), "bytes": path.stat().st_size}
        if file_layout is not None:
            view = IndexView(path, file_layout)
            row |= {
                "slots": file_layout.slots,
                "entries": view.count - 1,
                "room": file_layout.entries - view.count,
                "begin_offset": view.header.begin_offset,
                "end_offset": view.header.end_offset,
                "begin_ms": view.header.begin_timestamp_ms,
                "end_ms": view.header.end_timestamp_ms,
            }
        rows.append(row)
    return rows


def timers(layout: Layout) -> dict[str, Any] | None:
    """Return the timer log's range and its checkpoint."""
    check = layout.root / "config" / "timercheck"
    if not layout.timer_log.files and layout.timer_wheel is None:
        return None
    document: dict[str, Any] = {
        "log_start": layout.timer_log.start,
        "log_files": len(layout.timer_log.files),
        "file_bytes": layout.timer_log.size,
        "wheel": layout.timer_wheel is not None,
    }
    if check.is_file() and check.stat().st_size >= 32:
        with open(check, "rb") as file:
            read_ms, flushed, queue_offset, _ = struct.unpack(">4q", file.read(32))
        document |= {"read_ms": read_ms, "log_flushed": flushed, "queue_offset": queue_offset}
    return document


def checkpoint(layout: Layout) -> dict[str, int] | None:
    """Return the checkpoint's six numbers."""
    if layout.checkpoint is None:
        return None
    with open(layout.checkpoint, "rb") as file:
        data = file.read(FILE_BYTES)
    if len(data) < 48:
        return None
    values = Checkpoint.decode(data)
    return {name: getattr(values, name) for name in Checkpoint.__struct_fields__}
