"""A listener of a store whose reactions a test sets as it goes."""

from collections.abc import Callable
from typing import Any

from cometmq.store.format.record import Message


def _ignore(*_: Any) -> None:
    pass


class Heard:
    """See `StoreEvents`."""

    def __init__(self) -> None:
        self.flushed: Callable[[int], None] = _ignore
        self.committed: Callable[[int], None] = _ignore
        self.refused: Callable[[str], None] = _ignore
        self.resumed: Callable[[], None] = _ignore
        self.read_stopped: Callable[[], None] = _ignore
        #: Makes the first records of a segment; None: there are none.
        self.heads: Callable[[int], list[Message]] | None = None

    @property
    def heads_segments(self) -> bool:
        return self.heads is not None

    def segment_heads(self, offset: int) -> list[Message]:
        return [] if self.heads is None else self.heads(offset)
