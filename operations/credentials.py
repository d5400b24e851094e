"""Credentials: the user and the secret key that sign calls, and the file that holds them.

Protobuf is imported with the first signature: help needs none.
"""

from dataclasses import dataclass, field
from pathlib import Path

from .errors import CliError, Exit


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's name and secret key."""

    access_key: str
    secret_key: str = field(repr=False)

    def sign(self, date_time: str) -> tuple[tuple[str, str], ...]:
        """Return the headers of a call made at a time, as yyyyMMddTHHmmssZ."""
        from ..auth.signature import AUTHORIZATION, DATE_TIME, authorization

        header = authorization(self.access_key, self.secret_key, date_time)
        return (DATE_TIME, date_time), (AUTHORIZATION, header)


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
