"""Interface between the pop state and its journal.

The pop state of the running leader is in memory (`pop/group.py`); the journal makes it survive in
the revive topic (docs/formats/broker-semantics.md, section 1.7). On a follower the journal writes
nothing, so the consumer offset stays at the first message that is not acknowledged.

Calls come on the event loop in the order of the events; none blocks, none raises an error that the
caller could handle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct, field

if TYPE_CHECKING:
    from ..metadata.tables import Group
    from ..names.delivery import Delivery, Key, PopOptions
    from .group import PopGroup
    from .queue import PopQueue


class Restored(Struct):
    """What the log holds about a group whose state is being created."""

    #: Not acknowledged. `since_ms` is 0: every handle of the message that is out is valid.
    deliveries: list[tuple[Key, Delivery]] = field(default_factory=list)
    #: Acknowledged; those below the consumer offset may be missing.
    consumed: list[tuple[Key, int]] = field(default_factory=list)


class Journal(Protocol):
    """Records the deliveries of groups without order, on a leader."""

    def delivered(
        self, core: PopGroup, queue: PopQueue, offsets: Sequence[int], terms: PopOptions
    ) -> None:
        """Record a delivery at `terms.now_ms` (the pop time), hidden for `terms.invisible_ms`."""

    def settled(self, core: PopGroup, queue: PopQueue, *offsets: int) -> None:
        """Record the end of deliveries: acknowledged, copied, moved or no longer wanted."""

    def flush_soon(self) -> None:
        """Write in the next turn of the loop.

        Called after copies were appended: a crash before the originals are settled copies them
        twice.
        """

    def changed(  # noqa: PLR0917 - one event with all its data
        self,
        core: PopGroup,
        queue: PopQueue,
        delivery: Delivery,
        now_ms: int,
        invisible_ms: int,
        counted: bool,
    ) -> None:
        """Record that the delivery is hidden for `invisible_ms` from `now_ms`.

        Its pop time, `delivery.pop_ms`, is new: at least `now_ms`, and never used before; it
        becomes visible at `delivery.visible_ms`.
        """

    def restored(self, core: PopGroup) -> Restored:
        """Return the earlier deliveries of a group; called when its state is created."""

    def lead(self, create_state: Callable[[str, Group], object]) -> None:
        """Start to write; `create_state` creates the pop state of a topic and group."""

    def follow(self) -> None:
        """Stop to write: another replica leads."""
