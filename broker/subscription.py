"""One group on one topic, as `PopService` holds it: its pop state and the polls that wait for it.

In memory; losing it means that what was not acknowledged is delivered again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..front.context import RequestContext
    from .pop_reader import Core
    from .pop_request import PopRequest


@dataclass(slots=True)
class Waiter:
    """One ReceiveMessage that is held."""

    request: PopRequest
    ctx: RequestContext
    answer: asyncio.Future[list[bytes]]
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True)
class Subscription:
    """One group on one topic: its pop state and who waits for it."""

    core: Core
    waiters: dict[int, Waiter] = field(default_factory=dict)
    """Oldest first."""
    turn: int = 0
    """The queue that the next pop looks at first."""
    scheduled: bool = False
    timer: asyncio.TimerHandle | None = None
    timer_ms: int = 0
