"""The layout of a store directory, found from the files alone. Read only.

All sizes are derived from the files: a segment is as long as the distance to the next one, queue
files are as long as most of their kind. `Sizes` overrides that for directories that are too damaged
or too small (docs/formats/store-format.md, section 1).
"""

import itertools
import math
import os
import struct
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ..format.record_layout import UNIT_BYTES
from ..recovery import other_engines

QUEUE_KINDS: Final = {"consumequeue": UNIT_BYTES, "consumequeue_ext": 1, "batchconsumequeue": 46}
#: Files and folders of the format.
_FORMAT: Final = frozenset(
    (
        *("commitlog", "index", "checkpoint", "abort", "abort.bak", "lock"),
        *("timerwheel", "timerlog", "config", *QUEUE_KINDS),
    )
)
#: Also ours: replication, pages kept by recovery, files moved aside by a reseed. Others are
#: foreign.
_KNOWN: Final = _FORMAT | {"ha", "lost", "aside"}


#: Folders with the originals and the journal of a repair.
REPAIR_PREFIX: Final = "repair-"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes given by the operator; 0 and empty: derive from the files."""

    log_directories: tuple[str, ...] = ()
    segment: int = 0
    queue_file: int = 0
    ext_file: int = 0
    batch_file: int = 0
    timer_log_file: int = 0
    index_slots: int = 0
    index_entries: int = 0
    timer_precision_ms: int = 1000


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a file queue: its name is its start offset, `length` its actual length."""

    path: Path
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class FileQueue:
    """Consecutive files; `size` is the expected length of each."""

    files: tuple[DataFile, ...]
    size: int

    @property
    def start(self) -> int:
        return self.files[0].start if self.files else 0

    @property
    def end(self) -> int:
        return self.files[-1].start + self.size if self.files else 0


@dataclass(frozen=True, slots=True)
class QueueFolder:
    """The files of one queue; `kind` is the name of their root folder."""

    kind: str
    topic: str
    queue_id: int
    files: FileQueue


@dataclass(frozen=True, slots=True)
class Layout:
    """The contents of a store directory."""

    root: Path
    log: FileQueue
    queues: tuple[QueueFolder, ...]
    index: tuple[Path, ...]
    timer_log: FileQueue
    timer_wheel: Path | None
    checkpoint: Path | None
    config: tuple[Path, ...]
    foreign: tuple[str, ...]  #: folders and files outside of the format
    strays: tuple[Path, ...]  #: unknown files in the format's own folders
    clean: bool  #: no `abort`: the last run stopped cleanly
    owner: str  #: content of `abort`: the process id of the last run
    in_use: bool  #: a process holds the lock
    sizes: Sizes = field(default_factory=Sizes)

    def name(self, path: Path) -> str:
        """Return the path as in findings: relative to the directory if it lies inside."""
        try:
            return str(path.relative_to(self.root))
        except ValueError:
            return str(path)

    def of_kind(self, kind: str) -> Iterator[QueueFolder]:
        return (queue for queue in self.queues if queue.kind == kind)


class NoStoreError(Exception):
    """The path is not a directory, or not that of a store."""


def discover(root: Path, sizes: Sizes | None = None) -> Layout:
    """Inspect the directory. Raises NoStoreError, OSError."""
    sizes = sizes or Sizes()
    if not root.is_dir():
        raise NoStoreError(f"{root} is not a directory.")
    names = {entry.name: entry for entry in os.scandir(root)}
    if (
        not any(name.startswith("dledger-") for name in names)
        and not names.keys() & _FORMAT
        and not sizes.log_directories
    ):
        raise NoStoreError(
            f"{root} is not a store directory: it has none of commitlog, consumequeue, checkpoint."
        )
    if other := other_engines.found(root):
        raise NoStoreError(other)
    strays: list[Path] = []
    log_folders = [Path(name).expanduser() for name in sizes.log_directories]
    log = _file_queue(log_folders or [root / "commitlog"], sizes.segment, strays)
    abort = root / "abort"
    return Layout(
        root=root,
        log=log,
        queues=tuple(_queues(root, sizes, strays)),
        index=tuple(_index_files(root / "index", strays)),
        timer_log=_file_queue([root / "timerlog"], sizes.timer_log_file, strays),
        timer_wheel=_file(root / "timerwheel"),
        checkpoint=_file(root / "checkpoint"),
        config=tuple(sorted(p for p in _listed(root / "config") if p.is_file())),
        foreign=tuple(sorted(n + "/" * e.is_dir() for n, e in names.items() if not _is_known(n))),
        strays=tuple(strays),
        clean=not abort.exists(),
        owner=_read_text(abort),
        in_use=_is_locked(root / "lock"),
        sizes=sizes,
    )


def _is_known(name: str) -> bool:
    return name in _KNOWN or name.startswith(REPAIR_PREFIX)


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _file(path: Path) -> Path | None:
    return path if path.is_file() else None


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes()[:64].decode("ascii", "replace").strip()
    except OSError:
        return ""


def _data_files(folders: Iterable[Path], strays: list[Path]) -> list[DataFile]:
    files = []
    for folder in folders:
        for path in _listed(folder):
            if path.is_dir():
                continue
            if path.name.isascii() and path.name.isdecimal():
                files.append(DataFile(path, int(path.name), path.stat().st_size))
            else:
                strays.append(path)
    return sorted(files, key=lambda file: file.start)


def _file_queue(folders: Iterable[Path], size: int, strays: list[Path]) -> FileQueue:
    files = _data_files(folders, strays)
    return FileQueue(tuple(files), size or _usual_size([files]))


def _usual_size(queues: Iterable[list[DataFile]], unit: int = 1) -> int:
    """Return the size of most files, from their lengths and the distances between them."""
    votes: Counter[int] = Counter()
    starts: list[int] = []
    for files in queues:
        votes.update(file.length for file in files if file.length)
        # A file that was cut keeps its name: distances count too.
        votes.update(after.start - before.start for before, after in itertools.pairwise(files))
        starts += [file.start for file in files]
    if not votes:
        return 0
    # A file begins at a multiple of the size and holds whole units. Of equals the larger: files are
    # cut, never lengthened.
    common = math.gcd(*starts)
    fitting = [size for size in votes if common % size == 0 and size % unit == 0]
    if not fitting and common:
        # All were cut: the smallest size that they fit into and that yields these names.
        for count in range(common // max(votes), 0, -1):
            if common % (count * unit) == 0:
                return common // count
    return max(fitting or votes, key=lambda size: (votes[size], size))


def _queues(root: Path, sizes: Sizes, strays: list[Path]) -> Iterator[QueueFolder]:
    known = {
        "consumequeue": sizes.queue_file,
        "consumequeue_ext": sizes.ext_file,
        "batchconsumequeue": sizes.batch_file,
    }
    for kind, unit in QUEUE_KINDS.items():
        queues: list[tuple[str, int, list[DataFile]]] = []
        for topic in _listed(root / kind):
            if not topic.is_dir():
                strays.append(topic)
                continue
            for folder in _listed(topic):
                if folder.is_dir() and folder.name.isascii() and folder.name.isdecimal():
                    files = _data_files([folder], strays)
                    queues.append((topic.name, int(folder.name), files))
                else:
                    strays.append(folder)
        size = known[kind] or _usual_size((files for _, _, files in queues), unit)
        for name, queue_id, files in sorted(queues, key=lambda entry: entry[:2]):
            yield QueueFolder(kind, name, queue_id, FileQueue(tuple(files), size))


def _index_files(folder: Path, strays: list[Path]) -> Iterator[Path]:
    for path in _listed(folder):
        if path.is_file() and path.name.isascii() and path.name.isdecimal():
            yield path
        else:
            strays.append(path)


def _is_locked(path: Path) -> bool:
    """Return whether another process holds byte 0 of `lock`, without taking it."""
    if sys.platform != "linux":  # the structure below is Linux's
        return False
    import fcntl

    try:
        with open(path, "rb") as file:
            asked = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            answer = fcntl.fcntl(file, fcntl.F_GETLK, asked)
    except OSError:
        return False
    kind: int = struct.unpack_from("@h", answer)[0]
    return kind != fcntl.F_UNLCK
