"""The data directory of `cometmq up`: its lock, its secret and its files.

DATA/up.lock              held (flock) while a supervisor runs; contains its process id DATA/up.sock
the supervisor's control socket for `cometmq up restart` DATA/cluster-token        the secret of the
cluster's internal calls, generated once, mode 0600 DATA/<name>/broker.conf   (or namesrv.conf)
generated once, then edited by the user: missing keys are
                          added, existing keys are never changed
DATA/<name>/store         the broker's store
DATA/<name>/log           logs with bounded rotation
"""

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

from ..config import properties
from ..errors import CliError

_TOKEN_BYTES = 24
_PRIVATE = 0o600
_PID_BYTES_MAX = 32


class DataDirectory:
    """DATA, locked until `close`."""

    def __init__(self, path: Path) -> None:
        """Lock the directory. Raises CliError if it cannot be written or is locked."""
        self.path = path.absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(
                self.path / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise CliError(
                f"Cannot use {path} as data directory: {error.strerror}. Name another with --data."
            ) from None
        self._lock()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(self._lock_fd, _PID_BYTES_MAX).decode("ascii", "replace").strip()
            os.close(self._lock_fd)
            raise CliError(
                f"Another `cometmq up` (process {pid}) is running on {self.path}. Stop it with"
                " Ctrl-C, or name another directory with --data."
            ) from None
        os.ftruncate(self._lock_fd, 0)
        os.pwrite(self._lock_fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock_fd)

    @property
    def socket(self) -> Path:
        """The path of the control socket."""
        return socket_path(self.path)

    def token(self) -> str:
        """Return the cluster's secret; generate it if there is none."""
        path = self.path / "cluster-token"
        try:
            return path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            token = os.urandom(_TOKEN_BYTES).hex()
            _write_private(path, token + "\n")
            return token

    def configure(self, file: Path, wanted: Mapping[str, str], title: str) -> dict[str, str]:
        """Add the missing keys of `wanted` to `file`; returns all its keys and values.

        Raises CliError if the file cannot be read.
        """
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            _write_private(file, properties.dump(wanted, [title, "You can edit this file."]))
            return dict(wanted)
        except OSError as error:
            raise CliError(f"Cannot read {file}: {error.strerror}.") from None
        try:
            found = {entry.key: entry.value for entry in properties.read(file)}
        except properties.PropertiesError as error:
            raise CliError(str(error)) from None
        missing = {key: value for key, value in wanted.items() if key not in found}
        if missing:
            added = properties.dump(missing, ["added by cometmq up"])
            joint = "" if not text or text.endswith("\n") else "\n"
            _write_private(file, text + joint + added)
        return {**missing, **found}


def socket_path(data: Path) -> Path:
    """Return the path of the control socket in a data directory."""
    return data.absolute() / "up.sock"


def _write_private(path: Path, text: str) -> None:
    """Replace a file that holds a secret: atomic, readable only by its owner."""
    temporary = path.with_name(path.name + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _PRIVATE)
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    temporary.replace(path)
