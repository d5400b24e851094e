"""`cometmq cluster describe`: members, leader and in-sync set of a broker group."""

import click

from ...proto import paths, v1
from ..connection import Connection
from ..options import endpoint_option, output_option
from ..output import print_table, show_fields, show_json


@click.group()
def cluster() -> None:
    """Describe the members of a broker group."""


@cluster.command()
@endpoint_option
@output_option
def describe(endpoint: str, output: str) -> None:
    """Show the group that a node belongs to."""
    with Connection(endpoint) as connection:
        answer = connection.call(
            paths.DESCRIBE_CLUSTER, v1.DescribeClusterRequest(), v1.DescribeClusterResponse
        )
    fields = {
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
    members = [_row(member) for member in answer.members]
    if output == "json":
        show_json({**fields, "store": _store(answer.store), "members": members})
        return
    fields["store"] = _in_words(answer.store)
    show_fields({name: value for name, value in fields.items() if value != ""}, output)
    if members:
        print_table(members)


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
