"""Subscription: one group on one topic, its pop state and its waiting polls.

In memory; after a restart its content comes from the log, or is delivered again.
"""

from __future__ import annotations

from collections.abc import Callable

from .fifo.ordered_group import OrderedGroup
from .group import PopGroup
from .polls import Waiting

Core = PopGroup | OrderedGroup


class Subscription(Waiting, eq=False):
    """The pop state of one group on one topic, and its waiting polls."""

    core: Core
    #: Number of the next pop; rotates the queues.
    turn: int = 0
    #: Scheduled time in `DueTimes`; 0: not scheduled.
    due_ms: int = 0
    #: Called at `due_ms` for states that `PopService` does not own (lite topics).
    on_due: Callable[[Subscription], None] | None = None
    #: When the timer processed it last.
    looked_ms: int = 0
