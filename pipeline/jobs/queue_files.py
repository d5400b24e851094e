"""Writes files of rebuilt consume queues, from many tasks at once.

    consumequeue/TOPIC/QUEUE/FILE       unit k at byte 20 * k of the queue, files of equal size

A queue that begins inside a file has fillers before it (docs/formats/store-format.md, section 3.4).
Position and bytes of every write follow from the log, so writes may be repeated and reordered.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...store.format.layout import QUEUE_EXT_FOLDER, QUEUE_FOLDER, file_name
from ...store.format.record_layout import FILLER, UNIT_BYTES
from ...store.format.topic_names import queue_path
from ...store.scan.dtypes import QUEUE_UNIT

_DEFAULT_BYTES: Final = 6_000_000
_DEFAULT_EXT_BYTES: Final = 48 << 20


@dataclass(frozen=True, slots=True)
class QueueSizes:
    """Sizes of files, and the queues with extension files."""

    file_bytes: int
    ext_bytes: int
    extended: frozenset[tuple[str, int]]


def queue_sizes(store: str, file_bytes: int = 0) -> QueueSizes:
    """Return the sizes of the store's files."""
    found = file_bytes or _first_size(Path(store) / QUEUE_FOLDER) or _DEFAULT_BYTES
    ext = Path(store) / QUEUE_EXT_FOLDER
    extended = frozenset(
        (queue.parent.name, int(queue.name))
        for queue in ext.glob("*/*")
        if queue.name.isdecimal() and any(queue.iterdir())
    )
    return QueueSizes(found, _first_size(ext) or _DEFAULT_EXT_BYTES, extended)


def _first_size(folder: Path) -> int:
    for path in folder.glob("*/*/*"):
        if path.name.isdecimal() and path.stat().st_size:
            return path.stat().st_size
    return 0


def write_units(out: str, sizes: QueueSizes, key: tuple[str, int], first: int, units: Any) -> None:
    """Write units from number `first` on. Raises OSError; ValueError for an invalid topic."""
    folder = queue_path(out, *key)
    os.makedirs(folder, exist_ok=True)
    size = sizes.file_bytes
    position = first * UNIT_BYTES
    data = memoryview(units.tobytes())
    while data:
        start = position - position % size
        part = data[: start + size - position]
        descriptor = os.open(os.path.join(folder, file_name(start)), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            os.pwrite(descriptor, part, position - start)
        finally:
            os.close(descriptor)
        data = data[len(part) :]
        position += len(part)


def fill_front(out: str, sizes: QueueSizes, key: tuple[str, int], first: int) -> None:
    """Write fillers from the start of the first unit's file up to the unit. Raises OSError."""
    position = first * UNIT_BYTES
    count = (position % sizes.file_bytes) // UNIT_BYTES
    if count:
        units = np.full(count, np.array([FILLER], QUEUE_UNIT)[0], QUEUE_UNIT)
        write_units(out, sizes, key, first - count, units)
