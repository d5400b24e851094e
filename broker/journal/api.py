"""What the pop state tells whoever writes it down, and asks of it after a restart.

The state in memory is the truth of the running leader (`pop/group.py`); a journal makes it survive in the
revive topic (broker semantics, section 1.7). `Journal` is what this needs of it, `NullJournal` what a
follower uses, and a node before its journal is open: it keeps nothing, so that the consumer offset
stays at the first message that is not acknowledged.

Calls come on the event loop, in the order in which things happen; none may block or raise for a reason
that the caller could do something about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..pop.delivery import Delivery, Key, PopOptions
    from ..pop.group import PopGroup, PopQueue


@dataclass(slots=True)
class Restored:
    """What the log says of a group that is looked at for the first time."""

    deliveries: list[tuple[Key, Delivery]] = field(default_factory=list)
    """Not acknowledged. `since_ms` is 0: every handle of the message that is out is good."""
    consumed: list[tuple[Key, int]] = field(default_factory=list)
    """Acknowledged; those below the consumer offset need not be named."""


class Journal(Protocol):
    """Told of what happens to the deliveries of groups without order, on a leader."""

    def delivered(
        self, core: PopGroup, queue: PopQueue, offsets: Sequence[int], terms: PopOptions
    ) -> None:
        """These offsets were given out at `terms.now_ms` (their pop time) for `terms.invisible_ms`."""

    def settled(self, core: PopGroup, queue: PopQueue, offset: int) -> None:
        """A delivery is done for good: acknowledged, copied, moved or not wanted any more."""

    def hurry(self) -> None:
        """What was settled has a copy in the log, which a crash must not make a second time: no
        waiting for more."""

    def changed(  # noqa: PLR0917 - what happened, in one call
        self,
        core: PopGroup,
        queue: PopQueue,
        delivery: Delivery,
        now_ms: int,
        invisible_ms: int,
        counted: bool,
    ) -> None:
        """The delivery is hidden for `invisible_ms` from `now_ms`.

        Its pop time, `delivery.pop_ms`, is a new one, never below `now_ms` and never one used before;
        it becomes visible at `delivery.visible_ms`.
        """

    def restored(self, core: PopGroup) -> Restored:
        """What is known of a group's deliveries from before; asked when its state is made."""

    def lead(self) -> None:
        """From now on this replica writes."""

    def follow(self) -> None:
        """Another replica writes from now on."""


class NullJournal:
    """Keeps nothing."""

    def delivered(
        self, core: PopGroup, queue: PopQueue, offsets: Sequence[int], terms: PopOptions
    ) -> None:
        """Nothing."""

    def settled(self, core: PopGroup, queue: PopQueue, offset: int) -> None:
        """Nothing."""

    def hurry(self) -> None:
        """Nothing."""

    def changed(  # noqa: PLR0917 - what happened, in one call
        self,
        core: PopGroup,
        queue: PopQueue,
        delivery: Delivery,
        now_ms: int,
        invisible_ms: int,
        counted: bool,
    ) -> None:
        """Nothing."""

    def restored(self, core: PopGroup) -> Restored:
        """Nothing is known."""
        return Restored()

    def lead(self) -> None:
        """Nothing."""

    def follow(self) -> None:
        """Nothing."""
