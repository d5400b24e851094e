"""File names and load rules of a directory of equal-sized files ("file queue").

    <20 decimal digits>     the start offset of the file; every file has exactly the configured size

Loading refuses unknown files and then changes nothing. A crash may leave one last file that is
empty or partly allocated (shorter, only zeros): it holds nothing and is reported for removal
(docs/formats/store-format.md, section 1).
"""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import UnsupportedLayoutError

NAME_DIGITS = 20
# Names in a store directory.
COMMIT_LOG_FOLDER = "commitlog"
QUEUE_FOLDER = "consumequeue"
QUEUE_EXT_FOLDER = "consumequeue_ext"
BATCH_QUEUE_FOLDER = "batchconsumequeue"
INDEX_FOLDER = "index"
CONFIG_FOLDER = "config"
CHECKPOINT_FILE = "checkpoint"
ABORT_FILE = "abort"
REPLICA_FOLDER = "ha"
POSITIONS_FILE = "positions"
_ZERO_SCAN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileList:
    """Start offsets in ascending order with their paths, and an unfinished last file, if any."""

    starts: tuple[int, ...]
    unfinished: str = ""
    paths: tuple[str, ...] = ()


def file_name(start: int) -> str:
    return f"{start:0{NAME_DIGITS}d}"


def is_file_name(name: str) -> bool:
    """Whether a name is a number, like those of segments, queue files and queue folders."""
    return name.isascii() and name.isdecimal()


def list_files(directories: str | Sequence[str], size: int, key: str) -> FileList:
    """Return the files of one file queue, which may span several directories; `key` is the option
    that sets `size`, for the error message.

    Raises UnsupportedLayoutError for a foreign name, another size, a missing or a duplicate file.
    """
    if isinstance(directories, str):
        directories = (directories,)
    entries = sorted((e for d in directories for e in _entries(d)), key=lambda e: e.name)
    files: list[tuple[int, str]] = []
    unfinished = ""
    for entry in entries:
        name = entry.name
        if not (is_file_name(name) and file_name(int(name)) == name):
            raise UnsupportedLayoutError(
                f"{entry.path} is not a store file (its name is not an offset of "
                f"{NAME_DIGITS} digits). Move it away."
            )
        length = entry.stat().st_size
        if length == size:
            files.append((int(entry.name), entry.path))
        elif entry is entries[-1] and length < size and _only_zeros(entry.path, length):
            unfinished = entry.path
        else:
            raise UnsupportedLayoutError(
                f"{entry.path} has {length} bytes, {key} is {size}. Start with the size that this "
                "store was made with; nothing was changed."
            )
    for (before, path), (after, other) in itertools.pairwise(files):
        if after == before:
            raise UnsupportedLayoutError(f"{path} and {other} are the same segment. Move one away.")
        if after != before + size:
            raise UnsupportedLayoutError(
                f"Between {path} and {other} a file is missing. Restore it (is every directory "
                "of the log mounted?), or take this directory from another replica."
            )
    return FileList(tuple(f[0] for f in files), unfinished, tuple(f[1] for f in files))


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        return [entry for entry in os.scandir(directory) if not entry.is_dir()]
    except FileNotFoundError:
        return []


def _only_zeros(path: str, length: int) -> bool:
    with open(path, "rb", buffering=0) as file:
        for _ in range(0, length, _ZERO_SCAN_BYTES):
            if file.read(_ZERO_SCAN_BYTES).strip(b"\0"):
                return False
    return True
