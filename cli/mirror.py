"""`cometmq mirror`: run a mirror, and show the figures of one."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ..operations.errors import CliError, Exit
from .options import output_option
from .output import print_table, show_document
from .times import time_text

F = TypeVar("F", bound=Callable[..., Any])
_STATE = click.Path(path_type=Path, file_okay=False)
_PEM = click.Path(path_type=Path, dir_okay=False, exists=True)
_SHOW_S = 5.0


@click.group()
def mirror() -> None:
    """Copy topics of a running cluster to another one, with the offsets of consumer groups."""


def _side_options(side: str) -> Callable[[F], F]:
    """Add the options of one cluster."""

    def add(command: F) -> F:
        key = side.upper()
        command = click.option(
            f"--{side}-tls-any-name",
            is_flag=True,
            help=f"{side.title()}: do not compare its certificates with its addresses.",
        )(command)
        for name, envvar, what in (
            ("tls-key", None, "key of the certificate (PEM)."),
            ("tls-certificate", None, "certificate of the mirror, if it asks for one (PEM)."),
            ("tls-ca", None, "speak TLS; CA of its certificates, or its own certificate (PEM)."),
            ("secret-key", f"COMETMQ_MIRROR_{key}_SECRET_KEY", "secret key of the user."),
            ("access-key", f"COMETMQ_MIRROR_{key}_ACCESS_KEY", "user of type Super."),
        ):
            kind = _PEM if name.startswith("tls") else str
            command = click.option(
                f"--{side}-{name}", envvar=envvar, type=kind, help=f"{side.title()}: {what}"
            )(command)
        return click.option(
            f"--{side}",
            required=True,
            metavar="HOST:PORT[;...]",
            help=f"Nameservers of the {side}: their ports of the remoting protocol.",
        )(command)

    return add


@mirror.command()
@_side_options("target")
@_side_options("source")
@click.option(
    "--state",
    type=_STATE,
    required=True,
    help="Directory with the progress of this mirror; created if it is missing.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    default=("*",),
    show_default=True,
    metavar="PATTERN",
    help="Topics, as a shell pattern; can be repeated.",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    default=("*",),
    show_default=True,
    metavar="PATTERN",
    help="Consumer groups, as a shell pattern; can be repeated.",
)
@click.option("--until-caught-up", is_flag=True, help="End when everything is copied.")
def run(
    *,
    state: Path,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    until_caught_up: bool,
    **sides: Any,
) -> int:
    """Copy topics from the source to the target until stopped, and let groups follow.

    Both clusters serve the remoting protocol: Apache RocketMQ always does, CometMQ with
    remotingListenPort. Missing topics and groups are created in the target. Start it again with the
    same --state to continue. With --until-caught-up, what cannot be copied does not stop the rest:
    each is named at the end, and the exit code is 1.

    \b
    cometmq mirror run --source 10.0.0.1:9876 --target 10.0.0.11:9877 --state mirror
    cometmq mirror run --source 10.0.0.1:9876 --target 10.0.0.11:9877 --state m --topic 'order*'
    """
    import asyncio

    from ..mirror.cluster import Cluster
    from ..mirror.run import Choice, Mirror
    from ..mirror.state import StateDirectory, StateError

    source, target = (
        Cluster(sides[side].split(";"), _access(side, sides)) for side in ("source", "target")
    )
    directory = StateDirectory(state)
    try:
        directory.lock()
        made = Mirror(source, target, directory, Choice(topics, groups), _wall_ms)
        made.load()
        asyncio.run(_run(made, once=until_caught_up))
        failed = _errors(made.status()) if until_caught_up else []
    except StateError as error:
        raise CliError(f"{_sentence(str(error))}.") from None
    except OSError as error:
        raise CliError(f"The progress cannot be saved: {error}.") from None
    finally:
        directory.release()
    if failed:
        words = f"{len(failed)} topics, groups or patterns are not copied:"
        raise CliError("\n".join([words, *failed, "Repeat the command to continue."]))
    return Exit.DONE


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _access(side: str, sides: dict[str, Any]) -> Any:
    from ..mirror.link import Access

    access_key, secret_key = (
        sides[f"{side}_{name}"] or "" for name in ("access_key", "secret_key")
    )
    if bool(access_key) != bool(secret_key):
        raise CliError(
            f"--{side}-access-key and --{side}-secret-key belong together: give both.", Exit.USAGE
        )
    return Access(access_key, secret_key, _tls(side, sides))


def _tls(side: str, sides: dict[str, Any]) -> Any:
    """Return the TLS context of a side; None for plaintext."""
    import ssl

    ca, certificate, key = (sides[f"{side}_tls_{name}"] for name in ("ca", "certificate", "key"))
    if not ca:
        if certificate or key or sides[f"{side}_tls_any_name"]:
            raise CliError(f"TLS needs --{side}-tls-ca.", Exit.USAGE)
        return None
    if bool(certificate) != bool(key):
        raise CliError(
            f"--{side}-tls-certificate and --{side}-tls-key belong together: give both.", Exit.USAGE
        )
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except OSError as error:
        raise CliError(f"{ca} is not a CA file: {error}.", Exit.USAGE) from None
    try:
        if certificate:
            context.load_cert_chain(certificate, key)
    except OSError as error:
        raise CliError(f"{certificate} and {key} are no pair: {error}.", Exit.USAGE) from None
    context.check_hostname = not sides[f"{side}_tls_any_name"]
    return context


async def _run(made: Any, *, once: bool) -> None:
    import asyncio

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await made.run(stopped, _Shown(), once=once)


class _Shown:
    """Prints a line every few seconds, and at every change from or to a failure."""

    def __init__(self) -> None:
        self._next = 0.0
        self._copied = 0
        self._since = time.monotonic()
        self._error = ""

    def __call__(self, status: dict[str, Any]) -> None:
        now = time.monotonic()
        problem = status["error"] or _first_error(status)
        if now < self._next and problem == self._error and status["lag"]:
            return
        if problem != self._error or now >= self._next or status["copied"] != self._copied:
            passed = max(now - self._since, 0.001)
            rate = (status["copied"] - self._copied) / passed
            line = f"{status['copied']} copied, {rate:.0f}/s, {status['lag']} to copy"
            ready = sum(row["state"] in ("ready", "moved") for row in status["groups"])
            groups = len(status["groups"])
            line += f"; {groups} group{'s' * (groups != 1)}, {ready} ready or moved"
            click.echo(f"{line}; {problem}" if problem else line)
            self._next, self._copied, self._since = now + _SHOW_S, status["copied"], now
            self._error = problem


def _first_error(status: dict[str, Any]) -> str:
    rows = (*status["topics"], *status["groups"])
    errors = (row["error"] for row in rows if row["error"])
    return next(iter((*errors, *status.get("unmatched", ()))), "")


def _errors(status: dict[str, Any]) -> list[str]:
    """Return a line for each topic and group with a failure, and each pattern without a match."""
    kinds = (("topic", status["topics"]), ("group", status["groups"]))
    failed = (
        f"{kind.title()} {row[kind]}: {row['error']}"
        for kind, rows in kinds
        for row in rows
        if row["error"]
    )
    return [*failed, *status["unmatched"]]


@mirror.command()
@click.option("--state", type=_STATE, required=True, help="Directory of the mirror's progress.")
@output_option
def status(*, state: Path, output: str) -> int:
    """Show topics and groups of a mirror, as it saved them last.

    A group is `in use` (it has consumers in the source), `behind` (its offsets there are not copied
    yet), `ready` (it can start in the target), or `moved`. Exit code 3 if the mirror has a failure.

    \b
    cometmq mirror status --state mirror
    """
    from ..mirror.state import StateDirectory, StateError

    try:
        found = StateDirectory(state).status()
    except StateError as error:
        raise CliError(f"{_sentence(str(error))}.", Exit.NOT_FOUND) from None
    if output == "json":
        show_document(found)
    else:
        click.echo(
            f"{time_text(found['updated_ms'], 'seconds')}: {found['copied']} copied, "
            f"{found['lag']} to copy{'; ' + found['error'] if found['error'] else ''}"
        )
        for rows in (found["topics"], found["groups"]):
            if rows:
                print_table(rows)
    return Exit.UNHEALTHY if found["error"] or _first_error(found) else Exit.DONE


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
