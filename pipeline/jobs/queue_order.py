"""What of the queues needs the order of the log: light queues, and units with extensions.

A light queue that was removed and made again counts from the start anew; the later units are the queue
(store format, section 3.9). Extension units lie behind each other, so that a unit's address follows from
those before it (section 3.3). Both are rare and small: they come to one place and are written there.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...store.format.disk import Disk
from ...store.format.layout import QUEUE_EXT_FOLDER
from ...store.format.queue_ext import ExtUnit, QueueExt
from ...store.format.queue_files import QueueFiles
from .queue_files import QueueSizes, write_units

_OPEN_FILES = 64


@dataclass(slots=True)
class UnitRun:
    """Units of one queue with numbers from `first` on."""

    topic: str
    queue_id: int
    first: int
    units: Any
    times: Any  #: store times of the records
    light: bool = False


def write_in_order(
    out: str,
    sizes: QueueSizes,
    pieces: Iterable[UnitRun],
    begin: Callable[[tuple[str, int], int], object],
) -> None:
    """Write these, which come in the order of the log; `begin` makes what stands before a queue's first
    unit. Raises OSError."""
    light: dict[tuple[str, int], list[UnitRun]] = {}
    extended: dict[tuple[str, int], list[UnitRun]] = {}
    for piece in pieces:
        key = (piece.topic, piece.queue_id)
        if not piece.light:
            extended.setdefault(key, []).append(piece)
            continue
        known = light.setdefault(key, [])
        if known and piece.first < known[-1].first + len(known[-1].units):
            known.clear()  # the queue was removed in between
        known.append(piece)
    for key, found in light.items():
        begin(key, found[0].first)
        _write(out, sizes, key, found)
    for key, found in extended.items():
        _extend(out, sizes, found)
        begin(key, found[0].first)
        _write(out, sizes, key, found)


def _write(out: str, sizes: QueueSizes, key: tuple[str, int], found: list[UnitRun]) -> None:
    for piece in found:
        write_units(out, sizes, key, piece.first, piece.units)


def _extend(out: str, sizes: QueueSizes, found: list[UnitRun]) -> None:
    """Move the tags codes of these units into extension files, and put addresses in their place."""
    files = QueueFiles(Disk(), sizes.ext_bytes, _OPEN_FILES, os.path.join(out, QUEUE_EXT_FOLDER))
    ext = QueueExt(found[0].topic, found[0].queue_id, files)
    ext.end = 0
    for piece in found:
        for at, time in enumerate(piece.times.tolist()):
            unit = ExtUnit(int(piece.units["code"][at]), time)
            piece.units["code"][at] = ext.append(unit)
    ext.write_out()
