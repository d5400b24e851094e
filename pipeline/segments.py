"""Segments of a store's commit log, found by their file names. Takes no lock and writes nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..store.format.layout import COMMIT_LOG_FOLDER, is_file_name
from .errors import UnreachableError


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a commit log: its path, first physical offset and length in bytes."""

    path: str
    base: int
    length: int

    @property
    def end(self) -> int:
        """Physical offset after the last byte."""
        return self.base + self.length


def segments(root: str) -> list[Segment]:
    """Return the segments of the store at `root`, in log order. Raises UnreachableError."""
    folder = Path(root) / COMMIT_LOG_FOLDER
    try:
        names = [name for name in os.listdir(folder) if is_file_name(name)]
    except (FileNotFoundError, NotADirectoryError):
        raise UnreachableError(
            f"{root} has no folder {COMMIT_LOG_FOLDER}: name a store directory that the driver and "
            "every executor see under this path."
        ) from None
    found: list[Segment] = []
    for name in sorted(names, key=int):
        path = folder / name
        try:
            length = path.stat().st_size
        except FileNotFoundError:
            continue  # deleted by retention meanwhile
        if length:
            found.append(Segment(str(path), int(name), length))
    return found
