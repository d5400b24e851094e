"""What happens in a store: calls to the part that was given to it. They must not block.

The thread of each call is stated; the store's thread is the one that calls the store.
"""

from typing import Final, Protocol

from .format.record import Message


class StoreEvents(Protocol):
    """The listener of one store."""

    def flushed(self, offset: int) -> None:
        """Everything before `offset` survives a power loss now. Flush thread."""

    def committed(self, offset: int) -> None:
        """With the transient pool: `log_end` is `offset` now. The thread that committed."""

    def refused(self, reason: str) -> None:
        """The store is read-only until the next start; called once. The thread that found the
        reason."""

    def resumed(self) -> None:
        """Writes go on after a lack of disk space. The thread that found the space."""

    def read_stopped(self) -> None:
        """A read ended in front of a unit that a search or a repair may restore: call
        `blocks.resume` later. The store's thread."""

    @property
    def heads_segments(self) -> bool:
        """Whether every segment begins with records of `segment_heads`."""

    def segment_heads(self, offset: int) -> list[Message]:
        """Return the first records of the segment that begins at `offset`. The store's thread."""


class NoStoreEvents:
    """Listens to nothing."""

    @property
    def heads_segments(self) -> bool:
        return False

    def flushed(self, offset: int) -> None: ...

    def committed(self, offset: int) -> None: ...

    def refused(self, reason: str) -> None: ...

    def resumed(self) -> None: ...

    def read_stopped(self) -> None: ...

    def segment_heads(self, offset: int) -> list[Message]:
        return []


NO_EVENTS: Final[StoreEvents] = NoStoreEvents()
