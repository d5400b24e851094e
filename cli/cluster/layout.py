"""The data directory of `cometmq up`: who may use it, its secret, and the files in it.

DATA/up.lock              held (flock) as long as a supervisor runs; contains its process id
DATA/up.sock              the supervisor's door for `cometmq up restart`
DATA/cluster-token        the secret of the cluster's internal calls, made once, mode 0600
DATA/<name>/broker.conf   (or namesrv.conf) written once, then yours: keys that are missing are
                          added, keys that are there are never touched
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
    """DATA, locked for the life of this object."""

    def __init__(self, path: Path) -> None:
        """Take the directory. Raises CliError when it cannot be written or is taken."""
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
                f"Another `cometmq up` (process {pid}) runs on {self.path}: stop it with"
                " Ctrl-C, or name another directory with --data."
            ) from None
        os.ftruncate(self._lock_fd, 0)
        os.pwrite(self._lock_fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Give the directory back, as the end of the process does."""
        os.close(self._lock_fd)

    @property
    def socket(self) -> Path:
        """Where the supervisor listens."""
        return socket_path(self.path)

    def token(self) -> str:
        """The cluster's secret; made when there is none."""
        path = self.path / "cluster-token"
        try:
            return path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            token = os.urandom(_TOKEN_BYTES).hex()
            _write_private(path, token + "\n")
            return token

    def configure(self, file: Path, wanted: Mapping[str, str], title: str) -> dict[str, str]:
        """Make sure that `file` has all keys of `wanted`; returns what it says in the end.

        Raises CliError for a file that cannot be read.
        """
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            _write_private(file, properties.dump(wanted, [title, "Yours to edit."]))
            return dict(wanted)
        except OSError as error:
            raise CliError(f"Cannot read {file}: {error.strerror}.") from None
        try:
            said = {entry.key: entry.value for entry in properties.read(file)}
        except properties.PropertiesError as error:
            raise CliError(str(error)) from None
        missing = {key: value for key, value in wanted.items() if key not in said}
        if missing:
            added = properties.dump(missing, ["added by cometmq up"])
            joint = "" if not text or text.endswith("\n") else "\n"
            _write_private(file, text + joint + added)
        return {**missing, **said}


def socket_path(data: Path) -> Path:
    """The supervisor's socket in a data directory."""
    return data.absolute() / "up.sock"


def _write_private(path: Path, text: str) -> None:
    """Replace a file that holds a secret: readable by its owner only, whole at every moment."""
    temporary = path.with_name(path.name + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _PRIVATE)
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    temporary.replace(path)
