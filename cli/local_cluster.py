"""The cluster of `cometmq up` that a command addresses: its directory and the files in it.

The data directory is the one of `--data`, or else the current directory or `data` in it. Its files
hold the addresses of the running processes, the cluster's token and the keys of the first user.
Files that are found without `--data` are used only for endpoints on this machine.
"""

import json
from pathlib import Path

import click

from ..proto.addresses import host_of, is_loopback
from .errors import CliError, Exit

#: Endpoints and processes of the running cluster, as in the ready file.
ADDRESSES_FILE = "up.json"
TOKEN_FILE = "cluster-token"
CREDENTIALS_FILE = "admin-credentials"
#: Key of the directory given by `--data` in click's context.
DATA_KEY = "cometmq.data"


def keep_directory(ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    """Keep the value of `--data`. Raises CliError if `cometmq up` has not made the directory."""
    if path is None:
        return
    check_directory(path)
    ctx.meta[DATA_KEY] = path


def check_directory(path: Path) -> None:
    """Raise CliError if `cometmq up` has not made the directory."""
    if not any((path / name).exists() for name in (TOKEN_FILE, CREDENTIALS_FILE)):
        raise CliError(f"{path} is not a data directory of `cometmq up`.", Exit.USAGE)


def named_file(name: str) -> Path | None:
    """Return a file of the directory given by `--data`, if it exists."""
    ctx = click.get_current_context(silent=True)
    data: Path | None = ctx.meta.get(DATA_KEY) if ctx is not None else None
    return None if data is None else existing(data, name)


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
    """Return `endpoints` or `nameservers` of an addresses file; "" without one.

    Raises OSError for an unreadable file, CliError for one that `cometmq up` has not written.
    """
    if file is None:
        return ""
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))[kind])
    except (ValueError, KeyError, TypeError):
        raise CliError(f"{file} is damaged. Restart `cometmq up` to write it again.") from None
