"""`cometmq cluster forget`: the nameservers no longer expect a broker group that is gone for good.

A nameserver keeps the names of all groups that have registered: while one is not up, a topic that
no other group has may be there, and is not answered "does not exist". What a group's replicas have
on disk stays; a group that starts again is known again.
"""

from __future__ import annotations

from typing import Any

import click

from ...operations.errors import CliError, Exit
from ...proto import paths, v1
from ..confirm import go_on, plan_options
from ..ha.parallel import Calls
from ..ha.replicas import CALL_S, Nameservers
from ..options import link_options, namesrv_option, output_option


@click.command()
@click.argument("name", metavar="GROUP")
@plan_options
@namesrv_option
@link_options
@output_option
def forget(*, name: str, dry_run: bool, yes: bool, namesrv: str, output: str) -> None:
    """Remove broker group GROUP (its brokerName), which is gone for good, from the nameservers.

    While a group is not up, the cluster does not answer that a topic does not exist: the group may
    have it. Stop the brokers of the group first; every nameserver must answer. Nothing on the disks
    of the group is deleted. If one of its brokers starts again, the group is known again.

    \b
    cometmq cluster forget broker-b
    """
    addresses = Nameservers(namesrv).addresses
    found = _answers(addresses, paths.GET_CLUSTER, v1.GetClusterRequest(), v1.GetClusterResponse)
    rows = [
        {"nameserver": address, "group": name, "replicas": replicas}
        for address, answer in found.items()
        if (replicas := _replicas(answer, name))
    ]
    if not rows:
        known = sorted({each for answer in found.values() for each in _names(answer)})
        text = f"No nameserver knows the broker group {name}; there are: {', '.join(known)}."
        raise CliError(text, Exit.NOT_FOUND)
    if any("alive" in row["replicas"] for row in rows):
        raise CliError(
            f"Broker group {name} has a live replica: stop its brokers first. `cometmq ha status`"
            " shows them."
        )
    question = f"Remove {name}? Its topics are then answered as not existing."
    if go_on({}, question, output, rows=rows, dry_run=dry_run, yes=yes):
        knowing = [row["nameserver"] for row in rows]
        request = v1.ForgetGroupRequest(group=name)
        _answers(knowing, paths.FORGET_GROUP, request, v1.ForgetGroupResponse)
        click.echo(f"Removed {name} from {len(knowing)} nameservers.", err=output == "json")


def _answers(addresses: list[str], path: str, request: object, answer: type[Any]) -> dict[str, Any]:
    """Return the answers of all nameservers. Raises CliError if one did not answer."""
    with Calls(addresses, path, request, answer) as calls:
        calls.wait(CALL_S)
        if calls.errors:
            text = "\n".join(f"{address}: {error}" for address, error in calls.errors.items())
            raise CliError(
                f"{text}\nThe group is expected until all nameservers have removed it: repeat the"
                " command."
            )
        return dict(calls.answers)


def _names(answer: v1.GetClusterResponse) -> set[str]:
    return {*answer.absent_groups, *(route.group for route in answer.groups)}


def _replicas(answer: v1.GetClusterResponse, name: str) -> str:
    """Return what a nameserver knows of the replicas of a group; "" if it does not expect it."""
    members = [one for route in answer.groups if route.group == name for one in route.members]
    if members:
        alive = sum(one.alive for one in members)
        return f"{alive} alive" if alive else f"{len(members)} dead"
    return "none" if name in answer.absent_groups else ""
