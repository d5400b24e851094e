"""Writes rebuilt units that need the order of the log: light queues and extension units.

A light queue that was deleted and created again restarts its numbers; only the later units count
(docs/formats/store-format.md, section 3.9). The address of an extension unit depends on the units
before it (section 3.3). Both are rare and small, so one task writes them in log order.
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
    """Consecutive units of one queue, from number `first` on."""

    topic: str
    queue_id: int
    first: int
    units: Any
    times: Any  #: store times of the records
    light: bool = False


def write_in_order(
    out: str,
    sizes: QueueSizes,
    unit_runs: Iterable[UnitRun],
    begin: Callable[[tuple[str, int], int], object],
) -> None:
    """Write units in log order. `begin` writes what precedes a queue's first unit.

    Raises OSError.
    """
    light: dict[tuple[str, int], list[UnitRun]] = {}
    extended: dict[tuple[str, int], list[UnitRun]] = {}
    for unit_run in unit_runs:
        key = (unit_run.topic, unit_run.queue_id)
        if not unit_run.light:
            extended.setdefault(key, []).append(unit_run)
            continue
        known = light.setdefault(key, [])
        if known and unit_run.first < known[-1].first + len(known[-1].units):
            known.clear()  # the queue was deleted in between
        known.append(unit_run)
    for key, found in light.items():
        begin(key, found[0].first)
        _write(out, sizes, key, found)
    for key, found in extended.items():
        _extend(out, sizes, found)
        begin(key, found[0].first)
        _write(out, sizes, key, found)


def _write(out: str, sizes: QueueSizes, key: tuple[str, int], found: list[UnitRun]) -> None:
    for unit_run in found:
        write_units(out, sizes, key, unit_run.first, unit_run.units)


def _extend(out: str, sizes: QueueSizes, found: list[UnitRun]) -> None:
    """Move the tags codes of these units to extension files and replace them by addresses."""
    files = QueueFiles(Disk(), sizes.ext_bytes, _OPEN_FILES, os.path.join(out, QUEUE_EXT_FOLDER))
    ext = QueueExt(found[0].topic, found[0].queue_id, files)
    ext.end = 0
    for unit_run in found:
        for at, time in enumerate(unit_run.times.tolist()):
            unit = ExtUnit(int(unit_run.units["code"][at]), time)
            unit_run.units["code"][at] = ext.append(unit)
    ext.write_out()
