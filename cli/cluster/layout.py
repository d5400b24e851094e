"""The data directory of `cometmq up`: its lock, its secret and its files.

DATA/up.lock              held (flock) while a supervisor runs; contains its process id
DATA/up.sock              the supervisor's control socket for `cometmq up restart|status|stop`
DATA/up.json              endpoints and processes of the running cluster, for the other commands
DATA/cluster-token        the secret of the cluster's internal calls, generated once, mode 0600
DATA/admin-credentials    access key and secret key of the first user (`--auth`), mode 0600
DATA/<name>/broker.conf   (or namesrv.conf) generated once, then edited by the user: missing keys
                          are added, existing keys are never changed
DATA/<name>/store         the broker's store
DATA/<name>/log           logs with bounded rotation
"""

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ...operations import private_file
from ...operations.credentials import file_text, read_file
from ...operations.errors import CliError
from ...operations.local_cluster import ADDRESSES_FILE, CREDENTIALS_FILE, TOKEN_FILE
from ...store.format.disk import shortage
from ..config import properties

_TOKEN_BYTES = 24
_PRIVATE = 0o600
_PID_BYTES_MAX = 32
_POLL_S = 0.05


@contextmanager
def using(path: Path) -> Iterator[None]:
    """Raise CliError instead of OSError: files of the data directory cannot be written."""
    try:
        yield
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        remedy = "Free space on its disk, or name" if shortage(error) else "Name"
        raise CliError(
            f"Cannot use {path} as data directory: {what}. {remedy} another with --data."
        ) from None


class DataDirectory:
    """DATA, locked until `close`."""

    def __init__(self, path: Path) -> None:
        """Lock the directory. Raises CliError if it cannot be written or is locked."""
        self.path = path.absolute()
        with using(path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock_fd = os.open(
                self.path / "up.lock",
                os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
                _PRIVATE,
            )
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

    @property
    def addresses(self) -> Path:
        """The file with the endpoints and processes; it exists while the cluster runs."""
        return self.path / ADDRESSES_FILE

    def token(self) -> str:
        """Return the cluster's secret; generate it if there is none."""
        path = self.path / TOKEN_FILE
        try:
            return path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            token = os.urandom(_TOKEN_BYTES).hex()
            private_file.replace(path, token + "\n")
            return token

    def admin(self) -> tuple[str, str]:
        """Return the access key and secret key of the first user; generate them if there are none.

        Raises CliError if the file cannot be read.
        """
        path = self.path / CREDENTIALS_FILE
        if not path.exists():
            private_file.replace(path, file_text("admin", os.urandom(_TOKEN_BYTES).hex()))
        found = read_file(path)
        return found.access_key, found.secret_key

    def configure(self, file: Path, wanted: Mapping[str, str], title: str) -> dict[str, str]:
        """Add the missing keys of `wanted` to `file`; returns all its keys and values.

        Raises CliError if the file cannot be read.
        """
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            text = file.read_text(encoding="utf-8", errors="surrogateescape")
        except FileNotFoundError:
            private_file.replace(file, properties.dump(wanted, [title, "You can edit this file."]))
            return dict(wanted)
        except OSError as error:
            raise CliError(f"Cannot read {file}: {error.strerror}.") from None
        found = read_settings(file)
        missing = {key: value for key, value in wanted.items() if key not in found}
        if missing:
            added = properties.dump(missing, ["added by cometmq up"])
            joint = "" if not text or text.endswith("\n") else "\n"
            private_file.replace(file, text + joint + added)
        return {**missing, **found}


def read_settings(file: Path) -> dict[str, str]:
    """Return the keys and values of a configuration file; {} if there is none. Raises CliError."""
    try:
        return {entry.key: entry.value for entry in properties.read(file)}
    except properties.PropertiesError as error:
        raise CliError(str(error)) from None
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CliError(f"Cannot read {file}: {error.strerror}.") from None


def wait_until_free(data: Path, timeout_s: float) -> None:
    """Wait until no supervisor holds the lock of a data directory. Raises CliError."""
    end_s = time.monotonic() + timeout_s
    with (data / "up.lock").open("rb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > end_s:
                    text = f"`cometmq up` on {data} has not ended within {timeout_s:g} s."
                    raise CliError(text) from None
                time.sleep(_POLL_S)


def socket_path(data: Path) -> Path:
    """Return the path of the control socket in a data directory."""
    return data.absolute() / "up.sock"
