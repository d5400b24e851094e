"""What all parts of one broker instance share: configuration, clock, event loop, counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    import asyncio

    from ...front.clock import Clock
    from .config import BrokerConfig
    from .counters import Counters


class ClockListeners:
    """Callbacks for jumps of the wall clock: the machine's, or those of `cometmq.v1.Test`."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], object]] = []

    def add(self, listener: Callable[[], object]) -> None:
        """Call `listener` after every jump."""
        self._listeners.append(listener)

    def notify(self) -> None:
        """The wall clock jumped: timers recompute what is due."""
        for listener in self._listeners:
            listener()


class Runtime(Struct, frozen=True):
    """The environment of a broker instance."""

    config: BrokerConfig
    clock: Clock
    loop: asyncio.AbstractEventLoop
    counters: Counters
    clock_listeners: ClockListeners = field(default_factory=ClockListeners)
