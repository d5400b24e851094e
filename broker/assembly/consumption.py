"""Construction of the consumer side: journal, pops, lite topics, pulls and acknowledgements.

A part of the composition root (`build.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto import v2
from ..cold.cold_records import ColdRecords
from ..journal.service import JournalService
from ..lite.ack import LiteAcks
from ..lite.core import LiteTable
from ..lite.fanout import LiteFanout
from ..lite.receive import LiteReceive
from ..lite.receive_service import ReceiveService
from ..lite.send import LiteSends
from ..lite.service import LiteService
from ..lite.subscribe import LiteSubscribe
from ..messages.runs import RunConverter, run_converter
from ..pop.ack import AckService
from ..pop.dead_letter import DeadLetters, GroupTopics
from ..pop.failover.roles import PopRoles
from ..pop.failover.takeover import Takeover
from ..pop.order_info import OrderInfo
from ..pop.polls import PollLimit
from ..pop.reader import PopReader
from ..pop.receive import PopService
from ..pop.reviver import Reviver
from ..pop.table import Subscriptions
from ..pop.turn import TurnContext
from ..pull.service import PullService
from .parts import Consumption

if TYPE_CHECKING:
    from ...proto.native import Native
    from .parts import Core, Sending


def build_consumption(core: Core, sending: Sending, native: Native | None) -> Consumption:
    """Construct the parts and connect them; `native` is the crate."""
    runtime = core.runtime
    limit = PollLimit(runtime.config.pop_polling_size)
    runs = run_converter(native)
    topics = GroupTopics(core.metadata, core.meta_log)
    dead_letters = DeadLetters(topics, core.leadership, sending.sender, runtime.counters)
    order_info = OrderInfo(runtime, core.store, core.metadata)
    journal = _journal(core, sending)
    reviver = _reviver(core, sending, journal, topics, dead_letters)
    cold = ColdRecords(runtime, core.store, core.replication, core.cluster)
    reader = _reader(core, journal, reviver, _turn_context(core, sending, cold, dead_letters, runs))
    subscriptions = _subscriptions(core, journal, reader, order_info)
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
        limit=limit,
    )
    cold.on_arrival(pop.notify)
    core.offsets.subscribe_merges(pop.offset_merged)
    lite_receive = _lite_receive(core, pop, reader, limit)
    order_info.add_source(lite_receive.subscriptions)
    lite = _lite(core, lite_receive)
    sending.sender.register(v2.LITE, LiteSends())
    pulls = _pulls(core, pop, limit, runs)
    return Consumption(
        group_topics=topics,
        dead_letters=dead_letters,
        journal=journal,
        pop=pop,
        pop_roles=_pop_roles(core, journal, pop, subscriptions, order_info),
        acks=_acks(
            core,
            sending,
            journal=journal,
            pop=pop,
            lite_receive=lite_receive,
            dead_letters=dead_letters,
            native=native,
        ),
        pulls=pulls,
        lite=lite,
        lite_fanout=LiteFanout(core.metadata, core.cluster, core.replication.links),
        receiving=ReceiveService(
            clock=runtime.clock,
            clients=core.clients,
            pump=core.pump,
            pop=pop,
            lite=lite,
            pulls=pulls,
            limit=limit,
        ),
    )


def _journal(core: Core, sending: Sending) -> JournalService:
    journal = JournalService(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        offsets=core.offsets,
        leadership=core.leadership,
        pump=core.pump,
        appender=sending.sender,
        system_topics=core.system_topics,
    )
    core.offsets.subscribe_removals(journal.forget)
    return journal


def _reviver(
    core: Core,
    sending: Sending,
    journal: JournalService,
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
        appender=sending.sender,
        topics=topics,
        dead_letters=dead_letters,
    )


def _turn_context(
    core: Core,
    sending: Sending,
    cold: ColdRecords,
    dead_letters: DeadLetters,
    runs: RunConverter,
) -> TurnContext:
    return TurnContext(
        store=core.store,
        cold=cold,
        dead_letters=dead_letters,
        counters=core.runtime.counters,
        broker_name=core.runtime.config.broker_name,
        trace=sending.delivery_traces,
        clock=core.runtime.clock,
        runs=runs,
    )


def _reader(
    core: Core,
    journal: JournalService,
    reviver: Reviver,
    context: TurnContext,
) -> PopReader:
    return PopReader(
        config=core.runtime.config,
        clock=core.runtime.clock,
        store=core.store,
        metadata=core.metadata,
        offsets=core.offsets,
        leadership=core.leadership,
        journal=journal,
        reviver=reviver,
        context=context,
    )


def _subscriptions(
    core: Core, journal: JournalService, reader: PopReader, order_info: OrderInfo
) -> Subscriptions:
    return Subscriptions(
        runtime=core.runtime,
        store=core.store,
        offsets=core.offsets,
        leadership=core.leadership,
        journal=journal,
        reader=reader,
        order_info=order_info,
    )


def _pop_roles(
    core: Core,
    journal: JournalService,
    pop: PopService,
    subscriptions: Subscriptions,
    order_info: OrderInfo,
) -> PopRoles:
    return PopRoles(
        loop=core.runtime.loop,
        store=core.store,
        leadership=core.leadership,
        pump=core.pump,
        journal=journal,
        pop=pop,
        order_info=order_info,
        handover=subscriptions.handover,
        takeover=Takeover(core.runtime.clock, core.store, core.metadata, journal, pop),
    )


def _lite_receive(core: Core, pop: PopService, reader: PopReader, limit: PollLimit) -> LiteReceive:
    return LiteReceive(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        clients=core.clients,
        offsets=core.offsets,
        pop=pop,
        reader=reader,
        limit=limit,
        table=LiteTable(core.runtime.config.max_lite_subscription_count),
    )


def _lite(core: Core, receive: LiteReceive) -> LiteService:
    subscribing = LiteSubscribe(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        meta_log=core.meta_log,
        changes=core.changes,
        durability=core.durability,
        pump=core.pump,
        clients=core.clients,
        offsets=core.offsets,
        table=receive.table,
        receive=receive,
    )
    core.resets.listeners.append(subscribing.moved)
    lite = LiteService(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        clients=core.clients,
        offsets=core.offsets,
        leadership=core.leadership,
        table=receive.table,
        receiving=receive,
        subscribing=subscribing,
    )
    core.offsets.subscribe_removals(lite.forget)
    return lite


def _acks(
    core: Core,
    sending: Sending,
    *,
    journal: JournalService,
    pop: PopService,
    lite_receive: LiteReceive,
    dead_letters: DeadLetters,
    native: Native | None,
) -> AckService:
    lite = LiteAcks(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        leadership=core.leadership,
        durability=core.durability,
        changes=core.changes,
        dead_letters=dead_letters,
        receive=lite_receive,
    )
    return AckService(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        leadership=core.leadership,
        durability=core.durability,
        changes=core.changes,
        journal=journal,
        dead_letters=dead_letters,
        pop=pop,
        lite=lite,
        trace=sending.delivery_traces,
        native=native,
    )


def _pulls(core: Core, pop: PopService, limit: PollLimit, runs: RunConverter) -> PullService:
    return PullService(
        runtime=core.runtime,
        store=core.store,
        metadata=core.metadata,
        clients=core.clients,
        offsets=core.offsets,
        leadership=core.leadership,
        pump=core.pump,
        pop=pop,
        limit=limit,
        runs=runs,
    )
