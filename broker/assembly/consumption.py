"""Construction of the consumer side: journal, pops, lite topics, pulls and acknowledgements.

A part of the composition root (`build.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto import v2
from ..journal.service import JournalService
from ..lite.build import build_lites
from ..lite.fanout import LiteFanout
from ..lite.receive_service import ReceiveService
from ..lite.send import LiteSends
from ..messages.runs import run_converter
from ..pop.ack import AckService
from ..pop.build import build_pops
from ..pop.failover.roles import PopRoles
from ..pop.failover.takeover import Takeover
from ..pull.service import PullService
from .parts import Consumption

if TYPE_CHECKING:
    from ...proto.native import Native
    from ..core.parts import Core
    from .parts import Sending


def build_consumption(core: Core, sending: Sending, native: Native | None) -> Consumption:
    """Construct the parts and connect them; `native` is the crate."""
    runtime, store, sender, traces = (
        core.runtime,
        core.store,
        sending.sender,
        sending.delivery_traces,
    )
    journal = _journal(core, sending)
    runs = run_converter(native)
    pops = build_pops(core, journal, sender, traces, runs)
    lite, lite_acks = build_lites(core, pops)
    sender.register(v2.LITE, LiteSends())
    pulls = PullService(
        runtime=runtime,
        store=store,
        metadata=core.metadata,
        clients=core.clients,
        offsets=core.offsets,
        leadership=core.leadership,
        pump=core.pump,
        pop=pops.pop,
        runs=runs,
    )
    core.offsets.subscribe_removals(pulls.forget)
    acks = AckService(
        runtime=runtime,
        store=store,
        metadata=core.metadata,
        leadership=core.leadership,
        durability=core.durability,
        changes=core.changes,
        journal=journal,
        dead_letters=pops.dead_letters,
        pop=pops.pop,
        lite=lite_acks,
        trace=traces,
        native=native,
    )
    receiving = ReceiveService(
        clock=runtime.clock,
        clients=core.clients,
        pump=core.pump,
        pop=pops.pop,
        lite=lite,
        pulls=pulls,
    )
    return Consumption(
        **vars(pops),
        journal=journal,
        pop_roles=PopRoles(
            loop=core.runtime.loop,
            store=core.store,
            leadership=core.leadership,
            pump=core.pump,
            journal=journal,
            pop=pops.pop,
            order_info=pops.order_info,
            handover=pops.subscriptions.handover,
            takeover=Takeover(core.runtime.clock, core.store, core.metadata, journal, pops.pop),
        ),
        acks=acks,
        pulls=pulls,
        lite=lite,
        lite_fanout=LiteFanout(core.metadata, core.cluster, core.replication.links),
        receiving=receiving,
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
    core.offsets.subscribe_removals(sending.sender.removed)
    return journal
