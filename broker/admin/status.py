"""What tools and metrics are told about queues and members. Reads everything, changes nothing.

A replica's position is as old as the last thing that this node heard of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import __version__
from ...proto import v1, v2
from ...store.format.record import decode
from ...store.stats import collect

if TYPE_CHECKING:
    from ...ha.members import MemberStatus
    from ..metadata.tables import Topic
    from ..node import Node
    from ..routing.cluster_view import MemberView


def queue_status(node: Node, topic: Topic) -> list[v1.QueueStatus]:
    """Every queue of a topic on this broker."""
    node.pump.catch_up()
    store = node.store
    rows = []
    for queue_id in range(max(topic.read_queues, topic.write_queues)):
        end = store.max_offset(topic.name, queue_id)
        rows.append(
            v1.QueueStatus(
                queue_id=queue_id,
                min_offset=store.min_offset(topic.name, queue_id),
                max_offset=end,
                last_store_ms=_last_store_ms(node, topic.name, queue_id, end),
                broker=node.config.broker_name,
            )
        )
    return rows


def _last_store_ms(node: Node, topic: str, queue_id: int, end: int) -> int:
    if end <= node.store.min_offset(topic, queue_id):
        return 0
    records = node.store.get(topic, queue_id, end - 1, 1).records
    if not records:
        return 0
    return decode(records[0].data, check_crc=False).store_timestamp_ms


def members_of(node: Node) -> list[v1.MemberStatus]:
    """The replicas of this group: positions from replication, addresses from the nameservers."""
    heard = {row.broker_id: row for row in node.replication.members()}
    listed = {member.broker_id: member for member in node.cluster.own().members}
    ids = sorted({node.config.broker_id, *heard, *listed})
    return [
        _member(node, broker_id, heard.get(broker_id), listed.get(broker_id)) for broker_id in ids
    ]


def _member(
    node: Node, broker_id: int, heard: MemberStatus | None, listed: MemberView | None
) -> v1.MemberStatus:
    row = v1.MemberStatus(epoch=node.replication.epoch)
    row.replica.cluster = node.config.broker_cluster_name
    row.replica.group = node.config.broker_name
    row.replica.broker_id = broker_id
    if listed is not None:
        row.addresses.client = listed.client
        row.addresses.ha = listed.ha
        row.addresses.metrics = listed.metrics
        row.role = v1.LEADER if listed.is_leader else v1.FOLLOWER
        row.alive = listed.alive
        row.replica.incarnation = listed.incarnation
    if heard is not None:
        row.replica.replica_uuid = heard.replica_uuid
        row.replica.incarnation = heard.incarnation
        row.role = v1.LEADER if heard.role == "leader" else v1.FOLLOWER
        row.alive = row.alive or heard.connected
        row.in_sync = heard.in_sync
        row.log_end = heard.log_end
        row.flushed = heard.flushed_end
        row.behind = heard.lag_bytes
        row.behind_ms = heard.behind_ms
    if broker_id == node.config.broker_id:
        _fill_own(node, row)
    return row


def _fill_own(node: Node, row: v1.MemberStatus) -> None:
    store = node.store
    row.alive = True
    row.role = v1.LEADER if node.leadership.is_leader else v1.FOLLOWER
    row.in_sync = row.in_sync or node.leadership.is_leader
    row.log_start = store.log_start
    row.log_end = store.log_end
    row.confirm = node.replication.confirm
    row.flushed = store.flushed_offset
    row.dispatched = store.dispatched_offset
    row.diverged = node.replication.refused or ""


def describe_cluster(node: Node, door: str) -> v1.DescribeClusterResponse:
    """This group, as this node sees it."""
    members = members_of(node)
    followers = [member for member in members if member.role == v1.FOLLOWER and member.alive]
    refusal = node.leadership.write_refusal() if node.leadership.is_leader else None
    policy = node.replication.policy
    return v1.DescribeClusterResponse(
        code=v2.OK,
        message="OK",
        cluster=node.config.broker_cluster_name,
        door=door,
        replication="sync" if policy.sync else "async",
        flush="sync" if node.leadership.policy.sync_flush else "async",
        behind=max((member.behind for member in followers), default=0),
        members=members,
        min_in_sync_replicas=policy.min_in_sync,
        write_refusal=refusal or ("" if node.store.writable else node.store.refusal),
        redelivered=node.counters.redelivered_without_handover,
        version=__version__,
        store=_store_status(node),
    )


def _store_status(node: Node) -> v1.StoreStatus:
    stats = collect(node.store)
    rates = stats.rates[0]
    p99_us = stats.put_percentile_us(0.99)
    return v1.StoreStatus(
        log_start=stats.log_start,
        log_end=stats.log_end,
        segments=stats.segments,
        queues=stats.queues,
        disk_use=stats.disk_use,
        pressure=stats.pressure,
        flush_behind=stats.flush_behind,
        dispatch_behind=stats.dispatch_behind,
        put_tps=rates.put_messages,
        get_tps=rates.get_messages,
        put_p99_us=-1 if p99_us is None else p99_us,
        archive_gate=node.store.retention.rules.archive_gate,
        archive_watermark=stats.archive_watermark,
    )
