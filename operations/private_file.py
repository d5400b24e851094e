"""Permissions of files: secrets, configuration files and stores are private to their owner."""

import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path

logger = logging.getLogger(__name__)
#: Umask of the server processes; the broker sets that of `storeFileMode`.
PRIVATE_UMASK = 0o077
_PRIVATE = 0o600


def replace(path: Path, text: str, mode: int = _PRIVATE) -> None:
    """Replace a file atomically. The temporary file is always a new one: an existing file or
    symbolic link of its name is removed, not written. Raises OSError."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, mode)
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    temporary.replace(path)


def restrict(directories: Iterable[Path], umask: int) -> None:
    """Take the permissions in `umask` from existing directories of this user. Raises OSError."""
    for path in directories:
        if not path.is_dir():
            continue
        before = path.stat()
        mode = stat.S_IMODE(before.st_mode)
        if mode & umask and before.st_uid == os.geteuid():
            path.chmod(mode & ~umask)
            logger.warning("directory.restricted path=%s from=%o to=%o", path, mode, mode & ~umask)
