"""Subscription: one group on one topic, its pop state and its waiting polls.

In memory; after a restart its content comes from the log, or is delivered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct, field

from .fifo.ordered_group import OrderedGroup
from .group import PopGroup

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from .request import PopRequest


Core = PopGroup | OrderedGroup


class Waiter(Struct):
    """A waiting ReceiveMessage."""

    request: PopRequest
    ctx: RequestContext
    answer: asyncio.Future[list[bytes]]
    timer: asyncio.TimerHandle | None = None


class Subscription(Struct, eq=False):
    """The pop state of one group on one topic, and its waiting polls."""

    core: Core
    #: Oldest first.
    waiters: dict[int, Waiter] = field(default_factory=dict)
    #: Number of the next pop; rotates the queues.
    turn: int = 0
    scheduled: bool = False
    #: Scheduled time in `DueTimes`; 0: not scheduled.
    due_ms: int = 0
    #: Called at `due_ms` for states that `PopService` does not own (lite topics).
    on_due: Callable[[Subscription], None] | None = None
    #: When the timer processed it last.
    looked_ms: int = 0
