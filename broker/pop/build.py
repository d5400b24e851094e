"""Construction of the pops of a broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..cold.cold_records import ColdRecords
from .dead_letter import DeadLetters, GroupTopics
from .order_info import OrderInfo
from .polls import PollLimit
from .reader import PopReader
from .receive import PopService
from .reviver import Reviver
from .table import Subscriptions
from .turn import TurnContext

if TYPE_CHECKING:
    from ..base.internal_appender import InternalAppender
    from ..core.parts import Core
    from ..messages.runs import RunConverter
    from ..trace.spans import DeliveryTraces
    from .journal_api import Journal


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Pops:
    """The parts that deliver to groups."""

    group_topics: GroupTopics
    dead_letters: DeadLetters
    order_info: OrderInfo
    subscriptions: Subscriptions
    pop: PopService


def build_pops(
    core: Core,
    journal: Journal,
    appender: InternalAppender,
    trace: DeliveryTraces | None,
    runs: RunConverter,
) -> Pops:
    """Build the parts and connect them."""
    runtime, store = core.runtime, core.store
    topics = GroupTopics(core.metadata, core.meta_log)
    dead_letters = DeadLetters(topics, core.leadership, appender, runtime.counters)
    order_info = OrderInfo(runtime, store, core.metadata)
    cold = ColdRecords(runtime, store, core.replication, core.cluster)
    reviver = _reviver(core, journal, appender, topics, dead_letters)
    context = TurnContext(
        store,
        core.metadata,
        cold,
        dead_letters,
        runtime.counters,
        runtime.config.broker_name,
        trace,
        runtime.clock,
        runs,
    )
    reader = PopReader(
        config=runtime.config,
        clock=runtime.clock,
        store=store,
        metadata=core.metadata,
        offsets=core.offsets,
        leadership=core.leadership,
        journal=journal,
        reviver=reviver,
        context=context,
    )
    subscriptions = Subscriptions(
        runtime=runtime,
        store=store,
        offsets=core.offsets,
        leadership=core.leadership,
        journal=journal,
        reader=reader,
        order_info=order_info,
    )
    order_info.add_source(subscriptions.__iter__)
    pop = PopService(
        runtime=runtime,
        metadata=core.metadata,
        leadership=core.leadership,
        clients=core.clients,
        journal=journal,
        reviver=reviver,
        reader=reader,
        order_info=order_info,
        subscriptions=subscriptions,
        cold=cold,
        limit=PollLimit(runtime.config.pop_polling_size),
    )
    cold.on_arrival(pop.notify)
    core.offsets.subscribe_merges(pop.offset_merged)
    return Pops(
        group_topics=topics,
        dead_letters=dead_letters,
        order_info=order_info,
        subscriptions=subscriptions,
        pop=pop,
    )


def _reviver(
    core: Core,
    journal: Journal,
    appender: InternalAppender,
    topics: GroupTopics,
    dead_letters: DeadLetters,
) -> Reviver:
    return Reviver(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        offsets=core.offsets,
        leadership=core.leadership,
        clients=core.clients,
        durability=core.durability,
        journal=journal,
        appender=appender,
        topics=topics,
        dead_letters=dead_letters,
    )
