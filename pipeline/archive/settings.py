"""What holds for a whole archive, written when it is made; and who may write to it now.

The borders of splits come from one grid for ever: two writers that do not know of each other then choose
the same name for the same bytes, and the first commit record wins. Losing `archive.json` costs the
answer to "which grid"; the records still say what is there.
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
#: Below that a split costs more than it does.
SPLIT_BYTES_MIN: Final = 4 << 10


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """Of one archive."""

    split_bytes: int = SPLIT_BYTES
    format: int = FORMAT


def open_archive(root: str, split_bytes: int | None = None) -> ArchiveSettings:
    """Make the archive, or check that it is one of these settings. Raises ArchiveError, OSError."""
    if split_bytes is not None and split_bytes < SPLIT_BYTES_MIN:
        raise ArchiveError(f"splitBytes must be at least {SPLIT_BYTES_MIN}, but is {split_bytes}.")
    path = os.path.join(root, MANIFESTS, SETTINGS)
    found = _read(path)
    if found is None:
        _make(path, ArchiveSettings(split_bytes or SPLIT_BYTES))
        found = _read(path)
        assert found is not None, path
    if found.format != FORMAT:
        raise ArchiveError(f"{root} has format {found.format}; this version writes {FORMAT}.")
    if split_bytes not in (None, found.split_bytes):
        raise ArchiveError(
            f"{root} was made with splitBytes={found.split_bytes}, which cannot be changed to "
            f"{split_bytes}: leave the option out, or take another folder."
        )
    return found


def _read(path: str) -> ArchiveSettings | None:
    try:
        with open(path, "rb") as file:
            return ArchiveSettings(**json.load(file))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ArchiveError(f"{path} is not the description of an archive: {error}.") from error


def _make(path: str, settings: ArchiveSettings) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    draft = os.path.join(os.path.dirname(path), f".{new_token()}")
    with open(draft, "xb") as file:
        file.write(json.dumps(asdict(settings)).encode())
        file.flush()
        os.fsync(file.fileno())
    try:
        # Whoever is first decides.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)


@contextmanager
def only_writer(root: str, what: str) -> Iterator[None]:
    """Be the one driver that plans `what` on this archive; the kernel ends it with the process.
    Raises ArchiveError."""
    path = os.path.join(root, MANIFESTS, f"{LOCK}-{what}")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"Another process does the same ({what}) on the archive {root}."
            raise ArchiveError(text) from None
        yield
    finally:
        os.close(descriptor)
