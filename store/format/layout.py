"""File names and load rules of a directory of equal-sized files ("file queue").

    <20 decimal digits>     the start offset of the file; every file has exactly the configured size

Loading refuses unknown files and then changes nothing. A crash may leave one last file that is
empty or partly allocated (shorter, only zeros): it holds nothing and is reported for removal
(docs/formats/store-format.md, section 1).
"""

import itertools
import os
from collections.abc import Sequence

from msgspec import Struct

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
REPLICA_FILE = "replica.meta"
_ZERO_SCAN_BYTES = 1 << 20
#: What to do about a file that was cut, by the option that sets its size.
_REMEDIES = {
    "mappedFileSizeCommitLog": (
        "Take the segment from another replica (`cometmq store diff` compares them), or restore it "
        "from a backup."
    ),
    "mappedFileSizeConsumeQueue": (
        "Run `cometmq store repair` on the directory: it rebuilds the queue from the log."
    ),
    "mappedFileSizeConsumeQueueExt": (
        "Run `cometmq store repair` on the directory: it rebuilds the queue from the log."
    ),
    "mappedFileSizeTimerLog": (
        "Move the folder `timerlog` and the file `timerwheel` away: the start rebuilds both from "
        "the log."
    ),
}


class FileList(Struct, frozen=True):
    """Start offsets in ascending order with their paths, and an unfinished last file, if any."""

    starts: tuple[int, ...]
    unfinished: str = ""
    paths: tuple[str, ...] = ()


def check_name(name: str, what: str) -> str:
    """Return a name that becomes one component of a path. Raises ValueError for one that leaves its
    folder."""
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name[:80]!r} is not a valid {what}.")
    return name


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
            others = (other.stat().st_size for other in entries if other is not entry)
            cut = length < size and size in others
            raise UnsupportedLayoutError(_size_fault(entry.path, length, size, key, cut=cut))
    for (before, path), (after, other) in itertools.pairwise(files):
        if after == before:
            raise UnsupportedLayoutError(f"{path} and {other} are the same segment. Move one away.")
        if after != before + size:
            raise UnsupportedLayoutError(
                f"Between {path} and {other} a file is missing. Restore it (is every directory "
                "of the log mounted?), or take this directory from another replica."
            )
    return FileList(tuple(f[0] for f in files), unfinished, tuple(f[1] for f in files))


def _size_fault(path: str, length: int, size: int, key: str, *, cut: bool) -> str:
    """Return the sentence for a file of another size."""
    remedy = _REMEDIES.get(key, "Restore it from a backup.")
    if cut:
        return f"{path} was cut: it has {length} of {size} bytes. {remedy} Nothing was changed."
    ending = f", or, if the file was cut: {remedy}" if length < size else "."
    return (
        f"{path} has {length} bytes, {key} is {size}. Start with the size that this store was made "
        f"with{ending} Nothing was changed."
    )


def _entries(directory: str) -> list[os.DirEntry[str]]:
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return []
    folders = [entry for entry in entries if entry.is_dir()]
    for entry in folders:
        if is_file_name(entry.name) and len(entry.name) == NAME_DIGITS:
            raise UnsupportedLayoutError(
                f"{entry.path} is a directory in the place of a store file. Move it away, and "
                "restore the file from another replica or a backup. Nothing was changed."
            )
    return [entry for entry in entries if entry not in folders]


def _only_zeros(path: str, length: int) -> bool:
    with open(path, "rb", buffering=0) as file:
        for _ in range(0, length, _ZERO_SCAN_BYTES):
            if file.read(_ZERO_SCAN_BYTES).strip(b"\0"):
                return False
    return True
