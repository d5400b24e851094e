"""Secret files: a key or a token in a file that only its owner can read."""

from __future__ import annotations

import os
from pathlib import Path

_BYTES_MAX = 4_096
_BYTES_MIN = 16


def read_secret_file(path: Path, bytes_min: int = _BYTES_MIN) -> bytes:
    """Return the content without surrounding white space, at most 4,096 bytes.

    Raises ValueError if other users can read the file or it holds fewer than `bytes_min`, OSError.
    """
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        content = file.read(_BYTES_MAX).strip()
    if mode & 0o077:
        raise ValueError(
            f"{path} is readable by other users (mode {mode & 0o777:04o}): run chmod 600 {path}."
        )
    if len(content) < bytes_min:
        raise ValueError(f"{path} is too short: put at least {bytes_min} bytes in it.")
    return content


def read_token(file: str) -> bytes:
    """Return the bearer token in a file; empty without a file. Raises ValueError, OSError."""
    return read_secret_file(Path(file)) if file else b""
