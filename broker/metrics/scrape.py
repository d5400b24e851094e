"""The `/metrics` page of a broker, under RocketMQ 5's names where they exist.

A scrape reads all values on the event loop, in slices, and returns a callable that renders them in
another thread. Only the parts count; this module reads their counters. Names: docs/formats/
broker-semantics.md, sections 11.1-11.3; those with `cometmq_` are ours. prometheus-client is
imported by the first scrape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ...front.metrics.families import Buckets, Families, flag, page_of
from ...front.metrics.process import kept_family
from ..base.counters import SIZE_BOUNDS
from ..metadata.tables import is_system_topic, type_name
from .clients import client_families
from .groups import GroupSums, StoreTimes
from .pop import pop_families
from .replicas import replica_families
from .store import store_families
from .timers import timer_families
from .transactions import transaction_families

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from ...front.metrics.process import LoopWatch
    from ...front.statistics import DoorStatistics, ForwardStatistics
    from ...ha.engine import Replication
    from ...store.message_store import MessageStore
    from ..access.quotas import Quotas
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime
    from ..clients.registry import ClientRegistry
    from ..delay.timer_service import TimerService
    from ..journal.service import JournalService
    from ..maintenance.progress import ConsumerProgress
    from ..maintenance.status import BrokerStatus
    from ..metadata.tables import Metadata
    from ..pop.receive import PopService
    from ..sending.sender import Sender
    from ..transactions.service import Transactions
    from ..visible.durability import DurabilityGate

_NS_PER_S = 1_000_000_000
_READ_WRITE = 6
_READ_ONLY = 4
_PROCESSORS = (
    *("send", "async_put", "pull", "ack", "query_message", "client_manager", "heartbeat"),
    *("lite_pull", "transaction", "consumer_manager", "admin", "reply"),
)


class Metrics:
    """Collects scrapes; keeps the totals of the last one for the rates."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        store: MessageStore,
        replication: Replication,
        leadership: Leadership,
        metadata: Metadata,
        clients: ClientRegistry,
        sender: Sender,
        quotas: Quotas,
        durability: DurabilityGate,
        pop: PopService,
        journal: JournalService,
        timers: TimerService,
        transactions: Transactions,
        status: BrokerStatus,
        progress: ConsumerProgress,
        door: Callable[[], DoorStatistics | None],
        forwards: ForwardStatistics,
        watch: LoopWatch,
    ) -> None:
        self._clock = runtime.clock
        self._counters = runtime.counters
        self._store = store
        self._replication = replication
        self._leadership = leadership
        self._metadata = metadata
        self._client_registry = clients
        self._sender = sender
        self._quotas = quotas
        self._durability = durability
        self._pop = pop
        self._journal = journal
        self._timers = timers
        self._transaction_service = transactions
        self._status = status
        self._progress = progress
        self._door = door
        self._forwards = forwards
        self._watch = watch
        config = runtime.config
        families = self._families = Families(
            config.broker_cluster_name, "broker", f"{config.broker_name}-{config.broker_id}"
        )
        self._store_times = StoreTimes(store)
        self._gauge, self._counter, self._one = families.gauge, families.counter, families.one
        self._last = (self._clock.steady_ns(), 0, 0)
        self._rates = (0.0, 0.0)

    async def scrape(self) -> Callable[[], bytes]:
        """Read all values now; the returned callable renders them and may run in any thread."""
        others, of_groups = await self._collect()
        return lambda: page_of([*others, *of_groups()])

    async def families(self) -> list[Metric]:
        """Return all metrics."""
        others, of_groups = await self._collect()
        return [*others, *of_groups()]

    async def _collect(self) -> tuple[list[Metric], Callable[[], list[Metric]]]:
        """Read all values, those of groups in slices; return the metrics, and what makes those of
        groups."""
        await self._timers.settle()
        groups = GroupSums()
        async for group, row in self._progress.all_group_queues():
            groups.add(group, row)
        groups.read_times(self._store_times)
        dead = dict(self._counters.dead + self._pop.reviver.dead)
        of_groups = partial(groups.families, dead, self._clock.wall_ms(), self._families)
        return self._others(), of_groups

    def _others(self) -> list[Metric]:
        """Read all values but those of groups."""
        return [
            *self._traffic(),
            *self._rates_of_traffic(),
            *self._tables(),
            *self._clients(),
            *self._storage(),
            *self._transactions(),
            *self._replicas(),
            *self._door_calls(),
            *self._process(),
        ]

    def _traffic(self) -> list[Metric]:
        counters = self._counters
        sent = [
            ((topic, type_name(kind).lower(), flag(is_system_topic(topic))), total)
            for (topic, kind), total in counters.sent.items()
        ]
        received = [
            ((topic, group, flag(retry), flag(is_system_topic(topic))), total)
            for (topic, group, retry), total in counters.received.items()
        ]
        labels_in = ("topic", "message_type", "is_system")
        labels_out = ("topic", "consumer_group", "is_retry", "is_system")
        return [
            self._counter(
                "rocketmq_messages_in",
                "Messages appended.",
                [(labels, total.messages) for labels, total in sent],
                labels_in,
            ),
            self._counter(
                "rocketmq_throughput_in",
                "Body bytes appended.",
                [(labels, total.bytes) for labels, total in sent],
                labels_in,
            ),
            self._families.histogram(
                "rocketmq_message_size",
                "Sizes of appended bodies, bytes.",
                [(labels, Buckets(SIZE_BOUNDS, list(t.sizes), t.bytes)) for labels, t in sent],
                labels_in,
            ),
            self._counter(
                "rocketmq_messages_out",
                "Messages delivered to consumers.",
                [(labels, total.messages) for labels, total in received],
                labels_out,
            ),
            self._counter(
                "rocketmq_throughput_out",
                "Bytes delivered to consumers, as sent on the wire.",
                [(labels, total.bytes) for labels, total in received],
                labels_out,
            ),
        ]

    def _rates_of_traffic(self) -> list[Metric]:
        counters = self._counters
        now_ns = self._clock.steady_ns()
        sent = sum(total.messages for total in counters.sent.values())
        received = sum(total.messages for total in counters.received.values())
        then_ns, sent_then, received_then = self._last
        if now_ns - then_ns >= _NS_PER_S:
            seconds = (now_ns - then_ns) / _NS_PER_S
            self._rates = ((sent - sent_then) / seconds, (received - received_then) / seconds)
            self._last = (now_ns, sent, received)
        return [
            self._one(
                "cometmq_messages_in_tps",
                "Messages appended per second since the last scrape.",
                self._rates[0],
            ),
            self._one(
                "cometmq_messages_out_tps",
                "Messages delivered per second since the last scrape.",
                self._rates[1],
            ),
            self._counter(
                "cometmq_messages_acked", "Acknowledged messages.", [((), counters.acked)]
            ),
            self._counter(
                "cometmq_redelivered_without_handover",
                "Messages delivered again because their pop state was not handed over.",
                [((), counters.redelivered_without_handover)],
            ),
            self._counter(
                "cometmq_messages_not_repeated",
                "Messages dropped as duplicates within the deduplication window.",
                [((), counters.repeated)],
            ),
            self._counter(
                "cometmq_cold_reads",
                "Reads of old records on a follower: reads forwarded, records fetched, refusals.",
                [((how,), number) for how, number in sorted(counters.cold.items())],
                ("how",),
            ),
            self._counter(
                "cometmq_refused_sends",
                "Send requests that were refused, by cause: a guard, or the code of the answer.",
                [((cause,), number) for cause, number in sorted(counters.refused_sends.items())],
                ("cause",),
            ),
            self._counter(
                "cometmq_refused_calls",
                "Calls refused because of their signature, certificate, clock, client id or a "
                "missing right, or of too many wrong signatures.",
                [((why,), number) for why, number in sorted(counters.refused_calls.items())],
                ("reason",),
            ),
            self._counter(
                "cometmq_audit_dropped",
                "Lines missing in the audit log or topic: above the rate, or refused by the log.",
                [((why,), number) for why, number in sorted(counters.audit_dropped.items())],
                ("reason",),
            ),
            *self._of_quotas(),
        ]

    def _of_quotas(self) -> list[Metric]:
        return [
            self._counter(
                "cometmq_quota_refused",
                "Calls refused by a quota of a user or a topic.",
                sorted(self._counters.refused_by_quota.items()),
                ("subject", "limit"),
            ),
            self._gauge(
                "cometmq_quota_stored_bytes",
                "Bytes in the log of topics and users with a quota of storage of their own.",
                [((subject,), size) for subject, size in self._quotas.stored()],
                ("subject",),
            ),
        ]

    def _tables(self) -> list[Metric]:
        permission = (
            _READ_WRITE if self._leadership.is_leader and self._store.writable else _READ_ONLY
        )
        return [
            self._gauge(
                "rocketmq_proxy_up",
                "1 while the process runs; a broker is its clients' access point, too.",
                [(("local",), 1)],
                ("proxy_mode",),
            ),
            self._one(
                "rocketmq_broker_permission",
                "Permission of the broker: 2 write, 4 read, 6 both.",
                permission,
            ),
            self._one("rocketmq_topic_number", "Topics.", len(self._metadata.topics)),
            self._one("rocketmq_consumer_group_number", "Groups.", len(self._metadata.groups)),
            self._created("topic"),
            self._created("consumer_group"),
            self._gauge(
                "rocketmq_processor_watermark",
                "Requests waiting per processor; 0 for processors without a queue.",
                [((name,), number) for name, number in self._waiting().items()],
                ("processor",),
            ),
        ]

    def _created(self, what: str) -> Metric:
        made = self._counters.created.items()
        return self._families.histogram(
            f"rocketmq_{what}_create_execution_time",
            "Time until a creation was durable under the broker's policy, ms.",
            [
                ((outcome, flag(system)), took)
                for (kind, outcome, system), took in made
                if kind == what
            ],
            ("invocation_status", "is_system"),
        )

    def _waiting(self) -> dict[str, int]:
        """Return queue lengths under the names of RocketMQ's thread pools; only sends are
        queued."""
        waiting = dict.fromkeys(_PROCESSORS, 0)
        waiting["send"] = self._sender.waiting
        waiting["async_put"] = len(self._durability)
        return waiting

    def _clients(self) -> list[Metric]:
        now_ns = self._clock.steady_ns()
        registry = self._client_registry
        alive = [client for client in registry if registry.alive(client.client_id, now_ns)]
        return client_families(alive, self._families)

    def _replicas(self) -> list[Metric]:
        return replica_families(
            self._status.members(), self._leadership, self._replication, self._families
        )

    def _storage(self) -> list[Metric]:
        now_ms = self._clock.wall_ms()
        return [
            *store_families(self._store, self._replication.confirm, now_ms, self._families),
            *timer_families(self._timers, self._families),
            *pop_families(self._journal, self._pop.reviver.revived, now_ms, self._families),
        ]

    def _transactions(self) -> list[Metric]:
        return transaction_families(self._transaction_service, self._families)

    def _process(self) -> list[Metric]:
        import psutil

        disk = psutil.disk_usage(str(self._store.config.root))
        return [
            *self._watch.families(self._families),
            kept_family(self._families, self._replication.links.kept),
            self._one(
                "cometmq_disk_free_bytes", "Free bytes on the store's file system.", disk.free
            ),
            self._one(
                "cometmq_disk_used_ratio",
                "Used share of the store's file system.",
                disk.percent / 100,
            ),
            self._counter(
                "cometmq_clock_steps",
                "Steps of the wall clock by more than a second.",
                [((way,), self._counters.clock_steps[way]) for way in ("back", "forward")],
                ("direction",),
            ),
        ]

    def _door_calls(self) -> list[Metric]:
        statistics = self._door()
        if statistics is None:
            return []
        door = (statistics.door,)
        errors = sorted(statistics.internal_errors.items())
        times = statistics.times
        return [
            *((times.family(self._families),) if times is not None else ()),
            self._gauge(
                "cometmq_door_calls", "Calls in flight.", [(door, statistics.in_flight)], ("door",)
            ),
            self._gauge(
                "cometmq_door_streams",
                "Open telemetry streams.",
                [(door, statistics.streams)],
                ("door",),
            ),
            self._gauge(
                "cometmq_door_events",
                "Events of the door since the start (connections and bytes: current).",
                [((statistics.door, name), n) for name, n in sorted(statistics.counters.items())],
                ("door", "event"),
            ),
            self._counter(
                "cometmq_internal_errors",
                "Internal errors by method and exception type.",
                errors,
                ("path", "error"),
            ),
            self._one("cometmq_long_polls", "Long polls that wait.", self._pop.waiting),
            self._counter(
                "cometmq_forwarded_calls",
                "Calls for another node, by outcome.",
                [
                    (("forwarded",), self._forwards.forwarded),
                    (("served_instead",), self._forwards.served_instead),
                    (("held",), self._forwards.held),
                    (("held_in_vain",), self._forwards.held_in_vain),
                ],
                ("outcome",),
            ),
        ]
