"""The cluster of `cometmq up` that a program addresses: its directory and the files in it.

The data directory is the one of `--data`, or else the current directory or `data` in it. Its files
hold the addresses of the running processes, the cluster's token and the keys of the first user.
Files that are found without `--data` are used only for endpoints on this machine.
"""

import json
from pathlib import Path

from ..nodes.addresses import host_of, is_loopback
from .errors import CliError, Exit

#: Endpoints and processes of the running cluster, as in the ready file.
ADDRESSES_FILE = "up.json"
TOKEN_FILE = "cluster-token"
CREDENTIALS_FILE = "admin-credentials"


def check_directory(path: Path) -> None:
    """Raise CliError if `cometmq up` has not made the directory."""
    if not any((path / name).exists() for name in (TOKEN_FILE, CREDENTIALS_FILE)):
        raise CliError(f"{path} is not a data directory of `cometmq up`.", Exit.USAGE)


def existing(directory: Path, name: str) -> Path | None:
    """Return a file of a directory, if it exists."""
    return directory / name if (directory / name).exists() else None


def found_file(name: str, endpoint: str = "") -> Path | None:
    """Return a file of the current directory, or of `data` in it, for an endpoint on this machine.

    Without an endpoint, the file is returned for any use.
    """
    if endpoint and not all(is_loopback(host_of(part.strip())) for part in endpoint.split(";")):
        return None
    return existing(Path(), name) or existing(Path("data"), name)


def address(kind: str, file: Path | None) -> str:
    """Return the `endpoints` or the `nameservers` in an addresses file; "" without a file.

    Raises OSError for an unreadable file, CliError for one that `cometmq up` has not written.
    """
    if file is None:
        return ""
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))[kind])
    except (ValueError, KeyError, TypeError):
        raise CliError(f"{file} is damaged. Restart `cometmq up` to write it again.") from None
