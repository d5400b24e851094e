"""Commit record of one unit of work: the files that it adds to the archive.

    1. files are written and synced below `_staging/NAME~TOKEN/`
    2. `_manifest/NAME.json`, synced, appears by link(2): the first attempt wins, later ones are
       discarded
    3. each file is renamed to its final path; files that the record replaces are removed
    4. the unit's folders in `_staging` are removed

After step 2 the unit is committed. `finish`, which every writer calls first, repeats steps 3 and 4
of a crashed process; repeating them changes nothing. A visible file is always complete, named by a
record and never modified. A listing of the folder therefore has each row exactly once after the
next start of a writer. During compaction a reader of the plain folder may briefly see a row twice
or not at all; readers of the records never do.

Needs a POSIX file system shared by all workers.
"""

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ...store.format.layout import check_name
from .errors import ArchiveError
from .names import (
    ATTEMPT_MARK,
    MANIFESTS,
    SETTINGS,
    STAGING,
    check_relative,
    manifest_path,
    sync_folder,
)

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
    crc: int  #: CRC-32 of the concatenated bodies
    first: int = -1  #: smallest physical offset; -1: rows without physical offsets
    last: int = -1


@dataclass(frozen=True, slots=True)
class Manifest:
    """Commit record of a unit of work. `about` has its kind and the kind's fields."""

    name: str
    files: tuple[FileEntry, ...]
    removes: tuple[str, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of rows in its files."""
        return sum(file.rows for file in self.files)

    def encode(self) -> bytes:
        """Return the record as JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode()


def decode_manifest(data: bytes, path: str) -> Manifest:
    """Parse a commit record. Raises ArchiveError."""
    try:
        document = json.loads(data)
        if document["format"] != FORMAT:
            raise ArchiveError(
                f"{path} has format {document['format']}; this version supports format {FORMAT}."
            )
        files = tuple(FileEntry(**one) for one in document["files"])
        for file in files:
            check_relative(file.path)
            check_relative(file.staged)
        removes = tuple(check_relative(one) for one in document["removes"])
        name = check_name(document["name"], "name of a unit of work")
        if os.path.basename(path) != os.path.basename(manifest_path("", name)):
            raise ValueError(f"it is the record of {name!r}")
        return Manifest(name, files, removes, document["about"])
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{path} is not a commit record of an archive: {error}.") from error


def load(root: str, name: str) -> Manifest | None:
    """Return the record of a unit of work; None if it is not committed.

    Raises ArchiveError, OSError.
    """
    path = manifest_path(root, name)
    try:
        with open(path, "rb") as file:
            return decode_manifest(file.read(), path)
    except FileNotFoundError:
        return None


def all_manifests(root: str, prefix: str = "") -> list[Manifest]:
    """Return the records whose names begin with `prefix`, by name. Raises ArchiveError, OSError."""
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
    """Return the files that these records add and none of them replaces."""
    manifests = list(manifests)
    removed = {path for one in manifests for path in one.removes}
    return [file for one in manifests for file in one.files if file.path not in removed]


def replaced(manifests: Iterable[Manifest]) -> dict[str, tuple[str, ...]]:
    """Return for each replaced file the files that contain its rows now."""
    direct = {
        path: tuple(file.path for file in one.files) for one in manifests for path in one.removes
    }

    def current(path: str) -> tuple[str, ...]:
        if path not in direct:
            return (path,)
        return tuple(found for new in direct[path] for found in current(new))

    return {path: current(path) for path in direct}


def new_token() -> str:
    """Return a unique token for one attempt."""
    return uuid.uuid4().hex


# -- committing -------------------------------------------------------------------------------


def commit(root: str, manifest: Manifest) -> bool:
    """Execute steps 2 to 4. Return False if another attempt was committed first. Raises OSError."""
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
    """Publish units that were committed before a crash. Return their names."""
    done = []
    for name in {folder.partition(ATTEMPT_MARK)[0] for folder in _attempts(root)}:
        if os.path.exists(manifest_path(root, name)):
            finish_one(root, name)
            done.append(name)
    return sorted(done)


def finish_one(root: str, name: str) -> None:
    """Execute steps 3 and 4 of a committed unit. Raises ArchiveError, OSError."""
    manifest = load(root, name)
    assert manifest is not None, name
    published = [_publish(root, file) for file in manifest.files]
    folders = {folder for folder in published if folder}
    for folder in folders | {os.path.dirname(folder) for folder in folders}:
        sync_folder(folder)
    if folders:
        sync_folder(root)  # the first file of a topic creates a folder
    for path in manifest.removes:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(root, path))
    sweep(root, name + ATTEMPT_MARK)


def _publish(root: str, file: FileEntry) -> str:
    """Rename one file to its final path. Return its folder, or "" if there was nothing to do."""
    path = os.path.join(root, file.path)
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    try:
        os.rename(os.path.join(root, file.staged), path)
    except FileNotFoundError:
        return ""  # already renamed, and perhaps compacted since
    return folder


def _attempts(root: str) -> list[str]:
    try:
        return os.listdir(os.path.join(root, STAGING))
    except FileNotFoundError:
        return []


def sweep(root: str, prefix: str) -> int:
    """Remove staging folders whose names begin with `prefix`. Return their number.

    Only for units that are committed or have no running attempt.
    """
    swept = 0
    for folder in _attempts(root):
        if folder.startswith(prefix):
            shutil.rmtree(os.path.join(root, STAGING, folder), ignore_errors=True)
            swept += 1
    return swept


def missing_files(root: str, manifests: Iterable[Manifest]) -> list[str]:
    """Return the files named by the records that do not exist."""
    return [
        file.path
        for file in files_of(manifests)
        if not os.path.exists(os.path.join(root, file.path))
    ]


def strays(root: str, manifests: Iterable[Manifest]) -> list[str]:
    """Return the visible files that no record names."""
    known = {file.path for file in files_of(manifests)}
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(("_", "."))]
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), root)
            if not name.startswith(("_", ".")) and path not in known:
                found.append(path)
    return sorted(found)
