"""`cometmq ha`: shows and changes the leader of a group.

Groups in controller mode are changed through the active controller (GroupController on the
nameservers), static groups by the sequence of `static_groups.py` on the replicas' replication
ports. Each command prints its steps; `--dry-run` only prints; a command that can lose messages
needs `--accept-loss`.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from ...operations.errors import CliError, Exit
from ...operations.replication import (
    DRAINING,
    HEALTHY,
    GroupView,
    Replica,
    group_fields,
    replica_rows,
)
from ...proto import paths, v1
from ..options import (
    link_options,
    namesrv_option,
    output_option,
)
from ..output import print_table, show_document, show_fields, show_rows
from ..times import duration
from .replay import replay
from .replicas import Nameservers, call, find, last_set, most_advanced, refresh
from .rolling import (
    BROKER_COMMAND,
    NAMESERVER_COMMAND,
    RestartCommands,
    restart_script,
    run_script,
    runnable,
)
from .rows import settled, states
from .static_groups import PromotionRequest, StaticFailover

F = TypeVar("F", bound=Callable[..., Any])

_MORE_S = 15.0  # added to the controller's own wait
_RESEED_S = 30.0


def where_options(command: F) -> F:
    """Add `--namesrv`, `--data`, `--group`, `--replica` and those of `link_options`."""
    for option in (
        link_options,
        click.option(
            "--replica",
            "named",
            multiple=True,
            metavar="HOST:PORT",
            help="Replication port of a replica of a static group; nameservers are not queried.",
        ),
        click.option(
            "--group", default="", help="The broker group; optional if there is only one."
        ),
        namesrv_option,
    ):
        command = option(command)
    return command


_dry_run = click.option(
    "--dry-run", is_flag=True, help="Print the steps without changing anything."
)
_accept_loss = click.option(
    "--accept-loss", is_flag=True, help="Continue even if confirmed messages may be lost."
)


class Steps:
    """Prints each step (table), or collects the steps for the document (JSON)."""

    def __init__(self, output: str) -> None:
        self.steps: list[str] = []
        self._output = output

    def __call__(self, step: str) -> None:
        self.steps.append(step)
        if self._output == "table":
            click.echo(f"- {step}")

    def end(self, document: dict[str, Any]) -> None:
        """Print the result."""
        if self._output == "json":
            show_document({**document, "steps": self.steps})
        else:
            show_fields(document, self._output)


@click.group()
def ha() -> None:
    """Show and change a group's leader and policy; replay, reseed and compare replicas."""


@ha.command()
@where_options
@click.option(
    "--wait",
    "wait_ms",
    type=duration("s", most="1d"),
    default="0",
    metavar="DURATION",
    help="Wait until every group is healthy, at most this long, as 5m or in seconds.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1),
    help="Replicas of each group (default: those that have registered).",
)
@output_option
def status(
    *,
    namesrv: str,
    group: str,
    named: tuple[str, ...],
    wait_ms: int,
    replicas: int | None,
    output: str,
) -> int:
    """Show health, leader, in-sync set and replicas of each group, within a second.

    Exit code 3: a group is neither healthy nor draining. Unknown values are `unknown`, null in
    JSON.

    \b
    cometmq ha status --wait 60 --replicas 3
    """

    def look() -> list[GroupView]:
        return [replace(view, expected=replicas or 0) for view in states(namesrv, group, named)]

    found = settled(look, wait_ms / 1_000)
    if not found:
        if group:
            text = f"There is no broker group {group}. `cometmq ha status` lists the groups."
            raise CliError(text, Exit.NOT_FOUND)
        raise CliError("No broker has registered yet. Give --wait SECONDS.", Exit.UNHEALTHY)
    documents = [{**group_fields(one), "replicas": replica_rows(one)} for one in found]
    if output == "json":
        show_document(documents)
    else:
        for document in documents:
            rows = document.pop("replicas")
            show_fields(document, output)
            if rows:
                print_table(rows)
            click.echo()
    well = all(document["health"] in (HEALTHY, DRAINING) for document in documents)
    return Exit.DONE if well else Exit.UNHEALTHY


@ha.command("rolling-restart")
@where_options
@click.option("--plan", "only_plan", is_flag=True, help="Print the shell script; run nothing.")
@click.option(
    "--restart-broker",
    "broker",
    default=BROKER_COMMAND,
    show_default=True,
    metavar="COMMAND",
    help="Command that restarts a broker and returns when its old process has ended.",
)
@click.option(
    "--restart-nameserver",
    "nameserver",
    default=NAMESERVER_COMMAND,
    show_default=True,
    metavar="COMMAND",
    help="The same for a nameserver; empty: leave the nameservers running.",
)
@click.option(
    "--max-wait",
    default=300.0,
    show_default=True,
    help="Seconds to wait after each restart until the group is healthy.",
)
def rolling_restart(
    *,
    namesrv: str,
    group: str,
    named: tuple[str, ...],
    only_plan: bool,
    broker: str,
    nameserver: str,
    max_wait: float,
) -> int:
    """Restart all replicas of a group, then the nameservers, one after another.

    Followers restart first; the leader hands over before its restart. After each restart the script
    waits until the group is healthy again: every replica answers and is in sync, every nameserver
    answers. It stops at the first command that fails. For an upgrade, --restart-broker installs the
    new version as well: 'ssh -- {host} "upgrade && sudo systemctl restart cometmq-broker"'.

    \b
    cometmq ha rolling-restart --plan
    """
    if named:
        raise CliError("rolling-restart needs a group with a controller.", Exit.USAGE)
    commands = RestartCommands(broker, nameserver, max_wait)
    script = restart_script(namesrv, group, commands)
    if only_plan:
        click.echo(runnable(script, namesrv), nl=False)
        return Exit.DONE
    return run_script(script, namesrv)


@ha.command()
@where_options
@click.option("--to", default=-1, help="Broker id of the next leader (default: the most advanced).")
@click.option(
    "--max-wait", default=10.0, show_default=True, help="Seconds to wait for followers to catch up."
)
@_dry_run
@output_option
def switchover(
    *,
    namesrv: str,
    group: str,
    named: tuple[str, ...],
    to: int,
    max_wait: float,
    dry_run: bool,
    output: str,
) -> None:
    """Change the leader as planned: it hands over when the next leader has caught up.

    \b
    cometmq ha switchover --to 1
    """
    replicas, report = find(namesrv, group, named)
    say = Steps(output)
    if report is None:
        promotion = PromotionRequest(to=to, dry_run=dry_run, max_wait_ms=int(max_wait * 1000))
        last = last_set(namesrv, replicas, named)
        _end_static(say, StaticFailover(replicas, promotion, say, last).switchover())
        return
    name = report.state.group
    request = v1.SwitchoverRequest(
        group=name, to=to, max_wait_ms=int(max_wait * 1000), dry_run=dry_run
    )
    _decide(say, namesrv, paths.SWITCHOVER, request, max_wait + _MORE_S)


@ha.command()
@where_options
@click.option("--to", default=-1, help="Broker id of the next leader (default: the most advanced).")
@click.option("--dead", is_flag=True, help="Confirm that the old leader's process has ended.")
@_accept_loss
@_dry_run
@output_option
def failover(
    *,
    namesrv: str,
    group: str,
    named: tuple[str, ...],
    to: int,
    dead: bool,
    accept_loss: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Replace a lost leader: fence, choose the most advanced in-sync replica, promote it.

    \b
    cometmq ha failover --dry-run
    """
    replicas, report = find(namesrv, group, named)
    say = Steps(output)
    if report is None:
        promotion = PromotionRequest(
            to=to, accept_loss=accept_loss, leader_is_dead=dead, dry_run=dry_run
        )
        last = last_set(namesrv, replicas, named)
        _end_static(say, StaticFailover(replicas, promotion, say, last).failover())
        return
    name = report.state.group
    if dead and not dry_run and report.state.HasField("leader"):
        _report_dead(say, namesrv, report)
    request = v1.ForceElectRequest(
        group=name,
        to=most_advanced(report) if to < 0 else to,
        accept_loss=accept_loss,
        reason="ha failover",
        dry_run=dry_run,
    )
    _decide(say, namesrv, paths.FORCE_ELECT, request, _MORE_S)


def _report_dead(say: Steps, namesrv: str, report: v1.GroupReport) -> None:
    """Report the leader's end on behalf of the operator, as a supervisor would."""
    leader = report.state.leader
    request = v1.ProcessExitedRequest(
        replica=v1.ReplicaIdentity(
            cluster=report.state.cluster,
            group=report.state.group,
            broker_id=leader.broker_id,
            incarnation=leader.incarnation,
        ),
        status="reported by an operator",
    )
    Nameservers(namesrv).notify(paths.PROCESS_EXITED, request, v1.ProcessExitedResponse)
    say(f"reported to the controllers that broker {leader.broker_id} has ended")


@ha.command("force-elect")
@where_options
@click.option("--to", required=True, type=int, help="Broker id of the next leader.")
@click.option("--reason", default="", help="Reason for the log.")
@_accept_loss
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the steps without changing anything; the default without --accept-loss.",
)
@output_option
def force_elect(
    *,
    namesrv: str,
    group: str,
    named: tuple[str, ...],
    to: int,
    reason: str,
    accept_loss: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Make a replica the leader even if others hold more: confirmed messages can be lost.

    Without --accept-loss only the steps are printed.

    \b
    cometmq ha force-elect --to 1 --dry-run
    """
    replicas, report = find(namesrv, group, named)
    say = Steps(output)
    dry_run = dry_run or not accept_loss
    if report is None:
        promotion = PromotionRequest(
            to=to, accept_loss=True, leader_is_dead=accept_loss, dry_run=dry_run
        )
        last = last_set(namesrv, replicas, named)
        _end_static(say, StaticFailover(replicas, promotion, say, last).failover())
        return
    name = report.state.group
    request = v1.ForceElectRequest(
        group=name, to=to, accept_loss=accept_loss, reason=reason, dry_run=dry_run
    )
    _decide(say, namesrv, paths.FORCE_ELECT, request, _MORE_S)
    if dry_run and output == "table":
        click.echo("Nothing was changed. Use --accept-loss to carry out these steps.")


@ha.command()
@where_options
@click.option(
    "--sync/--async",
    "sync",
    default=None,
    help="sync: an OK waits for all in-sync replicas (default: unchanged).",
)
@click.option(
    "--min-in-sync",
    type=click.IntRange(1, 16),
    help="In-sync replicas needed for an OK, including the leader (default: unchanged).",
)
@_dry_run
@output_option
def policy(
    *,
    namesrv: str,
    group: str,
    named: tuple[str, ...],
    sync: bool | None,
    min_in_sync: int | None,
    dry_run: bool,
    output: str,
) -> None:
    """Change the replication policy of a running group; the leader starts a new epoch with it.

    The brokers' configuration applies only when a group is created, except for flushDiskType, which
    each broker applies itself.

    \b
    cometmq ha policy --sync --min-in-sync 2
    """
    if sync is None and min_in_sync is None:
        raise CliError("Give the change: --sync, --async or --min-in-sync.", Exit.USAGE)
    _, report = find(namesrv, group, named)
    if report is None:
        raise CliError(
            "A group without a controller uses the policy of its master's configuration: change"
            " brokerRole and minInSyncReplicas there and restart the master."
        )
    request = v1.SetPolicyRequest(
        group=report.state.group, sync=sync, min_in_sync=min_in_sync or 0, dry_run=dry_run
    )
    _decide(Steps(output), namesrv, paths.SET_POLICY, request, _MORE_S)


@ha.command("replay-tail")
@where_options
@click.option(
    "--id", "broker_id", type=int, help="Replay only the archives of this broker (default: all)."
)
@click.option(
    "--file",
    "file_id",
    default="",
    help="Replay only this archive (default: all that are not replayed yet).",
)
@_dry_run
@output_option
def replay_tail(
    *,
    namesrv: str,
    group: str,
    named: tuple[str, ...],
    broker_id: int | None,
    file_id: str,
    dry_run: bool,
    output: str,
) -> None:
    """Send the messages of archived diverged tails again, as a producer would.

    Tails that several replicas archived with the same bytes are sent once.

    \b
    cometmq ha replay-tail --dry-run
    """
    replicas, _ = find(namesrv, group, named)
    say = Steps(output)
    chosen = _selected(replicas, broker_id)
    messages = replay(replicas, chosen, file_id, dry_run=dry_run, say=say)
    say.end({"messages": messages, "dry_run": dry_run})


@ha.command()
@where_options
@click.option("--id", "broker_id", type=int, required=True, help="Broker to reseed.")
@_accept_loss
@_dry_run
@output_option
def reseed(
    *,
    namesrv: str,
    group: str,
    named: tuple[str, ...],
    broker_id: int,
    accept_loss: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Make a follower move its data aside and copy everything from the leader.

    \b
    cometmq ha reseed --id 1 --dry-run
    """
    replicas, _ = find(namesrv, group, named)
    say = Steps(output)
    (one,) = _selected(replicas, broker_id)
    refresh(one)
    if one.status is None:
        raise CliError(f"{one.name} does not answer: {one.error}", Exit.UNHEALTHY)
    if one.leads:
        raise CliError(f"{one.name} is the leader of the group: run `ha switchover` first.")
    request = v1.ReseedRequest(accept_loss=accept_loss, dry_run=dry_run)
    answer = call(one, paths.RESEED, request, v1.ControlResponse, _RESEED_S)
    for step in answer.steps:
        say(f"{one.name}: {step}")
    say.end({"broker_id": one.broker_id, "dry_run": dry_run})


@ha.command()
@where_options
@output_option
def diff(namesrv: str, group: str, named: tuple[str, ...], output: str) -> int:
    """Compare the digests of sealed segments of all replicas. Exit code 5 if they differ.

    \b
    cometmq ha diff
    """
    from .diff import compare

    replicas, _ = find(namesrv, group, named)
    rows = compare(replicas)
    show_rows(rows, output, empty="The sealed segments of all reachable replicas are identical.")
    return Exit.PROBLEMS if rows else Exit.DONE


@ha.command()
@click.option(
    "-c", "--config", "file", type=click.Path(path_type=Path), help="The broker's configuration."
)
@output_option
def exited(file: Path | None, output: str) -> None:
    """Report that this host's broker process has ended (for ExecStopPost of systemd).

    \b
    cometmq ha exited -c broker.conf
    """
    from .exited import report_exit

    identity = report_exit(file)
    show_fields(
        {
            "group": identity.group,
            "broker_id": identity.broker_id,
            "incarnation": identity.incarnation,
        },
        output,
    )


def _selected(replicas: list[Replica], broker_id: int | None) -> list[Replica]:
    found = [one for one in replicas if broker_id is None or one.broker_id == broker_id]
    if not found:
        raise CliError(f"The group has no broker with id {broker_id}.", Exit.NOT_FOUND)
    return found


def _decide(say: Steps, namesrv: str, path: str, request: Any, timeout_s: float) -> None:
    answer = Nameservers(namesrv).decide(path, request, timeout_s)
    for step in answer.steps:
        say(step)
    document: dict[str, Any] = {}
    for report in answer.groups:
        leader = report.state.leader.broker_id if report.state.HasField("leader") else "none"
        document = {"group": report.state.group, "leader": leader, "epoch": report.state.epoch}
    if answer.lost_end > answer.lost_start:
        document |= {"lost_start": answer.lost_start, "lost_end": answer.lost_end}
    say.end({**document, "dry_run": bool(request.dry_run)})


def _end_static(say: Steps, state: v1.GroupState) -> None:
    leader = state.leader.broker_id if state.HasField("leader") else "none"
    say.end({"group": state.group or "(static)", "leader": leader, "epoch": state.epoch})
