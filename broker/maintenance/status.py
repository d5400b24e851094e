"""Status of queues, members and the store, for tools and metrics. Reads only.

The position of another replica is as old as its last message to this node. Positions that replicas
do not report to each other are named as unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import __version__
from ...proto import v1, v2
from ...store.format.record import decode
from ..base.slices import Slices

if TYPE_CHECKING:
    from ...ha.engine import Replication
    from ...ha.members import MemberStatus
    from ...store.message_store import MessageStore
    from ..base.cluster_view import ClusterView, MemberView
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime
    from ..metadata.tables import Metadata, Topic
    from ..visible.dispatch_pump import DispatchPump
    from .traffic import TrafficRates


class BrokerStatus:
    """This node's view of its topics, its group and its store."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        metadata: Metadata,
        replication: Replication,
        leadership: Leadership,
        cluster: ClusterView,
        pump: DispatchPump,
        traffic: TrafficRates,
    ) -> None:
        self._config = runtime.config
        self._clock = runtime.clock
        self._counters = runtime.counters
        self._store = store
        self._metadata = metadata
        self._replication = replication
        self._leadership = leadership
        self._cluster = cluster
        self._pump = pump
        self._traffic = traffic

    @property
    def broker(self) -> str:
        """The name of this node's group."""
        return self._config.broker_name

    @property
    def cluster(self) -> str:
        """The name of this node's cluster."""
        return self._config.broker_cluster_name

    async def queue_status(self, topic: Topic) -> list[v1.QueueStatus]:
        """Every queue of a topic on this broker."""
        self._pump.catch_up()
        store = self._store
        slices = Slices(self._clock)
        rows = []
        for queue_id in range(max(topic.read_queues, topic.write_queues)):
            end = store.max_offset(topic.name, queue_id)
            rows.append(
                v1.QueueStatus(
                    queue_id=queue_id,
                    min_offset=store.min_offset(topic.name, queue_id),
                    max_offset=end,
                    last_store_ms=self._last_store_ms(topic.name, queue_id, end),
                    broker=self._config.broker_name,
                )
            )
            await slices.pause()
        return rows

    async def topic_traffic(self, topic: Topic) -> v1.TopicTraffic:
        """What a topic holds on this broker, and what it is sent."""
        queues = await self.queue_status(topic)
        return v1.TopicTraffic(
            messages=sum(queue.max_offset - queue.min_offset for queue in queues),
            last_store_ms=max((queue.last_store_ms for queue in queues), default=0),
            sent_per_s=self._traffic.sent_per_s(topic.name),
        )

    def lite_topic(self, name: str, queue: str) -> v1.LiteTopicStatus:
        """A lite topic, without the groups that read it."""
        first, end = self._store.min_offset(queue, 0), self._store.max_offset(queue, 0)
        last_ms = self._last_store_ms(queue, 0, end)
        return v1.LiteTopicStatus(name=name, messages=end - first, last_store_ms=last_ms)

    def _last_store_ms(self, topic: str, queue_id: int, end: int) -> int:
        if end <= self._store.min_offset(topic, queue_id):
            return 0
        records = self._store.get(topic, queue_id, end - 1, 1).records
        if not records:
            return 0
        return decode(records[0].data, check_crc=False).store_timestamp_ms

    def members(self) -> list[v1.MemberStatus]:
        """The replicas of this group: positions from replication, addresses from the
        nameservers."""
        heard = {row.broker_id: row for row in self._replication.members()}
        listed = {member.broker_id: member for member in self._cluster.own().members}
        ids = sorted({self._config.broker_id, *heard, *listed})
        return [
            self._member(broker_id, heard.get(broker_id), listed.get(broker_id))
            for broker_id in ids
        ]

    def _member(
        self, broker_id: int, heard: MemberStatus | None, listed: MemberView | None
    ) -> v1.MemberStatus:
        row = v1.MemberStatus(epoch=self._replication.epoch)
        row.replica.cluster = self._config.broker_cluster_name
        row.replica.group = self._config.broker_name
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
        else:
            row.unknown.extend(("log_end", "flushed", "behind", "behind_ms"))
        if broker_id == self._config.broker_id:
            self._fill_own(row)
        else:
            row.unknown.extend(("log_start", "confirm", "dispatched"))
        return row

    def _fill_own(self, row: v1.MemberStatus) -> None:
        store = self._store
        row.alive = True
        row.role = v1.LEADER if self._leadership.is_leader else v1.FOLLOWER
        row.in_sync = row.in_sync or self._leadership.is_leader
        row.log_start = store.log_start
        row.log_end = store.log_end
        row.confirm = self._replication.confirm
        row.flushed = store.flushed_offset
        row.dispatched = store.dispatched_offset
        row.diverged = self._replication.refused or ""

    def describe(self, door: str) -> v1.DescribeClusterResponse:
        """This group, as this node sees it."""
        members = self.members()
        followers = [member for member in members if member.role == v1.FOLLOWER and member.alive]
        refusal = self._leadership.write_refusal() if self._leadership.is_leader else None
        policy = self._replication.policy
        return v1.DescribeClusterResponse(
            code=v2.OK,
            message="OK",
            cluster=self._config.broker_cluster_name,
            door=door,
            replication="sync" if policy.sync else "async",
            flush="sync" if self._leadership.policy.sync_flush else "async",
            behind=max((member.behind for member in followers), default=0),
            members=members,
            min_in_sync_replicas=policy.min_in_sync,
            write_refusal=refusal or ("" if self._store.writable else self._store.refusal),
            redelivered=self._counters.redelivered_without_handover,
            version=__version__,
            store=self._store_status(),
            drained=self._metadata.drained,
        )

    def _store_status(self) -> v1.StoreStatus:
        stats = self._store.stats()
        sent_per_s, delivered_per_s = self._traffic.rates()
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
            put_tps=sent_per_s,
            get_tps=delivered_per_s,
            put_p99_us=-1 if p99_us is None else p99_us,
            archive_gate=self._store.retention.rules.archive_gate,
            archive_watermark=stats.archive_watermark,
        )
