"""`cometmq cluster`: the broker groups of a cluster, their members, leaders and in-sync sets."""

from typing import Any

import click

from ...proto import paths, v1
from ..options import endpoint_option, output_option
from ..output import print_table, show_fields, show_json
from .broker_groups import answers, broker_groups, broker_option, note_failures


@click.group()
def cluster() -> None:
    """Describe the broker groups of a cluster and their members."""


@cluster.command()
@broker_option
@endpoint_option
@output_option
def describe(endpoint: str, output: str) -> None:
    """Show each broker group: its settings, store and members."""
    with broker_groups(endpoint) as groups:
        outcomes = groups.each(
            paths.DESCRIBE_CLUSTER, v1.DescribeClusterRequest(), v1.DescribeClusterResponse
        )
    found = answers(outcomes)
    if output == "json":
        documents = [_document(name, answer) for name, answer in found]
        show_json({"groups": documents} if len(groups.names) > 1 else documents[0])
    else:
        for name, answer in found:
            _print(name, answer)
    note_failures(outcomes)


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
        "redelivered": answer.redelivered,
        "version": answer.version,
    }


def _row(member: v1.MemberStatus) -> dict[str, object]:
    return {
        "group": member.replica.group,
        "broker_id": member.replica.broker_id,
        "role": "leader" if member.role == v1.LEADER else "follower",
        "address": member.addresses.client,
        "alive": member.alive,
        "in_sync": member.in_sync,
        "epoch": member.epoch,
        "log_end": member.log_end,
        "confirm": member.confirm,
        "flushed": member.flushed,
        "behind_bytes": member.behind,
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
        f"{status.put_tps:.0f} puts/s, {status.get_tps:.0f} gets/s",
    ]
    if status.archive_gate:
        parts.append(f"archived up to {status.archive_watermark}")
    return "; ".join(parts)
