"""The next segment, allocated ahead by a thread, so that a roll-over finds it ready.

At most one segment ahead, made when the current one is half full (a cluster that holds little does
not reserve two segments a broker). A failure is kept until the segment is needed: the caller then
tries once more itself, because space may have been freed, and reports what it finds.
"""

import threading
from collections.abc import Callable

from .errors import StoreError
from .segment import Segment


class SegmentAllocator:
    """Hands out segments by start offset. Called from one thread."""

    def __init__(self, create: Callable[[int], Segment]) -> None:
        self._create = create
        self._thread: threading.Thread | None = None
        self._start = -1
        self._ready: Segment | None = None

    def prepare(self, start: int) -> None:
        """Begin to make the segment at `start`; does nothing if one is under way or ready."""
        if self._thread is None:
            self._start = start
            self._thread = threading.Thread(
                target=self._run, name="store-allocate", args=(start,), daemon=True
            )
            self._thread.start()

    def _run(self, start: int) -> None:
        try:
            self._ready = self._create(start)
        except StoreError:
            self._ready = None  # `take` meets the same failure, and reports it

    def take(self, start: int) -> Segment:
        """The segment at `start`. Raises DiskFullError or StoreError; nothing is left behind then."""
        ready = self._finish()
        if ready is not None:
            if ready.start == start:
                return ready
            ready.remove()
        return self._create(start)

    def discard(self) -> None:
        """Remove what was made ahead and not used."""
        ready = self._finish()
        if ready is not None:
            ready.remove()

    def abandon(self) -> None:
        """Close what was made ahead and leave its file."""
        ready = self._finish()
        if ready is not None:
            ready.close()

    def _finish(self) -> Segment | None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        ready, self._ready = self._ready, None
        return ready
