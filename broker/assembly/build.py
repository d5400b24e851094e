"""Composition of a broker: builds its parts in order, from the store to the services.

Folders with several parts build themselves (`core/`, `delay/`, `pop/`, `lite/`). `lifecycle.py`
connects and starts them. A leader by configuration leads from here on, an elected leader later
(`role.py`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ...proto import native, v2
from ...store.format.record import pack_host
from ..access.key_source import KeySource
from ..access.quota_admin import QuotaAdmin
from ..access.user_admin import UserAdmin
from ..base.counters import Counters
from ..base.runtime import Runtime
from ..clients.telemetry_forward import TelemetryForward
from ..core.build import build_core, open_store
from ..delay.build import build_delays
from ..maintenance.progress import ConsumerProgress
from ..maintenance.removal import Removal
from ..maintenance.status import BrokerStatus
from ..maintenance.store_maintenance import StoreMaintenance
from ..maintenance.traffic import TrafficRates
from ..sending.sender import Sender
from ..trace.service import TraceService
from ..trace.spans import DeliveryTraces, Spans, exporting_tracer
from ..transactions.service import Transactions
from .consumption import build_consumption
from .parts import Broker, Consumption, Sending

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from ...front.clock import Clock
    from ...front.config import DoorConfig
    from ...front.faults import FaultTable
    from ...ha.config import HaConfig
    from ...ha.events import ReplicationEvents
    from ...nodes.node_links import NodeLinks
    from ...proto.native import Native
    from ...store.config.store_config import StoreConfig
    from ...store.events import StoreEvents
    from ..base.config import BrokerConfig
    from ..core.parts import Core

_KEY_FILE = "auth.key"


def assemble(
    config: BrokerConfig,
    store_config: StoreConfig,
    ha: HaConfig,
    clock: Clock,
    *,
    door: DoorConfig,
    links: NodeLinks,
    faults: FaultTable | None,
    events: tuple[StoreEvents, ReplicationEvents],
    stack: AsyncExitStack,
) -> Broker:
    """Open the store and build every part; `stack` closes them. Raises StoreError, HaError."""
    crate = native.load()
    store = open_store(store_config, clock, faults, events[0], crate=crate, stack=stack)
    runtime = Runtime(config, clock, asyncio.get_running_loop(), Counters())
    core = build_core(runtime, ha, store, links, door, events=events[1])
    stack.callback(core.durability.close)
    stack.callback(core.quotas.close)
    sending = _sending(core, crate)
    consumption = build_consumption(core, sending, crate)
    core.pump.add_listener(consumption.receiving)
    runtime.clock_listeners.add(consumption.pop.clock_moved)
    removal = Removal(core.metadata, core.offsets, consumption.pop, sending.timers)
    core.meta_log.watch_removals(removal.topic_removed, removal.group_removed)
    keys = KeySource(
        config.authentication_key_file,
        ha.cluster_token,
        store_config.root / "config" / _KEY_FILE,
    )
    traffic = TrafficRates(clock=core.runtime.clock, counters=core.runtime.counters)
    broker = Broker(
        **vars(core),
        **vars(sending),
        **vars(consumption),
        keys=keys,
        users=UserAdmin(
            metadata=core.metadata,
            changes=core.changes,
            keys=keys,
            first_user=core.runtime.config.first_user(),
            machine_ms=core.runtime.clock.machine_ms,
        ),
        quota_admin=QuotaAdmin(metadata=core.metadata, changes=core.changes),
        removal=removal,
        maintenance=_maintenance(core, sending, traffic),
        progress=_progress(core, consumption),
        status=BrokerStatus(
            runtime=core.runtime,
            store=core.store,
            metadata=core.metadata,
            replication=core.replication,
            leadership=core.leadership,
            cluster=core.cluster,
            pump=core.pump,
            traffic=traffic,
        ),
        telemetry_forward=TelemetryForward(
            clock=core.runtime.clock,
            loop=core.runtime.loop,
            clients=core.clients,
            cluster=core.cluster,
            config=door,
            leads=lambda: core.leadership.is_leader,
            links=core.replication.links,
        ),
    )
    set_store_host(broker, config.broker_ip1, config.grpc_server_port)
    return broker


def set_store_host(broker: Broker, host: str, port: int) -> None:
    """Set the address that records carry as their store host.

    Offset message ids contain it, and tools of classic clients dial what an id names.
    """
    try:
        packed = pack_host(host, port)
    except OSError:
        # A host name; records hold addresses only.
        packed = pack_host("0.0.0.0", port)
    broker.sender.set_store_host(packed)
    broker.meta_log.set_host(packed)


def _sending(core: Core, crate: Native | None) -> Sending:
    trace = None
    if core.runtime.config.trace_topic_enable:
        trace = TraceService(core.runtime, core.system_topics)
    spans, provider = _spans(core.runtime)
    sender = Sender(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        leadership=core.leadership,
        pump=core.pump,
        durability=core.durability,
        auto_topics=core.auto_topics,
        quotas=core.quotas,
        trace=trace,
        spans=spans,
        native=crate,
    )
    if trace is not None:
        trace.start(sender)
    tracing = [each for each in (trace, spans) if each is not None]
    delays = build_delays(core, sender)
    transactions = Transactions(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        offsets=core.offsets,
        clients=core.clients,
        pump=core.pump,
        durability=core.durability,
        appender=sender,
        system_topics=core.system_topics,
        delayed=delays.delayed,
    )
    sender.register(v2.TRANSACTION, transactions)
    return Sending(
        **vars(delays),
        sender=sender,
        trace=trace,
        delivery_traces=DeliveryTraces(tracing) if tracing else None,
        span_provider=provider,
        transactions=transactions,
    )


def _spans(runtime: Runtime) -> tuple[Spans | None, Any]:
    """Return the spans and their provider, if they are enabled. Raises ValueError."""
    config = runtime.config
    if not config.trace_spans_enable:
        return None, None
    tracer, provider = exporting_tracer(f"{config.broker_name}-{config.broker_id}")
    return Spans(tracer, runtime.clock), provider


def _maintenance(core: Core, sending: Sending, traffic: TrafficRates) -> StoreMaintenance:
    return StoreMaintenance(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        replication=core.replication,
        leadership=core.leadership,
        pump=core.pump,
        offsets=core.offsets,
        traffic=traffic,
        waiting=[part.oldest for part in (sending.timers, sending.levels, sending.transactions)],
    )


def _progress(core: Core, consumption: Consumption) -> ConsumerProgress:
    return ConsumerProgress(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        offsets=core.offsets,
        clients=core.clients,
        pump=core.pump,
        queue_progress=consumption.receiving.progress,
    )
