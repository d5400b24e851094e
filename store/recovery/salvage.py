"""Salvage: copies whole records that recovery cuts off to `lost/<offset>` in the store.

    lost/<20 digits>    the bytes of the log from that offset on

Used only for lost pages (`rules.py`): these bytes were never promised to be durable, yet an
operator may want them. One file holds at most KEPT_BYTES_MAX; of several files the newest FILES_MAX
stay. They are durable before anything is cut. The store does not read them.
"""

import os
from collections.abc import Sequence
from typing import Final

from ..format.disk import Disk
from ..format.layout import file_name
from ..log.segment import Segment
from ..scan.walk import walk

FOLDER: Final = "lost"
KEPT_BYTES_MAX: Final = 256 << 20
FILES_MAX: Final = 8
_CHUNK_BYTES: Final = 1 << 20


def keep(root: str, segments: Sequence[Segment], offset: int, disk: Disk) -> str:
    """Copy the log from `offset` on; return the path. Raises OSError, with nothing cut."""
    folder = os.path.join(root, FOLDER)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, file_name(offset))
    descriptor = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        for segment in segments:
            if segment.end > offset:
                _copy(segment, max(offset - segment.start, 0), offset, descriptor, disk)
        disk.fsync(descriptor)
    finally:
        os.close(descriptor)
    for old in sorted(os.listdir(folder), key=lambda name: _age(folder, name))[:-FILES_MAX]:
        disk.unlink(os.path.join(folder, old))
    disk.sync_directory(folder)
    disk.sync_directory(root)
    return path


def _copy(segment: Segment, begin: int, offset: int, descriptor: int, disk: Disk) -> None:
    """Copy [begin, end of what was written) of the segment, at its distance from `offset`."""
    limit = offset + KEPT_BYTES_MAX - segment.start
    end = min(segment.used_end(begin), limit)
    with segment.hold() as data:
        for position in range(begin, end, _CHUNK_BYTES):
            chunk = data[position : min(position + _CHUNK_BYTES, end)]
            disk.pwrite(descriptor, chunk, segment.start + position - offset)
            chunk.release()


def _age(folder: str, name: str) -> tuple[int, str]:
    return os.stat(os.path.join(folder, name)).st_mtime_ns, name


def count_records(segments: Sequence[Segment], offset: int) -> int:
    """Return how many whole records begin at `offset` or behind it."""
    count = 0
    for segment in segments:
        if segment.end > offset:
            position = max(offset - segment.start, 0)
            used = segment.used_end(position)
            with segment.hold() as data:
                records = walk(data, segment.start, position, used, "skip", check_crc=True)
                count += sum(len(columns) for columns in records)
    return count
