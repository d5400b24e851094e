"""Key source: the key that encrypts users' secrets, from a file, the cluster token or a new file.

The key is read on first use, and derived for each salt (about 50 ms), so a broker without users
never pays for it.
"""

from __future__ import annotations

import os
import secrets
from functools import cached_property
from pathlib import Path

from ...auth.secret_file import read_secret_file
from ...auth.secrets import SecretKey

_GENERATED_BYTES = 32


class KeySource:
    """Provides the key of one broker instance."""

    def __init__(self, file: str, token: str, generated: Path) -> None:
        """`generated` is the path of the key that is made without a file and a token."""
        self._file = file
        self._token = token
        self._generated = generated

    @cached_property
    def key(self) -> SecretKey:
        """The key. Raises ValueError for an unsuitable file, OSError."""
        if self._file:
            return SecretKey(read_secret_file(Path(self._file)))
        if self._token:
            return SecretKey(self._token.encode())
        if not self._generated.exists():
            _generate(self._generated)
        return SecretKey(read_secret_file(self._generated))


def _generate(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(_GENERATED_BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
