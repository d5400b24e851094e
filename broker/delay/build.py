"""Construction of the delays: levels, timers, recalls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...proto import v2
from .delayed import DelayedMessages, DelaySends
from .levels import DelayLevels
from .recall import Recalls
from .timer_service import TimerService

if TYPE_CHECKING:
    from ..core.parts import Core
    from ..sending.sender import Sender


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Delays:
    """The parts that deliver later."""

    timers: TimerService
    levels: DelayLevels
    delayed: DelayedMessages
    recalls: Recalls


def build_delays(core: Core, sender: Sender) -> Delays:
    """Build the parts, and register the type of delayed messages."""
    runtime, store = core.runtime, core.store
    timers = TimerService(
        runtime=runtime,
        store=store,
        metadata=core.metadata,
        offsets=core.offsets,
        pump=core.pump,
        appender=sender,
    )
    levels = DelayLevels(
        runtime=runtime,
        store=store,
        metadata=core.metadata,
        offsets=core.offsets,
        pump=core.pump,
        appender=sender,
        stats=timers.stats,
    )
    delayed = DelayedMessages(store.config, runtime.clock, timers, core.system_topics)
    recalls = Recalls(
        runtime=runtime,
        store_config=store.config,
        metadata=core.metadata,
        sender=sender,
        durability=core.durability,
        timers=timers,
        delayed=delayed,
    )
    name, precision_ms = runtime.config.broker_name, store.config.timer_precision_ms
    sender.register(v2.DELAY, DelaySends(delayed, name, precision_ms))
    return Delays(timers=timers, levels=levels, delayed=delayed, recalls=recalls)
