"""`cometmq cluster`: the broker groups of a cluster, their members, leaders and in-sync sets."""

from collections.abc import Sequence
from typing import Any

import click

from ...operations.broker_groups import BrokerGroups, answers
from ...operations.errors import CliError, Exit
from ...proto import paths, v1
from ..confirm import go_on, plan_options
from ..lazy_group import LazyGroup, Table
from ..options import endpoint_option, output_option
from ..output import print_table, show_document, show_fields
from .broker_groups import broker_groups, broker_option, note_failures
from .definition_files import mend_all
from .reconcile import Difference, differences

#: Name -> (module of `cli`, command in it, one line of help).
VERBS: Table = {
    "export": ("cluster.definition_files", "export", "Write the definitions of a cluster to FILE."),
    "apply": ("cluster.definition_files", "apply", "Create and change what is defined in FILE."),
    "describe": ("cluster.command", "describe", "Show each broker group, and their differences."),
    "reconcile": ("cluster.command", "reconcile", "Create what a broker group lacks."),
    "drain": ("cluster.draining", "drain", "Let producers leave broker group GROUP."),
    "forget": ("cluster.forgetting", "forget", "Remove a broker group that is gone for good."),
    "add-group": ("cluster.adding", "add_group", "Add a broker group to a running cluster."),
}


@click.group(cls=LazyGroup, table=VERBS)
def cluster() -> None:
    """Describe the broker groups of a cluster, mend differences, export and apply definitions."""


@click.command()
@broker_option
@endpoint_option
@output_option
def describe(endpoint: str, output: str) -> None:
    """Show each broker group: its settings, store and members; and differences between groups.

    \b
    cometmq cluster describe -o json
    """
    with broker_groups(endpoint) as groups:
        outcomes = groups.each(
            paths.DESCRIBE_CLUSTER, v1.DescribeClusterRequest(), v1.DescribeClusterResponse
        )
        found = answers(outcomes)
        several = len(groups.names) > 1
        # Kinds that this user may not list are not compared.
        differing = differences(groups.among([name for name, _ in found]))[0] if several else []
    rows = [each.row() for each in differing]
    if output == "json":
        documents = [_document(name, answer) for name, answer in found]
        both = {"groups": documents, "differences": rows}
        show_document(both if several else documents[0])
    else:
        for name, answer in found:
            _print(name, answer)
        if rows:
            click.echo("\nDifferences, which `cometmq cluster reconcile` mends:")
            print_table(rows)
    note_failures(outcomes)


@click.command()
@click.option(
    "--from",
    "source",
    default="",
    metavar="NAME",
    help="Broker group whose settings count [default: the first that has the object].",
)
@plan_options
@broker_option
@endpoint_option
@output_option
def reconcile(source: str, *, dry_run: bool, yes: bool, endpoint: str, output: str) -> None:
    """Create topics, groups, policies and quotas that a broker group lacks, and align settings.

    Nothing is deleted, except policies and attributes that differ. A topic keeps its highest
    numbers of queues.

    \b
    cometmq cluster reconcile --dry-run
    """
    with broker_groups(endpoint) as groups:
        if source and source not in groups.names:
            names = ", ".join(filter(None, groups.names)) or "only one"
            raise CliError(f"No broker group {source}; there are: {names}.", Exit.USAGE)
        found, unread = differences(groups, source)
        if unread:
            text = "\n".join(f"The {what} cannot be read: {error}" for what, error in unread)
            raise CliError(text)
        rows = [each.row() for each in found]
        if not rows and output == "table":
            click.echo("The broker groups do not differ.")
            return
        plan: dict[str, object] = {} if rows else {"changes": []}
        if go_on(plan, "Make these changes?", output, rows=rows, dry_run=dry_run, yes=yes):
            _mend(groups, found, output)


def _mend(groups: BrokerGroups, found: Sequence[Difference], output: str) -> None:
    """Make the changes one after another. Raises CliError if one failed."""
    if failed := mend_all(groups, found, output):
        raise CliError(
            f"{len(failed)} of {len(found)} changes failed."
            " To finish, run: cometmq cluster reconcile"
        )


def _document(name: str, answer: v1.DescribeClusterResponse) -> dict[str, Any]:
    members = [_row(member) for member in answer.members]
    return {**_fields(name, answer), "store": _store(answer.store), "members": members}


def _print(name: str, answer: v1.DescribeClusterResponse) -> None:
    fields = {**_fields(name, answer), "store": _in_words(answer.store)}
    show_fields({name: value for name, value in fields.items() if value != ""}, "table")
    if answer.members:
        print_table([_row(member) for member in answer.members])


def _fields(name: str, answer: v1.DescribeClusterResponse) -> dict[str, object]:
    return {
        **({"broker": name} if name else {}),
        "cluster": answer.cluster,
        "door": answer.door,
        "replication": answer.replication,
        "flush": answer.flush,
        "min_in_sync_replicas": answer.min_in_sync_replicas,
        "behind_bytes": answer.behind,
        "write_refusal": answer.write_refusal,
        "drained": answer.drained,
        "redelivered": answer.redelivered,
        "version": answer.version,
    }


def _row(member: v1.MemberStatus) -> dict[str, object]:
    unknown = dict.fromkeys(member.unknown)
    known = {"log_end": member.log_end, "confirm": member.confirm, "flushed": member.flushed}
    return {
        "group": member.replica.group,
        "broker_id": member.replica.broker_id,
        "role": "leader" if member.role == v1.LEADER else "follower",
        "address": member.addresses.client,
        "alive": member.alive,
        "in_sync": member.in_sync,
        "epoch": member.epoch,
        **{name: unknown.get(name, value) for name, value in known.items()},
        "behind_bytes": unknown.get("behind", member.behind),
        "diverged": member.diverged,
    }


def _store(status: v1.StoreStatus) -> dict[str, object]:
    """Return the store status of the node that answered."""
    return {field.name: getattr(status, field.name) for field in v1.StoreStatus.DESCRIPTOR.fields}


def _in_words(status: v1.StoreStatus) -> str:
    disk = "unknown" if status.disk_use < 0 else f"{status.disk_use} % full"
    parts = [
        f"{status.segments} segment{'s' * (status.segments != 1)} from {status.log_start}",
        f"{status.queues} queues",
        f"disk {disk}",
        f"{status.put_tps:.0f} sent/s, {status.get_tps:.0f} delivered/s",
    ]
    if status.archive_gate:
        parts.append(f"archived up to {status.archive_watermark}")
    return "; ".join(parts)
