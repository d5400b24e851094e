"""Names and load rules of a directory of equal-sized files ("file queue": store format, section 1).

    <20 decimal digits>     the start offset of the file; every file has exactly the configured size

Loading refuses what it does not understand and changes nothing then. The one leftover that a crash
may make is a last file that is still empty or still being allocated (shorter, nothing but zeros): it
holds nothing and is reported for removal.
"""

import itertools
import os
from dataclasses import dataclass

from .errors import UnsupportedLayoutError

NAME_DIGITS = 20
_ZERO_SCAN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileList:
    """Start offsets in ascending order, and the path of an unfinished last file, if there is one."""

    starts: tuple[int, ...]
    unfinished: str = ""


def file_name(start: int) -> str:
    return f"{start:0{NAME_DIGITS}d}"


def list_files(directory: str, size: int, key: str) -> FileList:
    """The files of one directory; `key` is the option that gives `size`, for the sentence.

    Raises UnsupportedLayoutError for a foreign name, another size or a gap between files.
    """
    try:
        entries = sorted(
            (entry for entry in os.scandir(directory) if not entry.is_dir()), key=lambda e: e.name
        )
    except FileNotFoundError:
        return FileList(())
    starts: list[int] = []
    unfinished = ""
    for entry in entries:
        if not (entry.name.isascii() and entry.name.isdecimal()):
            raise UnsupportedLayoutError(
                f"{entry.path} is not a store file (its name is not an offset). Move it away."
            )
        length = entry.stat().st_size
        if length == size:
            starts.append(int(entry.name))
        elif entry is entries[-1] and length < size and _only_zeros(entry.path, length):
            unfinished = entry.path
        else:
            raise UnsupportedLayoutError(
                f"{entry.path} has {length} bytes, {key} is {size}. Start with the size that this "
                "store was made with; nothing was changed."
            )
    for before, after in itertools.pairwise(starts):
        if after != before + size:
            raise UnsupportedLayoutError(
                f"Between {file_name(before)} and {file_name(after)} in {directory} a file is "
                "missing. Restore it, or take this directory from another replica."
            )
    return FileList(tuple(starts), unfinished)


def _only_zeros(path: str, length: int) -> bool:
    with open(path, "rb", buffering=0) as file:
        for _ in range(0, length, _ZERO_SCAN_BYTES):
            if file.read(_ZERO_SCAN_BYTES).strip(b"\0"):
                return False
    return True
