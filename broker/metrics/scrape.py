"""What the broker tells Prometheus, under RocketMQ 5's names where it has them.

Promises: everything is read on the event loop at the scrape, and rendered elsewhere; nothing is
counted here that the parts do not count anyway (broker semantics, sections 11.1-11.3; names that
begin with `cometmq_` are ours). prometheus-client is imported with the first scrape: a broker that
nobody scrapes does not pay for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..clients.telemetry import CONSUMER_TYPES
from ..metadata.tables import is_system_group, is_system_topic, type_name
from ..transactions.stats import transaction_families
from .counters import SIZE_BOUNDS
from .families import Buckets, Families, flag
from .groups import StoreTimes, group_families
from .pop import pop_families
from .replicas import replica_families
from .store import store_families
from .timers import timer_families

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from ...front.access_point import ForwardStatistics
    from ...front.door import DoorStatistics
    from ..node import Node

_NS_PER_S = 1_000_000_000
_READ_WRITE = 6
_READ_ONLY = 4
_PROCESSORS = (
    *("send", "async_put", "pull", "ack", "query_message", "client_manager", "heartbeat"),
    *("lite_pull", "transaction", "consumer_manager", "admin", "reply"),
)


class Metrics:
    """Collects one scrape; remembers the last one for the rates."""

    def __init__(
        self, node: Node, door: Callable[[], DoorStatistics | None], forwards: ForwardStatistics
    ) -> None:
        self._node = node
        self._door = door
        self._forwards = forwards
        families = self._families = Families(node.config)
        self._store_times = StoreTimes(node)
        self._gauge, self._counter, self._one = families.gauge, families.counter, families.one
        self._last = (node.clock.steady_ns(), 0, 0)
        self._rates = (0.0, 0.0)

    def scrape(self) -> Callable[[], bytes]:
        """Read everything now; the returned call makes the text and may run in any thread."""
        from prometheus_client.exposition import generate_latest

        families = [
            *self._traffic(),
            *self._rates_of_traffic(),
            *self._tables(),
            *self._clients(),
            *self._groups(),
            *self._storage(),
            *self._transactions(),
            *replica_families(self._node, self._families),
            *self._door_calls(),
            *self._process(),
        ]
        return lambda: generate_latest(_Families(families))

    def _traffic(self) -> list[Metric]:
        counters = self._node.counters
        sent = [
            ((topic, type_name(kind), flag(is_system_topic(topic))), total)
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
                "Messages that were appended.",
                [(labels, total.messages) for labels, total in sent],
                labels_in,
            ),
            self._counter(
                "rocketmq_throughput_in",
                "Bytes of the bodies that were appended.",
                [(labels, total.bytes) for labels, total in sent],
                labels_in,
            ),
            self._families.histogram(
                "rocketmq_message_size",
                "Sizes of the bodies that were appended, in bytes.",
                [(labels[:2], Buckets(SIZE_BOUNDS, list(t.sizes), t.bytes)) for labels, t in sent],
                labels_in[:2],
            ),
            self._counter(
                "rocketmq_messages_out",
                "Messages that were handed to consumers.",
                [(labels, total.messages) for labels, total in received],
                labels_out,
            ),
            self._counter(
                "rocketmq_throughput_out",
                "Bytes that were handed to consumers, as they travel.",
                [(labels, total.bytes) for labels, total in received],
                labels_out,
            ),
        ]

    def _rates_of_traffic(self) -> list[Metric]:
        counters = self._node.counters
        now_ns = self._node.clock.steady_ns()
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
                "Messages in a second since the last scrape.",
                self._rates[0],
            ),
            self._one(
                "cometmq_messages_out_tps",
                "Messages out a second since the last scrape.",
                self._rates[1],
            ),
            self._counter(
                "cometmq_messages_acked", "Acknowledged messages.", [((), counters.acked)]
            ),
            self._counter(
                "cometmq_redelivered_without_handover",
                "Messages delivered again because another replica served pops meanwhile.",
                [((), counters.redelivered_without_handover)],
            ),
            self._counter(
                "cometmq_messages_not_repeated",
                "Messages not stored again, because their ids were sent inside the window.",
                [((), counters.repeated)],
            ),
            self._counter(
                "cometmq_cold_reads",
                "What a follower read because it is old: reads passed on, records fetched, fetches refused.",
                [((how,), number) for how, number in sorted(counters.cold.items())],
                ("how",),
            ),
        ]

    def _tables(self) -> list[Metric]:
        node = self._node
        permission = (
            _READ_WRITE if node.leadership.is_leader and node.store.writable else _READ_ONLY
        )
        return [
            self._one("rocketmq_broker_permission", "2 write, 4 read, 6 both.", permission),
            self._one("rocketmq_topic_number", "Topics.", len(node.metadata.topics)),
            self._one("rocketmq_consumer_group_number", "Groups.", len(node.metadata.groups)),
            self._created("topic"),
            self._created("consumer_group"),
            self._gauge(
                "rocketmq_processor_watermark",
                "Requests that wait for their turn; those without a queue are served at once.",
                [((name,), number) for name, number in self._waiting().items()],
                ("processor",),
            ),
        ]

    def _created(self, what: str) -> Metric:
        made = self._node.counters.created.items()
        return self._families.histogram(
            f"rocketmq_{what}_create_execution_time",
            "Milliseconds until it was made, as safe as the broker's mode promises.",
            [
                ((outcome, flag(system)), took)
                for (kind, outcome, system), took in made
                if kind == what
            ],
            ("invocation_status", "is_system"),
        )

    def _waiting(self) -> dict[str, int]:
        """Of RocketMQ's thread pools, which are no pools here: only sends are ever queued."""
        waiting = dict.fromkeys(_PROCESSORS, 0)
        waiting["send"] = self._node.sender.waiting
        waiting["async_put"] = len(self._node.durability)
        return waiting

    def _clients(self) -> list[Metric]:
        node = self._node
        now_ns = node.clock.steady_ns()
        producers: Counter[tuple[str, ...]] = Counter()
        consumers: Counter[tuple[str, ...]] = Counter()
        for client in node.clients:
            if not node.clients.alive(client.client_id, now_ns):
                continue
            who = (client.language, client.version, "grpc")
            if client.client_type in CONSUMER_TYPES:
                system = flag(is_system_group(client.group))
                consumers[(*who, client.group, "pop", system)] += 1
            else:
                producers[who] += 1
        labels = ("language", "version", "protocol_type")
        return [
            self._gauge("rocketmq_producer_connections", "Producers.", producers.items(), labels),
            self._gauge(
                "rocketmq_consumer_connections",
                "Consumers.",
                consumers.items(),
                (*labels, "consumer_group", "consume_mode", "is_system"),
            ),
        ]

    def _groups(self) -> list[Metric]:
        return group_families(self._node, self._families, self._store_times)

    def _storage(self) -> list[Metric]:
        return [
            *store_families(self._node, self._gauge, self._counter, self._families.common),
            *timer_families(self._node.timers, self._families),
            *pop_families(self._node, self._families),
        ]

    def _transactions(self) -> list[Metric]:
        return transaction_families(self._node.transactions, self._families)

    def _process(self) -> list[Metric]:
        import psutil

        process = psutil.Process()
        with process.oneshot():
            times = process.cpu_times()
            resident = process.memory_info().rss
            descriptors = process.num_fds()
        disk = psutil.disk_usage(str(self._node.store.config.root))
        return [
            self._one("process_resident_memory_bytes", "Memory of the process.", resident),
            self._one("process_open_fds", "Open descriptors.", descriptors),
            self._counter(
                "process_cpu_seconds", "Processor time.", [((), times.user + times.system)]
            ),
            self._one("cometmq_disk_free_bytes", "Free where the store lies.", disk.free),
            self._one("cometmq_disk_used_ratio", "Used where the store lies.", disk.percent / 100),
        ]

    def _door_calls(self) -> list[Metric]:
        statistics = self._door()
        if statistics is None:
            return []
        door = (statistics.door,)
        errors = [((path,), number) for path, number in sorted(statistics.internal_errors.items())]
        return [
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
                "What the native door counts since the start (connections: now).",
                [((statistics.door, name), n) for name, n in sorted(statistics.counters.items())],
                ("door", "event"),
            ),
            self._counter("cometmq_internal_errors", "Faults of ours.", errors, ("path",)),
            self._one("cometmq_long_polls", "Polls that are held.", self._node.pop.waiting),
            self._counter(
                "cometmq_forwarded_calls",
                "Calls for another node, by what became of them.",
                [
                    (("forwarded",), self._forwards.forwarded),
                    (("served_instead",), self._forwards.served_instead),
                    (("held",), self._forwards.held),
                    (("held_in_vain",), self._forwards.held_in_vain),
                ],
                ("outcome",),
            ),
        ]


class _Families:
    """What prometheus-client renders: anything with `collect`."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families
