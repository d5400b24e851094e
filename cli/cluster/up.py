"""`cometmq up`: a nameserver, a master and a slave on this machine, supervised, with one command.

The order of this module is its point: files and locks first, then all children are spawned at once,
and only then the event loop and the rest of the supervisor are imported, while the children load
what they need.
"""

import contextlib
import time
from pathlib import Path

import click

from ..errors import CliError
from .child import Child
from .layout import DataDirectory, socket_path
from .plan import Options, Plan, make_plans

_RESTART_TIMEOUT_S = 120.0


@click.group(invoke_without_command=True)
@click.option(
    "--port",
    type=click.IntRange(0, 65_533),
    help="Clients' port of the master; the slave's is two above [default: 8081]. 0 lets the system"
    " choose every port of every process (see --ready-file).",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Directory of stores, logs and configuration.",
)
@click.option("--single", is_flag=True, help="One process: a nameserver and one broker.")
@click.option(
    "--replication",
    type=click.Choice(["sync", "async"]),
    help="Whether an OK waits for the in-sync replicas [default: sync; with --single: async].",
)
@click.option(
    "--flush",
    type=click.Choice(["sync", "async"]),
    help="Whether an OK waits for the disk [default: async].",
)
@click.option(
    "--controller/--no-controller",
    default=True,
    show_default=True,
    help="Whether the nameserver elects another leader when the master is gone; without, the slave"
    " only reads until the master is back.",
)
@click.option("--no-restart", is_flag=True, help="Leave a process that dies dead.")
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSON file with endpoints and processes, written when the first send would succeed.",
)
@click.pass_context
def up(
    ctx: click.Context,
    *,
    port: int | None,
    data: Path,
    single: bool,
    replication: str | None,
    flush: str | None,
    controller: bool,
    no_restart: bool,
    ready_file: Path | None,
) -> None:
    """Start a cluster on this machine: nameserver, master and slave."""
    ctx.obj = data
    if ctx.invoked_subcommand is not None:
        return
    started_s = time.monotonic()
    directory = DataDirectory(data)
    _clear(ready_file)
    plans = make_plans(
        directory, Options(port, single, replication, flush, controller and not single)
    )
    for plan in plans:
        _warn_of_foreign_store(plan)
    children = [Child(plan) for plan in plans]
    try:
        for child in children:
            child.start()
    except OSError as error:
        # Those that run already see the end of their stdin when this process leaves.
        raise CliError(f"Cannot start a process: {error.strerror} ({error.filename}).") from None
    _supervise(directory, children, ready_file, restarts=not no_restart, started_s=started_s)


@up.command()
@click.argument("name")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Data directory of the running cluster [default: data].",
)
@click.pass_obj
def restart(up_data: Path, name: str, data: Path | None) -> None:
    """Start process NAME of a running cluster again; returns when it serves."""
    from .control import ask_to_restart

    answer = ask_to_restart(socket_path(data or up_data), name, _RESTART_TIMEOUT_S)
    click.echo(f"{answer['name']} serves again (process {answer['pid']}).")


def _clear(ready_file: Path | None) -> None:
    """A ready file of an earlier run must not look like this one's."""
    if ready_file is None:
        return
    try:
        ready_file.unlink(missing_ok=True)
    except OSError as error:
        raise CliError(f"Cannot write {ready_file}: {error.strerror}.") from None
    if not ready_file.absolute().parent.is_dir():
        raise CliError(f"Cannot write {ready_file}: there is no such directory.")


def _warn_of_foreign_store(plan: Plan) -> None:
    """A data directory that was moved still names its former place: say so before it looks empty."""
    store = plan.said.get("storePathRootDir")
    if store and Path(store) != plan.data / "store":
        _say(f"The store of {plan.name} is {store}, as its broker.conf says.")


def _supervise(
    directory: DataDirectory,
    children: list[Child],
    ready_file: Path | None,
    *,
    restarts: bool,
    started_s: float,
) -> None:
    import asyncio

    from ... import __version__
    from .supervisor import Supervisor

    async def run() -> None:
        supervisor = Supervisor(
            directory,
            children,
            restarts=restarts,
            ready_file=ready_file,
            say=_say,
            version=__version__,
            started_s=started_s,
        )
        await supervisor.run()

    asyncio.run(run())


def _say(text: str) -> None:
    """Print; a terminal that is gone is no reason to stop a cluster."""
    with contextlib.suppress(OSError):
        click.echo(text)
