"""The commit record of one unit of work: which files belong to the archive because of it.

    1. files are written and synced below `_staging/NAME~TOKEN/`
    2. `_manifest/NAME.json`, synced, appears by link(2): the first try wins, later ones are discarded
    3. each file is renamed to where readers see it; files that the record replaces are removed
    4. the folders in `_staging` go

Promises: after step 2 the unit is done, whoever dies; `finish` (every writer calls it first) repeats the
steps that are left, which changes nothing when it is repeated. A file that readers see is always named
by a record, is whole, and is never written to again. So a plain listing of the folder has each row
exactly once as soon as the last crash was followed by one start; a record that replaces files
(compaction) lets a reader of the plain folder see both or none for a moment, readers of the records never.

Needs a POSIX file system that all workers share. Parquet and JSON are the only formats.
(pipeline study, sections 0 and 2.4)
"""

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from .errors import ArchiveError
from .names import ATTEMPT_MARK, MANIFESTS, SETTINGS, STAGING, manifest_path, sync_folder

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One Parquet file; paths are relative to the archive."""

    topic: str
    path: str
    staged: str
    rows: int
    bytes: int
    file_crc: int  #: CRC-32 of the file
    crc: int  #: CRC-32 over the bodies behind each other
    first: int = -1  #: smallest physical offset; -1: the rows have none
    last: int = -1


@dataclass(frozen=True, slots=True)
class Manifest:
    """One unit of work. `about` says what kind, and what its own kind wants to know."""

    name: str
    files: tuple[FileEntry, ...]
    removes: tuple[str, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows that it added."""
        return sum(file.rows for file in self.files)

    def encode(self) -> bytes:
        """As it is stored."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode()


def decode_manifest(data: bytes, path: str) -> Manifest:
    """Raises ArchiveError."""
    try:
        said = json.loads(data)
        if said["format"] != FORMAT:
            raise ArchiveError(f"{path} has format {said['format']}; this version writes {FORMAT}.")
        files = tuple(FileEntry(**one) for one in said["files"])
        return Manifest(said["name"], files, tuple(said["removes"]), said["about"])
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{path} is no commit record of an archive: {error}.") from error


def load(root: str, name: str) -> Manifest | None:
    """The record of a unit of work, if it is done. Raises ArchiveError, OSError."""
    path = manifest_path(root, name)
    try:
        with open(path, "rb") as file:
            return decode_manifest(file.read(), path)
    except FileNotFoundError:
        return None


def all_manifests(root: str, prefix: str = "") -> list[Manifest]:
    """Every record whose name begins so, by name. Raises ArchiveError, OSError."""
    found = []
    for name in sorted(_names(root)):
        if name.startswith(prefix):
            manifest = load(root, name)
            if manifest is not None:
                found.append(manifest)
    return found


def _names(root: str) -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError):
        for entry in os.listdir(os.path.join(root, MANIFESTS)):
            if entry.endswith(".json") and entry != SETTINGS and not entry.startswith("."):
                yield entry[:-5]


def files_of(manifests: Iterable[Manifest]) -> list[FileEntry]:
    """What is in the archive by these records: added and not replaced."""
    manifests = list(manifests)
    gone = {path for one in manifests for path in one.removes}
    return [file for one in manifests for file in one.files if file.path not in gone]


def replaced(manifests: Iterable[Manifest]) -> dict[str, tuple[str, ...]]:
    """For each file that is not there any more: the files that have its rows now."""
    direct = {
        path: tuple(file.path for file in one.files) for one in manifests for path in one.removes
    }

    def now(path: str) -> tuple[str, ...]:
        if path not in direct:
            return (path,)
        return tuple(found for new in direct[path] for found in now(new))

    return {path: now(path) for path in direct}


def new_token() -> str:
    """Of one try; no two have the same."""
    return uuid.uuid4().hex


# -- committing -------------------------------------------------------------------------------


def commit(root: str, manifest: Manifest) -> bool:
    """Steps 2 to 4. False: another try was first, and this one's files are gone. Raises OSError."""
    _sync_staged(root, manifest)
    won = _record(root, manifest)
    finish_one(root, manifest.name)
    return won


def _sync_staged(root: str, manifest: Manifest) -> None:
    for folder in {os.path.dirname(file.staged) for file in manifest.files}:
        sync_folder(os.path.join(root, folder))


def _record(root: str, manifest: Manifest) -> bool:
    folder = os.path.join(root, MANIFESTS)
    os.makedirs(folder, exist_ok=True)
    draft = os.path.join(folder, f".{new_token()}")
    _write(draft, manifest.encode())
    try:
        os.link(draft, manifest_path(root, manifest.name))
    except FileExistsError:
        return False
    finally:
        os.unlink(draft)
        sync_folder(folder)
    return True


def _write(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def finish(root: str) -> list[str]:
    """Publish what was recorded before somebody died; the names of those units."""
    done = []
    for name in {folder.partition(ATTEMPT_MARK)[0] for folder in _tries(root)}:
        if os.path.exists(manifest_path(root, name)):
            finish_one(root, name)
            done.append(name)
    return sorted(done)


def finish_one(root: str, name: str) -> None:
    """Steps 3 and 4 of a unit that is recorded. Raises ArchiveError, OSError."""
    manifest = load(root, name)
    assert manifest is not None, name
    published = [_publish(root, file) for file in manifest.files]
    folders = {folder for folder in published if folder}
    for folder in folders | {os.path.dirname(folder) for folder in folders}:
        sync_folder(folder)
    if folders:
        sync_folder(root)  # where the first file of a topic made a folder
    for path in manifest.removes:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(root, path))
    sweep(root, name + ATTEMPT_MARK)


def _publish(root: str, file: FileEntry) -> str:
    """Rename one file to its place; the folder, or "" when nothing was to do."""
    path = os.path.join(root, file.path)
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    try:
        os.rename(os.path.join(root, file.staged), path)
    except FileNotFoundError:
        return ""  # it was renamed before, and may have been compacted since
    return folder


def _tries(root: str) -> list[str]:
    try:
        return os.listdir(os.path.join(root, STAGING))
    except FileNotFoundError:
        return []


def sweep(root: str, prefix: str) -> int:
    """Remove what tries whose names begin so have left; returns how many. Only for units that are
    recorded, or that nobody works at."""
    swept = 0
    for folder in _tries(root):
        if folder.startswith(prefix):
            shutil.rmtree(os.path.join(root, STAGING, folder), ignore_errors=True)
            swept += 1
    return swept


def missing_files(root: str, manifests: Iterable[Manifest]) -> list[str]:
    """Files that the records name and nobody has."""
    return [
        file.path
        for file in files_of(manifests)
        if not os.path.exists(os.path.join(root, file.path))
    ]


def strays(root: str, manifests: Iterable[Manifest]) -> list[str]:
    """Files that a reader of the folder would see and no record names."""
    known = {file.path for file in files_of(manifests)}
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(("_", "."))]
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), root)
            if not name.startswith(("_", ".")) and path not in known:
                found.append(path)
    return sorted(found)
