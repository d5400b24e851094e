"""`cometmq up`: nameservers and broker groups on this machine, supervised.

The order matters for the start-up time: the lock first, then a fork server, which imports the
modules of the servers while this process plans; then all children are requested, and only then the
event loop and the supervisor are imported.
"""

import contextlib
import os
import shlex
import socket
import sys
import time
from functools import partial
from pathlib import Path

import click
from click.exceptions import NoSuchCommand

from ...operations.errors import CliError, Exit
from ...operations.private_file import PRIVATE_UMASK
from ..names import processes
from ..options import output_option
from .child import LATER_MODULES, MODULES, Child
from .forking import ForkServer
from .layout import DataDirectory, socket_path, using, wait_until_free
from .plan import Options, Plan, make_plans, plans_of_another_group
from .ports import HOST
from .process_image import can_fork_beside
from .shape import GROUPS_MAX, NAMESERVERS, REPLICAS_MAX, existing_shape

#: That of `cometmq console`.
CONSOLE_PORT = 8082
_RESTART_TIMEOUT_S = 120.0
_ANSWER_TIMEOUT_S = 10.0


class _Up(click.Group):
    """The commands of `up`; a directory is not one of them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command. Raises NoSuchCommand that names `--data` for a directory."""
        try:
            return super().resolve_command(ctx, args)
        except NoSuchCommand as error:
            if error.possibilities:
                raise
            word = shlex.quote(error.command_name)
            text = f"{error.message} The directory is an option: cometmq up --data {word}"
            raise NoSuchCommand(error.command_name, text, ctx=ctx) from None


@click.group(cls=_Up, invoke_without_command=True)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    metavar="N",
    help="Use the ports from N on: clients N (master) and N + 2 (slave), nameserver N + 1,"
    " replication N + 3 and N + 5, metrics N + 4 and N + 6, further processes and the"
    " metrics of the nameservers from N + 7. With 0 the system chooses every"
    " port of every process (see --ready-file). [default: the ports of the files in DATA; of a new"
    " one clients 8081 and 8083, nameserver 9876, replication 10912 and 10914, metrics 5557, 5558"
    " (nameserver) and 5559; further processes the next of them]",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Directory for stores, logs and configuration.",
)
@click.option("--single", is_flag=True, help="Run a nameserver and one broker in one process.")
@click.option(
    "--groups",
    type=click.IntRange(1, GROUPS_MAX),
    metavar="G",
    help="Broker groups; each has its own leader, and topics are spread over them [default: those"
    " of DATA, or 1].",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, REPLICAS_MAX),
    metavar="R",
    help="Replicas in each broker group [default: those of DATA, or 2].",
)
@click.option(
    "--nameservers",
    type=click.Choice([str(number) for number in NAMESERVERS]),
    help="Nameservers; of 3 one may fail, of 5 two [default: those of DATA, or 1].",
)
@click.option(
    "--replication",
    type=click.Choice(["sync", "async"]),
    help="sync: an OK waits for the in-sync replicas [default: that of the existing group; of a new"
    " one sync, with --single async].",
)
@click.option(
    "--flush",
    type=click.Choice(["sync", "async"]),
    help="sync: an OK waits for the disk [default: async].",
)
@click.option(
    "--controller/--no-controller",
    default=True,
    show_default=True,
    help="Elect another leader when the master fails; without a controller the slave serves"
    " only reads until the master is back.",
)
@click.option(
    "--auth",
    is_flag=True,
    help="Accept only signed calls, and check permissions. The first user is `admin`; its keys are"
    " in DATA/admin-credentials.",
)
@click.option(
    "--remoting",
    is_flag=True,
    help="Serve classic clients (rocketmq-client 4.x and 5.x, client-go v2, mqadmin), too; the"
    " banner shows their nameserver. Kept in the files of DATA.",
)
@click.option(
    "--console/--no-console",
    default=None,
    help="Serve the web console on port 8082, or on a free one, and record deliveries for its pages"
    " [default: on a terminal without --auth, if port 8082 is free].",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="Format of the lines in DATA/<name>/log [default: text].",
)
@click.option("--no-restart", is_flag=True, help="Do not restart a process that has ended.")
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSON file with endpoints and processes, written when the cluster accepts sends.",
)
@click.pass_context
def up(
    ctx: click.Context,
    *,
    port: int | None,
    data: Path,
    single: bool,
    groups: int | None,
    replicas: int | None,
    nameservers: str | None,
    replication: str | None,
    flush: str | None,
    controller: bool,
    auth: bool,
    remoting: bool,
    console: bool | None,
    log_format: str | None,
    no_restart: bool,
    ready_file: Path | None,
) -> None:
    """Start a cluster on this machine: nameserver, master and slave.

    \b
    cometmq up
    cometmq up --port 9081 --data other
    cometmq up --groups 2 --replicas 2 --nameservers 3 --data large
    """
    ctx.obj = data
    if ctx.invoked_subcommand is not None:
        return
    if single and replication == "sync":
        raise CliError(
            "--single runs one replica: there is none to wait for. Omit --single or --replication.",
            Exit.USAGE,
        )
    if single and (groups or replicas or nameservers):
        raise CliError(
            "--single runs one nameserver and one broker: omit it, or --groups, --replicas and"
            " --nameservers.",
            Exit.USAGE,
        )
    started_s = time.monotonic()
    os.umask(PRIVATE_UMASK)
    directory = DataDirectory(data)
    directory.addresses.unlink(missing_ok=True)
    _clear(ready_file)
    fork_server = ForkServer(MODULES, LATER_MODULES, fork=True) if can_fork_beside() else None
    options = Options(
        *(port, single, replication, flush, controller and not single, auth, groups, replicas),
        int(nameservers) if nameservers else None,
        log_format,
        remoting,
        _console_port(console, auth=auth),
    )
    before = existing_shape(directory.path)
    with using(data):
        plans = make_plans(directory, options)
    for plan in plans:
        _warn_of_foreign_store(plan)
    if before is not None and (groups or 0) > before.groups:
        _say(
            "New broker groups have no topics yet. When the cluster is ready, `cometmq cluster"
            f" reconcile --data {data}` creates those of the other groups."
        )
    children = _started(plans, fork_server)
    _supervise(
        *(directory, children, fork_server, ready_file, options),
        restarts=not no_restart,
        replication=replication,
        started_s=started_s,
    )


def _console_port(wanted: bool | None, *, auth: bool) -> int | None:
    """Return the port of the console; None: there is none.

    Without the option it is for a person at a terminal. With users it needs the keys of one, which
    the environment has, so it is only for who asks for it.
    """
    if wanted is False or (wanted is None and (auth or not sys.stdout.isatty())):
        return None
    for port in (CONSOLE_PORT, 0) if wanted else (CONSOLE_PORT,):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    return None


def _started(plans: list[Plan], fork_server: ForkServer | None) -> list[Child]:
    """Start the processes. Raises CliError."""
    children = [Child(plan, fork_server) for plan in plans]
    try:
        for child in children:
            child.start()
    except OSError as error:
        # Children that run already stop at the end of their stdin when this process exits.
        place = f" ({error.filename})" if error.filename else ""
        raise CliError(f"Cannot start a process: {error.strerror}{place}.") from None
    return children


_data_option = click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Data directory of the running cluster [default: data].",
)


@up.command()
@click.argument("name", shell_complete=processes)
@_data_option
@click.pass_obj
def restart(up_data: Path, name: str, data: Path | None) -> None:
    """Restart process NAME of a running cluster; returns when it is serving.

    NAME is that of its directory in DATA, or of a broker's group and id, as `up status` shows.

    \b
    cometmq up restart slave --data ./data
    """
    from .control import ask

    answer = ask(socket_path(data or up_data), "restart", name, _RESTART_TIMEOUT_S)
    click.echo(f"{answer['name']} is serving again (process {answer['pid']}).")


@up.command()
@_data_option
@output_option
@click.pass_obj
def status(up_data: Path, data: Path | None, output: str) -> int:
    """Show the processes of a running cluster. Exit code 3: it is not ready, or one is not serving.

    \b
    cometmq up status --data ./data
    """
    from ..output import print_table, show_document
    from .control import ask

    answer = ask(socket_path(data or up_data), "status", "", _ANSWER_TIMEOUT_S)
    if output == "json":
        show_document(answer)
    else:
        click.echo("The cluster is ready." if answer["ready"] else "The cluster is starting.")
        print_table(
            [
                {
                    **{name: value for name, value in row.items() if name != "group"},
                    "ports": ", ".join(f"{kind} {port}" for kind, port in row["ports"].items()),
                }
                for row in answer["processes"]
            ]
        )
    serving = all(row["state"] == "serving" for row in answer["processes"])
    return Exit.DONE if answer["ready"] and serving else Exit.UNHEALTHY


@up.command()
@_data_option
@click.pass_obj
def stop(up_data: Path, data: Path | None) -> None:
    """Drain and stop a running cluster; returns when its last process has ended.

    \b
    cometmq up stop --data ./data
    """
    from .control import ask

    directory = data or up_data
    ask(socket_path(directory), "stop", "", _ANSWER_TIMEOUT_S)
    wait_until_free(directory, _RESTART_TIMEOUT_S)
    click.echo("Stopped.")


def _clear(ready_file: Path | None) -> None:
    """Delete the ready file of an earlier run."""
    if ready_file is None:
        return
    try:
        ready_file.unlink(missing_ok=True)
    except OSError as error:
        raise CliError(f"Cannot write {ready_file}: {error.strerror}.") from None
    if not ready_file.absolute().parent.is_dir():
        raise CliError(f"Cannot write {ready_file}: the directory does not exist.")


def _warn_of_foreign_store(plan: Plan) -> None:
    """Warn if the store is elsewhere, for example after the data directory was moved."""
    store = plan.file_values.get("storePathRootDir")
    if store and Path(store) != plan.data / "store":
        _say(f"The store of {plan.name} is {store} (storePathRootDir in its broker.conf).")


def _supervise(
    directory: DataDirectory,
    children: list[Child],
    fork_server: ForkServer | None,
    ready_file: Path | None,
    options: Options,
    *,
    restarts: bool,
    replication: str | None,
    started_s: float,
) -> None:
    import asyncio

    from ... import __version__
    from .supervisor import Supervisor

    async def run() -> None:
        supervisor = Supervisor(
            directory,
            children,
            fork_server,
            restarts=restarts,
            replication=replication,
            another_group=partial(plans_of_another_group, directory, options),
            ready_file=ready_file,
            say=_say,
            version=__version__,
            started_s=started_s,
        )
        await supervisor.run()

    try:
        asyncio.run(run())
    finally:
        if fork_server is not None:
            fork_server.close()


def _say(text: str) -> None:
    """Print; a closed terminal does not stop the cluster."""
    with contextlib.suppress(OSError):
        click.echo(text)
