"""`--secret` and `--secret-file`: the secret key of a user, or none, which generates one."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ...auth.secret_file import read_secret_file
from ...operations.errors import CliError, Exit

F = TypeVar("F", bound=Callable[..., Any])
_FROM_INPUT = "-"


def secret_options(command: F) -> F:
    """Add the options; the command gets `secret`, empty without them."""

    @click.option(
        "--secret",
        default="",
        help="Secret key [default: generated and printed]. Other users of this machine see it in "
        "the list of processes: better use --secret-file.",
    )
    @click.option(
        "--secret-file",
        "secret_file",
        default="",
        metavar="FILE",
        help="File with the secret key (mode 0600); - asks for it, or reads a line of the input.",
    )
    @functools.wraps(command)
    def run(*, secret: str, secret_file: str, **more: Any) -> Any:
        if secret and secret_file:
            raise CliError("Give --secret or --secret-file, not both.", Exit.USAGE)
        return command(secret=_read(secret_file) if secret_file else secret, **more)

    return run  # type: ignore[return-value]


def _read(file: str) -> str:
    """Return the secret key of a file, or of the input. Raises CliError."""
    if file == _FROM_INPUT:
        if sys.stdin.isatty():
            return str(click.prompt("Secret key", hide_input=True, confirmation_prompt=True))
        secret = sys.stdin.readline().strip()
        if not secret:
            raise CliError("The standard input has no secret key in its first line.", Exit.USAGE)
        return secret
    try:
        return read_secret_file(Path(file), 1).decode()
    except OSError as error:
        raise CliError(f"Cannot read {file}: {error.strerror}.", Exit.USAGE) from None
    except ValueError as error:
        raise CliError(str(error), Exit.USAGE) from None
