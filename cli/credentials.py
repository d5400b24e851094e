"""Credentials: the user and the secret key that sign the calls of the command line.

In this order: the file `admin-credentials` (written by `cometmq up --auth`) of the directory given
by `--data`; the user of the context, for addresses of the context; for other addresses
COMETMQ_ACCESS_KEY with COMETMQ_SECRET_KEY, or the file of the current directory, or of `data` in
it, for endpoints on this machine.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from ..auth.signature import AUTHORIZATION, DATE_TIME, authorization
from .context.chosen import context_of
from .errors import CliError, Exit
from .local_cluster import CREDENTIALS_FILE, found_file, named_file


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's name and secret key."""

    access_key: str
    secret_key: str = field(repr=False)

    def sign(self, date_time: str) -> tuple[tuple[str, str], ...]:
        """Return the headers of a call made at a time, as yyyyMMddTHHmmssZ."""
        header = authorization(self.access_key, self.secret_key, date_time)
        return (DATE_TIME, date_time), (AUTHORIZATION, header)


def credentials(endpoint: str) -> Credentials | None:
    """Return the credentials for an endpoint, or None. Raises CliError."""
    if named := named_file(CREDENTIALS_FILE):
        return read_file(named)
    if context := context_of(endpoint):
        keys = context.access_key, context.secret_key
        return Credentials(*keys) if context.access_key else None
    access_key = os.environ.get("COMETMQ_ACCESS_KEY", "")
    secret_key = os.environ.get("COMETMQ_SECRET_KEY", "")
    if bool(access_key) != bool(secret_key):
        raise CliError("Set both COMETMQ_ACCESS_KEY and COMETMQ_SECRET_KEY, or none.", Exit.USAGE)
    if access_key:
        return Credentials(access_key, secret_key)
    found = found_file(CREDENTIALS_FILE, endpoint)
    return read_file(found) if found else None


class Keys(TypedDict):
    """Fields of a job's plan."""

    access_key: str
    secret_key: str


def access_for(endpoint: str) -> Keys:
    """Return the keys for an endpoint; empty without credentials. Raises CliError."""
    found = credentials(endpoint) if endpoint else None
    if found is None:
        return Keys(access_key="", secret_key="")
    return Keys(access_key=found.access_key, secret_key=found.secret_key)


def file_text(access_key: str, secret_key: str) -> str:
    """Return the content of a credentials file."""
    return f"accessKey={access_key}\nsecretKey={secret_key}\n"


def read_file(path: Path) -> Credentials:
    """Read a credentials file. Raises CliError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise CliError(f"Cannot read {path}: {error.strerror}.", Exit.USAGE) from None
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    if not values.get("accessKey") or not values.get("secretKey"):
        raise CliError(f"{path} has no accessKey= and secretKey= lines.", Exit.USAGE)
    return Credentials(values["accessKey"], values["secretKey"])
