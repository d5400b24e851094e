"""Construction of the lite topics of a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .ack import LiteAcks
from .core import LiteTable
from .receive import LiteReceive
from .service import LiteService
from .subscribe import LiteSubscribe

if TYPE_CHECKING:
    from ..core.parts import Core
    from ..pop.build import Pops


def build_lites(core: Core, pops: Pops) -> tuple[LiteService, LiteAcks]:
    """Build the parts and connect them; return those that others use."""
    runtime, store = core.runtime, core.store
    receive = LiteReceive(
        runtime=runtime,
        store=store,
        metadata=core.metadata,
        clients=core.clients,
        offsets=core.offsets,
        pop=pops.pop,
        table=LiteTable(runtime.config.max_lite_subscription_count),
    )
    pops.order_info.add_source(receive.subscriptions)
    subscribing = LiteSubscribe(
        runtime=runtime,
        store=store,
        metadata=core.metadata,
        changes=core.changes,
        durability=core.durability,
        pump=core.pump,
        clients=core.clients,
        offsets=core.offsets,
        receive=receive,
    )
    core.resets.listeners.append(subscribing.moved)
    service = LiteService(
        runtime=runtime,
        store=store,
        metadata=core.metadata,
        clients=core.clients,
        offsets=core.offsets,
        leadership=core.leadership,
        receiving=receive,
        subscribing=subscribing,
    )
    core.offsets.subscribe_removals(service.forget)
    acks = LiteAcks(
        runtime=runtime,
        store=store,
        metadata=core.metadata,
        leadership=core.leadership,
        durability=core.durability,
        changes=core.changes,
        dead_letters=pops.dead_letters,
        receive=receive,
    )
    return service, acks
