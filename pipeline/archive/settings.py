"""Settings of an archive, fixed at its creation, and the lock of its writer.

All splits of an archive lie on one grid, so that concurrent writers choose the same unit name for
the same bytes and the first commit record wins. Losing `archive.json` loses the grid size; the
commit records stay valid.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final

from .errors import ArchiveError
from .manifest import FORMAT, new_token
from .names import LOCK, MANIFESTS, SETTINGS

SPLIT_BYTES: Final = 256 << 20
#: Smaller splits cost more than they save.
SPLIT_BYTES_MIN: Final = 4 << 10


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """Settings of one archive."""

    split_bytes: int = SPLIT_BYTES
    format: int = FORMAT


def open_archive(root: str, split_bytes: int | None = None) -> ArchiveSettings:
    """Create the archive, or check its settings. Raises ArchiveError, OSError."""
    if split_bytes is not None and split_bytes < SPLIT_BYTES_MIN:
        raise ArchiveError(f"splitBytes must be at least {SPLIT_BYTES_MIN}, not {split_bytes}.")
    path = os.path.join(root, MANIFESTS, SETTINGS)
    found = _read(path)
    if found is None:
        _make(path, ArchiveSettings(split_bytes or SPLIT_BYTES))
        found = _read(path)
        assert found is not None, path
    if found.format != FORMAT:
        raise ArchiveError(
            f"{root} has format {found.format}; this version supports format {FORMAT}."
        )
    if split_bytes not in (None, found.split_bytes):
        raise ArchiveError(
            f"{root} was created with splitBytes={found.split_bytes}, which cannot be changed to "
            f"{split_bytes}. Leave the option out or use another folder."
        )
    return found


def _read(path: str) -> ArchiveSettings | None:
    try:
        with open(path, "rb") as file:
            return ArchiveSettings(**json.load(file))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ArchiveError(f"{path} does not contain archive settings: {error}.") from error


def _make(path: str, settings: ArchiveSettings) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    draft = os.path.join(os.path.dirname(path), f".{new_token()}")
    with open(draft, "xb") as file:
        file.write(json.dumps(asdict(settings)).encode())
        file.flush()
        os.fsync(file.fileno())
    try:
        # The first process decides.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)


@contextmanager
def only_writer(root: str, what: str) -> Iterator[None]:
    """Hold the lock for the job `what` on this archive; it ends with the process.

    Raises ArchiveError if another process holds it.
    """
    path = os.path.join(root, MANIFESTS, f"{LOCK}-{what}")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"Another process runs the job {what} on the archive {root}. Wait until it ends."
            raise ArchiveError(text) from None
        yield
    finally:
        os.close(descriptor)
