"""Construction of the consumer side: journal, pops, lite topics, pulls and acknowledgements.

A part of the composition root (`assembly.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..proto import v2
from .journal.service import JournalService
from .lite.ack import LiteAcks
from .lite.core import LiteTable
from .lite.fanout import LiteFanout
from .lite.receive import LiteReceive
from .lite.receive_service import ReceiveService
from .lite.send import LiteSends
from .lite.service import LiteService
from .lite.subscribe import LiteSubscribe
from .pop.ack import AckService
from .pop.cold import ColdRecords
from .pop.dead_letter import DeadLetters, GroupTopics
from .pop.failover.roles import PopRoles
from .pop.failover.takeover import Takeover
from .pop.fifo.order_info import OrderInfo
from .pop.polls import PollLimit
from .pop.reader import PopReader
from .pop.receive import PopService
from .pop.reviver import Reviver
from .pop.table import Subscriptions
from .pop.turn import TurnContext
from .pull.service import PullService

if TYPE_CHECKING:
    from .node import Node


def build_consumption(node: Node) -> None:
    """Construct the parts and connect them."""
    runtime = node.runtime
    limit = PollLimit(runtime.config.pop_polling_size)
    topics = GroupTopics(node.metadata, node.meta_log)
    dead_letters = DeadLetters(topics, node.leadership, node.sender, runtime.counters)
    order_info = OrderInfo(runtime, node.store, node.metadata)
    node.journal = _journal(node)
    reviver = _reviver(node, topics, dead_letters)
    cold = ColdRecords(runtime, node.store, node.replication, node.cluster)
    reader = _reader(node, reviver, cold, dead_letters)
    subscriptions = _subscriptions(node, reader, order_info)
    order_info.add_source(subscriptions.__iter__)
    node.pop = PopService(
        runtime=runtime,
        metadata=node.metadata,
        leadership=node.leadership,
        clients=node.clients,
        journal=node.journal,
        reviver=reviver,
        reader=reader,
        order_info=order_info,
        subscriptions=subscriptions,
        cold=cold,
        limit=limit,
    )
    cold.on_arrival(node.pop.notify)
    node.offsets.on_merged = node.pop.offset_merged
    node.pop_roles = _pop_roles(node, subscriptions, order_info)
    lite_receive = _lite_receive(node, reader, limit)
    order_info.add_source(lite_receive.subscriptions)
    node.lite = _lite(node, lite_receive)
    node.lite_fanout = LiteFanout(node.metadata, node.cluster)
    node.acks = _acks(node, dead_letters, lite_receive)
    node.pulls = _pulls(node, limit)
    node.receiving = ReceiveService(
        clock=runtime.clock,
        clients=node.clients,
        pump=node.pump,
        pop=node.pop,
        lite=node.lite,
        pulls=node.pulls,
        limit=limit,
    )


def _journal(node: Node) -> JournalService:
    journal = JournalService(
        runtime=node.runtime,
        store=node.store,
        metadata=node.metadata,
        offsets=node.offsets,
        leadership=node.leadership,
        pump=node.pump,
        appender=node.sender,
        system_topics=node.system_topics,
    )
    node.offsets.on_forgotten.append(journal.forget)
    return journal


def _reviver(node: Node, topics: GroupTopics, dead_letters: DeadLetters) -> Reviver:
    return Reviver(
        runtime=node.runtime,
        store=node.store,
        metadata=node.metadata,
        offsets=node.offsets,
        leadership=node.leadership,
        clients=node.clients,
        durability=node.durability,
        journal=node.journal,
        appender=node.sender,
        topics=topics,
        dead_letters=dead_letters,
    )


def _reader(
    node: Node, reviver: Reviver, cold: ColdRecords, dead_letters: DeadLetters
) -> PopReader:
    context = TurnContext(
        store=node.store,
        cold=cold,
        dead_letters=dead_letters,
        counters=node.runtime.counters,
        broker_name=node.runtime.config.broker_name,
        trace=node.trace,
    )
    return PopReader(
        config=node.runtime.config,
        clock=node.runtime.clock,
        store=node.store,
        metadata=node.metadata,
        offsets=node.offsets,
        leadership=node.leadership,
        journal=node.journal,
        reviver=reviver,
        context=context,
    )


def _subscriptions(node: Node, reader: PopReader, order_info: OrderInfo) -> Subscriptions:
    return Subscriptions(
        runtime=node.runtime,
        store=node.store,
        offsets=node.offsets,
        leadership=node.leadership,
        journal=node.journal,
        reader=reader,
        order_info=order_info,
    )


def _pop_roles(node: Node, subscriptions: Subscriptions, order_info: OrderInfo) -> PopRoles:
    return PopRoles(
        loop=node.runtime.loop,
        store=node.store,
        leadership=node.leadership,
        pump=node.pump,
        journal=node.journal,
        pop=node.pop,
        order_info=order_info,
        handover=subscriptions.handover,
        takeover=Takeover(node.runtime.clock, node.store, node.metadata, node.journal, node.pop),
    )


def _lite_receive(node: Node, reader: PopReader, limit: PollLimit) -> LiteReceive:
    return LiteReceive(
        runtime=node.runtime,
        store=node.store,
        metadata=node.metadata,
        clients=node.clients,
        pop=node.pop,
        reader=reader,
        limit=limit,
        table=LiteTable(node.runtime.config.max_lite_subscription_count),
    )


def _lite(node: Node, receive: LiteReceive) -> LiteService:
    subscribing = LiteSubscribe(
        runtime=node.runtime,
        store=node.store,
        metadata=node.metadata,
        clients=node.clients,
        offsets=node.offsets,
        table=receive.table,
        receive=receive,
    )
    lite = LiteService(
        runtime=node.runtime,
        store=node.store,
        metadata=node.metadata,
        clients=node.clients,
        offsets=node.offsets,
        leadership=node.leadership,
        table=receive.table,
        receiving=receive,
        subscribing=subscribing,
    )
    node.sender.register(v2.LITE, LiteSends())
    node.offsets.on_forgotten.append(lite.forget)
    return lite


def _acks(node: Node, dead_letters: DeadLetters, lite_receive: LiteReceive) -> AckService:
    lite = LiteAcks(
        runtime=node.runtime,
        store=node.store,
        metadata=node.metadata,
        leadership=node.leadership,
        durability=node.durability,
        changes=node.changes,
        dead_letters=dead_letters,
        receive=lite_receive,
    )
    return AckService(
        runtime=node.runtime,
        store=node.store,
        metadata=node.metadata,
        leadership=node.leadership,
        durability=node.durability,
        changes=node.changes,
        journal=node.journal,
        dead_letters=dead_letters,
        pop=node.pop,
        lite=lite,
        trace=node.trace,
    )


def _pulls(node: Node, limit: PollLimit) -> PullService:
    return PullService(
        runtime=node.runtime,
        store=node.store,
        metadata=node.metadata,
        clients=node.clients,
        offsets=node.offsets,
        leadership=node.leadership,
        pump=node.pump,
        pop=node.pop,
        limit=limit,
    )
