"""Holdings: what a store has, recorded twice beside it; a start compares it with what is there.

    <store>/ha/holdings, <store>/config/holdings    two slots each (format/slot_file.py)

    revision     of two copies the larger one counts
    id           random; names the store, in both copies and in `consumerOffset.json`
    log_start    lowest offset that retention has left, durable before a segment is deleted
    log_end      the log was flushed up to here
    log_first    store time, born time and body checksum of the record at `log_start`
    parts        files and folders that this store must have (`PARTS`)

What is noted is durable before the note is written, so what is missing later was lost, even after a
power loss. `log_end` follows each segment of the log, not each flush.

A part that is absent, older or another store's is refused before anything is changed: its content
would be missing without a word, and new messages would get offsets that groups have passed. With
`acceptAbsent` the start takes what is there for all of it. A store without this record (Apache's,
or of an older version) is accepted as it is, and so is one that Apache's broker has written since:
the checkpoint shows that, and `consumerOffset.json`, which Apache's broker writes without the id.
Apache's broker ignores both files.
"""

import logging
import os
import re
import threading
import uuid
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from .config.store_config import StoreConfig
from .format.disk import Disk
from .format.errors import AbsentPartError, RecordFormatError, StoreError
from .format.json_file import STORE_KEY, ConfigSyntaxError, backup_of, unseal
from .format.layout import CONFIG_FOLDER, QUEUE_FOLDER, REPLICA_FOLDER
from .format.record import decode
from .format.slot_file import SLOT_BYTES, encode_slot, newest_slot
from .log.commit_log import CommitLog

logger = logging.getLogger(__name__)

_STORE_ID: Final = re.compile(rf'"{STORE_KEY}":"([^"]*)"')

_EMPTY_TABLE: Final = b'"offsetTable":{}'
#: Contents of a file that has lost its table.
_NOTHING: Final = (b"", b"{}", b"[]", b"null")

FILE_NAME: Final = "holdings"
_OFFSETS: Final = f"{CONFIG_FOLDER}/consumerOffset.json"
#: Files that cannot be rebuilt from the log. Each counts as present while its backup is, and as
#: empty without an entry.
PARTS: Final = (
    QUEUE_FOLDER,
    _OFFSETS,
    *(
        f"{CONFIG_FOLDER}/{name}"
        for name in (
            "lmqConsumerOffset.json",
            "delayOffset.json",
            "topicQueueMapping.json",
            "messageRequestMode.json",
            "auth.key",
        )
    ),
)


@dataclass(frozen=True, slots=True)
class Holdings:
    """The content of the record."""

    id: str
    revision: int = 0
    log_start: int = 0
    log_end: int = 0
    log_first: tuple[int, ...] = ()
    parts: tuple[str, ...] = field(default=())


def paths(root: Path) -> tuple[Path, Path]:
    """Return the paths of both copies."""
    return root / REPLICA_FOLDER / FILE_NAME, root / CONFIG_FOLDER / FILE_NAME


def forget(root: Path, disk: Disk) -> None:
    """Remove the record: the next start accepts what is there. For changes of the closed store that
    are meant, such as a cut of its log. Raises OSError."""
    for path in paths(root):
        with suppress(FileNotFoundError):
            disk.unlink(str(path))
            disk.sync_directory(str(path.parent))


def load(root: Path) -> list[Holdings]:
    """Return the copies that can be read, the newest first. Raises OSError."""
    found = []
    for path in paths(root):
        with suppress(FileNotFoundError):
            slot = newest_slot(path.read_bytes())
            if slot is not None:
                # Another version may have other fields.
                content = {key: slot[1][key] for key in Holdings.__slots__ if key in slot[1]}
                for key in ("log_first", "parts"):
                    content[key] = tuple(content.get(key, ()))
                found.append(Holdings(**content))
    return sorted(found, key=lambda note: -note.revision)


def lowered(root: Path, log_end: int) -> bytes:
    """Return the content of a copy for a log that was cut at `log_end`. Raises OSError."""
    held = load(root)[0]
    held = replace(held, log_end=min(held.log_end, log_end), revision=held.revision + 1)
    slot = encode_slot(held.revision, asdict(held))
    return slot.rjust((held.revision % 2 + 1) * SLOT_BYTES, b"\0").ljust(2 * SLOT_BYTES, b"\0")


def present_parts(root: Path, known: Collection[str]) -> Iterator[str]:
    """Yield the parts that are there and not empty. Those in `known` are not read: they had
    entries before."""
    for name in PARTS:
        path = root / name
        with suppress(OSError):
            if path.is_dir():
                with os.scandir(path) as entries:
                    if any(entries):
                        yield name
            elif any(_has_entries(p, name in known) for p in (path, backup_of(path))):
                yield name


def _has_entries(path: Path, known: bool) -> bool:
    if not path.exists():
        return False
    # No broker writes a file without the name of its table.
    if path.stat().st_size < len(_EMPTY_TABLE) and path.read_bytes().strip() in _NOTHING:
        return False
    return known or _EMPTY_TABLE not in path.read_bytes()


def _id_in(path: Path) -> str | None:
    """Return the store's id in a file; "" in one without, None without a file that is whole."""
    try:
        text = unseal(path.read_bytes().decode())
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError, ConfigSyntaxError):
        return None
    match = _STORE_ID.search(text)
    return match[1] if match is not None else "" if text else None


def _segment_of(end: int, segment_bytes: int) -> int:
    """Return the number of the segment in which the last byte before `end` lies; -1 for 0."""
    return (end - 1) // segment_bytes


def first_record(log: CommitLog, offset: int) -> tuple[int, ...]:
    """Return store time, born time and body checksum of the record at `offset`; () without one."""
    try:
        record = decode(log.record_at(offset))
    except (StoreError, RecordFormatError):
        return ()
    return record.store_timestamp_ms, record.born_timestamp_ms, record.body_crc


def is_same_record(before: tuple[int, ...], now: tuple[int, ...]) -> bool:
    """Return whether two values of `first_record` may be of one record, one of whose bytes was
    damaged."""
    return not before or not now or sum(a == b for a, b in zip(before, now, strict=True)) > 1


class HoldingsFile:
    """The record of one store: `check` before anything is changed, then `save`."""

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self._root = config.root
        self._accept = config.accept_absent
        self._paths = paths(config.root)
        self._log_paths = ", ".join(str(path) for path in config.commit_log_directories)
        self._disk = disk
        self._held: Holdings | None = None
        self._own_id = ""  # for a new record: files of this store may have the id of a former one
        self._known = False  # the record is this store's, so `id` stays
        self._raised = 0  # the log may begin here: what lies in front of it is being deleted
        self._lock = threading.Lock()  # the flush thread and retention's thread save

    @property
    def id(self) -> str:
        """The store's id; "" before the first `save` of a new store."""
        return self._held.id if self._held is not None else ""

    @property
    def log_end(self) -> int:
        """The log had been flushed up to here; 0 = unknown."""
        return self._held.log_end if self._held is not None else 0

    def load(self) -> None:
        """Read the record. Raises AbsentPartError if its copies are of two stores, OSError."""
        found = load(self._root)
        if len({note.id for note in found}) > 1:
            self._refuse(
                f"{self._paths[0].parent} and {self._paths[1].parent} are of different stores. "
                "Put the folder of this store back."
            )
        self._held = found[0] if found else None
        if self._held is None:
            ids = (_id_in(self._root / name) for name in PARTS)
            self._own_id = next(filter(None, ids), "")
        elif _OFFSETS in self._held.parts and _id_in(self._root / _OFFSETS) == "":
            self.ignore()  # Apache's broker has written it

    def ignore(self) -> None:
        """Drop what the record says of the log: another program has written the store since."""
        if self._held is not None:
            self._held = replace(self._held, log_start=1 << 62, log_end=0, log_first=())

    def check_log(self, log: CommitLog, evidence: str) -> None:
        """Compare the log with the record. `evidence` names what else shows that there was a log,
        or is "". Raises AbsentPartError."""
        held = self._held
        if not log.segments:
            if held is not None and held.log_end:
                evidence = f"the log had been flushed up to offset {held.log_end}"
            if evidence:
                self._refuse(
                    f"The commit log is missing: {self._log_paths} has no segment, but {evidence}. "
                    "Mount its disk, or correct storePathCommitLog."
                )
            return
        if held is None or not held.log_end:
            return
        if log.start > held.log_start:
            self._refuse(
                f"The first part of the commit log is missing: it begins at offset {log.start}, "
                f"but retention has left everything from offset {held.log_start} on. Put the files "
                f"back into {self._log_paths} (is every directory mounted?)."
            )
        elif held.log_start < log.end and not is_same_record(
            held.log_first, first_record(log, held.log_start)
        ):
            self._refuse(
                f"The commit log in {self._log_paths} is another store's: its record at offset "
                f"{held.log_start} is not the one that this store had there. Put this store's log "
                "back, or correct storePathCommitLog."
            )

    def check_parts(self, log: CommitLog) -> None:
        """Compare the other parts with the record. Raises AbsentPartError."""
        if self._held is None:
            return
        missing = [*self._held.parts]
        for name in present_parts(self._root, self._held.parts):
            if name in missing:
                missing.remove(name)
        if QUEUE_FOLDER in missing and log.start == 0:
            missing.remove(QUEUE_FOLDER)  # the log has every record: the queues are rebuilt
            logger.warning("queues.absent: consumequeue is missing; it is rebuilt from the log.")
        for name in PARTS:
            path = self._root / name
            if _id_in(path) not in (None, "", self.id):
                self._refuse(f"{path} is another store's. Put this store's file back.")
        if missing:
            names = ", ".join(str(self._root / name) for name in missing)
            self._refuse(
                f"{names} {'is' if len(missing) == 1 else 'are'} missing or empty, but the store "
                "had it. Put it back from a backup or, in a group of replicas, let this one copy "
                "the data of the leader (cometmq ha reseed)."
            )

    def _refuse(self, what: str) -> None:
        if not self._accept:
            raise AbsentPartError(
                f"{what} If this loss is meant, start once with acceptAbsent=true. "
                "Nothing was changed."
            )
        logger.warning("store.absent_accepted: %s", what)

    # -- saving -------------------------------------------------------------------------------

    def needs(self, log: CommitLog, flushed: int) -> bool:
        """Return whether the log was flushed into a segment of which the record knows nothing."""
        size = log.segment_bytes
        return _segment_of(flushed, size) != _segment_of(self.log_end, size)

    def save(self, log: CommitLog, flushed: int, *, queues_durable: bool = False) -> None:
        """Record what is there now, if that changed by more than the end of the last segment. The
        log must be flushed up to `flushed`. Any thread. Raises OSError, also without disk space."""
        with self._lock:
            held = self._held or Holdings(self._own_id or str(uuid.uuid4()))
            start, first = log.start, held.log_first  # retention may delete a segment meanwhile
            if start < self._raised <= log.end:
                start = held.log_start
            elif not self._known or not first or held.log_start != start:
                first = first_record(log, start) if start < flushed else ()
            parts = self._durable_parts(held.parts, queues_durable)
            now = replace(held, log_start=start, log_first=first, parts=parts)
            if now != held or not self._known or self.needs(log, flushed):
                self._write(replace(now, log_end=flushed))

    def finish(self, log: CommitLog, flushed: int) -> None:
        """Record the end of the log at a clean stop, with the queues flushed. Raises OSError."""
        self._held = replace(self._held, log_end=0) if self._held is not None else None
        self.save(log, flushed, queues_durable=True)

    def raise_start(self, log: CommitLog, offset: int) -> None:
        """Record that the log may begin at `offset`, before what lies in front of it is deleted;
        the queues are flushed. Raises OSError."""
        with self._lock:
            held = self._held
            if held is not None and held.log_start < offset:
                first = first_record(log, offset)
                parts = self._durable_parts(held.parts, queues_durable=True)
                self._write(replace(held, log_start=offset, log_first=first, parts=parts))
                self._raised = offset

    def _durable_parts(self, known: Collection[str], queues_durable: bool) -> tuple[str, ...]:
        """Return the parts that are there, each durable: a power loss does not take them. The
        queues count once they were flushed: before, the log has all of their records."""
        parts = [
            name
            for name in present_parts(self._root, known)
            if queues_durable or name != QUEUE_FOLDER or name in known
        ]
        new = [self._root / name for name in parts if name not in known]
        for path in new:
            for one in (path, backup_of(path)):
                if one.is_file():
                    _sync_file(one, self._disk)
        for folder in {path.parent for path in new}:
            self._disk.sync_directory(str(folder))
        return tuple(parts)

    def _write(self, held: Holdings) -> None:
        held = replace(held, revision=held.revision + 1)
        slot = encode_slot(held.revision, asdict(held))
        for path in self._paths:
            _write_slot(path, slot, held.revision, self._disk)
        self._held, self._known = held, True


def _sync_file(path: Path, disk: Disk) -> None:
    descriptor = disk.open(str(path), os.O_RDONLY)
    try:
        disk.fsync(descriptor)
    finally:
        disk.close(descriptor)


def _write_slot(path: Path, slot: bytes, revision: int, disk: Disk) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = disk.open(str(path), os.O_RDWR | os.O_CREAT)
    try:
        is_new = os.fstat(descriptor).st_size < 2 * SLOT_BYTES
        if is_new:
            disk.fallocate(descriptor, 2 * SLOT_BYTES)
        disk.pwrite(descriptor, slot, revision % 2 * SLOT_BYTES)
        disk.fdatasync(descriptor)
    finally:
        disk.close(descriptor)
    if is_new:
        disk.sync_directory(str(path.parent))
