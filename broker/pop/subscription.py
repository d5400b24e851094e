"""Subscription: the pop state of one group on one topic, with its waiting polls.

In memory; state lost with the process is in the log, or its messages are redelivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from .reader import Core
    from .request import PopRequest


@dataclass(slots=True)
class Waiter:
    """One held ReceiveMessage."""

    request: PopRequest
    ctx: RequestContext
    answer: asyncio.Future[list[bytes]]
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class Subscription:
    """One group on one topic: its pop state and waiting polls."""

    core: Core
    waiters: dict[int, Waiter] = field(default_factory=dict)
    """Oldest first."""
    turn: int = 0
    """The queue that the next pop reads first."""
    scheduled: bool = False
    due_ms: int = 0
    """When its due messages are processed (`due.py`); 0: not scheduled."""
    on_due: Callable[[Subscription], None] | None = None
    """Called at `due_ms` for state that does not belong to `PopService` (lite topics)."""
    looked_ms: int = 0
    """When it was processed last."""
