"""One group on one topic, as `PopService` holds it: its pop state and the polls that wait for it.

In memory; what it loses with the process is in the log, or is delivered again.
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
    """One ReceiveMessage that is held."""

    request: PopRequest
    ctx: RequestContext
    answer: asyncio.Future[list[bytes]]
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class Subscription:
    """One group on one topic: its pop state and who waits for it."""

    core: Core
    waiters: dict[int, Waiter] = field(default_factory=dict)
    """Oldest first."""
    turn: int = 0
    """The queue that the next pop looks at first."""
    scheduled: bool = False
    due_ms: int = 0
    """When it is looked at for what is due (`due.py`); 0: not asked for."""
    on_due: Callable[[Subscription], None] | None = None
    """Called at `due_ms` for states that are not `PopService`'s own (lite topics)."""
    looked_ms: int = 0
    """When it was looked at last."""
