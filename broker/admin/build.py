"""Construction of the administration of topics, groups, offsets and clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .clients import ClientAdmin
from .groups import GroupAdmin
from .left_behind import LeftBehind
from .offsets import OffsetAdmin
from .service import Admin
from .topics import TopicAdmin
from .waiting import WaitingMessages

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..assembly.parts import Broker
    from ..clients.connected import GrpcClients
    from .live_settings import LiveSettings


def build_admin(
    broker: Broker, clients: GrpcClients, door: Callable[[], str], settings: LiveSettings
) -> Admin:
    """Build the handlers; `door` returns the name of the open front door."""
    clock = broker.runtime.clock
    waiting = WaitingMessages(clock, broker.timers, broker.levels, broker.transactions)
    topics = TopicAdmin(
        runtime=broker.runtime,
        store=broker.store,
        metadata=broker.metadata,
        changes=broker.changes,
        offsets=broker.offsets,
        pump=broker.pump,
        progress=broker.progress,
        status=broker.status,
        waiting=waiting,
        left_behind=LeftBehind(
            clock, broker.store, broker.metadata, broker.changes.log, broker.offsets
        ),
    )
    groups = GroupAdmin(
        clock=clock,
        metadata=broker.metadata,
        changes=broker.changes,
        progress=broker.progress,
        removal=broker.removal,
        waiting=waiting,
        deliveries=broker.pop.deliveries,
    )
    offsets = OffsetAdmin(
        clock=clock,
        metadata=broker.metadata,
        store=broker.store,
        offsets=broker.offsets,
        leadership=broker.leadership,
        pump=broker.pump,
        pop=broker.pop,
        progress=broker.progress,
        resets=broker.resets,
    )
    return Admin(
        topics=topics,
        groups=groups,
        offsets=offsets,
        clients=ClientAdmin([clients]),
        status=broker.status,
        brokers=lambda: {*broker.cluster.groups, *broker.cluster.absent},
        door=door,
        settings=settings,
        kept=broker.replication.links.kept,
    )
