"""Segment allocation on a thread, ahead of use, so that a roll does not wait.

`CommitLog` chooses how many, two at most. They are created one after the other, the next only when
the previous exists, so that a crash never leaves a gap between files.

A failure does not persist. The next call tries again, except where it is bound to fail: with too
little free space nothing is created, and after another failure some calls pass without a try. So a
store that met a full disk continues as soon as space is free.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from ..format.disk import Disk
from ..format.errors import DiskFullError, StoreError
from ..format.layout import file_name
from .memory import advise_random, advise_soon, lock
from .segment import Segment, no_room

#: How long a roll waits for a segment that is being created (docs/formats/store-format.md, 8).
WAIT_SECONDS: Final = 5.0
#: Calls of `prepare` without a try after a failure: each try costs a thread and a file.
_CALLS_AFTER_FAILURE: Final = 256
_NONE: Final = -1


class SegmentAllocator:
    """Hands out segments by start offset; called from the thread that writes the log.

    `create(start)` runs on the allocator's thread, or on the caller's when nothing was prepared.
    `has_space(start)` returns whether a try can succeed.
    """

    def __init__(self, create: Callable[[int], Segment], has_space: Callable[[int], bool]) -> None:
        self._create = create
        self._has_room = has_space
        self._changed = threading.Condition()
        self._making = _NONE
        self._ready: dict[int, Segment] = {}
        self._chores: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None
        self._pause = 0
        #: Whether the last try found no space, whatever the disk reports: a quota, a thin volume.
        self.lacks_space = False

    def prepare(self, starts: Sequence[int]) -> bool:
        """Create the segments at `starts`, one at a time; return whether all are ready."""
        missing = [start for start in starts if start not in self._ready]
        if not missing:
            return True
        if self._making != _NONE:
            return False
        if self._pause:
            self._pause -= 1
        elif self._has_room(missing[0]):
            with self._changed:
                self._making = missing[0]
                self._wake()
        return False

    def is_ready(self, start: int) -> bool:
        """Return whether the segment at `start` is prepared."""
        return start in self._ready

    def run_later(self, chore: Callable[[], object]) -> None:
        """Call `chore`, which must not raise, on the thread: work that must not delay the
        writer."""
        with self._changed:
            self._chores.append(chore)
            self._wake()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="store-allocate", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        """Work until nothing is left; the next call with work starts a new thread."""
        while True:
            with self._changed:
                chore = self._chores.popleft() if self._chores else None
                start = self._making
                if chore is None and start == _NONE:
                    self._thread = None
                    self._changed.notify_all()
                    return
            if chore is not None:
                chore()
            else:
                self._make(start)

    def _make(self, start: int) -> None:
        segment: Segment | None = None
        try:
            segment = self._tried(start)
        except Exception:  # `take` tries again on the caller's thread and raises the reason
            self._pause = _CALLS_AFTER_FAILURE
        with self._changed:
            if segment is not None:
                self._ready[start] = segment
            self._making = _NONE
            self._changed.notify_all()

    def take(self, start: int) -> Segment:
        """Return the segment at `start`. Raises DiskFullError or StoreError; nothing is left behind
        then."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._making != start, WAIT_SECONDS):
                raise StoreError(f"The segment at {start} is still being allocated; try again.")
            segment = self._ready.pop(start, None)
        if segment is None:
            self.discard()  # no file may lie behind the missing one
            segment = self._tried(start)
        self._pause = 0
        return segment

    def _tried(self, start: int) -> Segment:
        try:
            segment = self._create(start)
        except DiskFullError:
            self.lacks_space = True
            raise
        self.lacks_space = False
        return segment

    def discard(self) -> None:
        """Remove the segments that were prepared and not used."""
        for segment in self._take_all():
            segment.remove()

    def abandon(self) -> None:
        """Close the prepared segments and leave their files."""
        for segment in self._take_all():
            segment.close()

    def _take_all(self) -> list[Segment]:
        """Wait for the thread, then return the prepared segments, last one first."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None)
            ready, self._ready = self._ready, {}
        return [ready[start] for start in sorted(ready, reverse=True)]


class SegmentOptions(Struct, frozen=True):
    """Preparation of new segments; all off by default."""

    warm: bool = False  #: fill them with zeros, then ask for the pages
    pages_a_flush: int = 4096  #: while warming, with `flush_warm`
    flush_warm: bool = False
    lock: bool = False  #: mlock
    read_ahead: bool = True


class SegmentMaker:
    """Creates one segment, on any thread: directory, space, memory."""

    def __init__(
        self,
        directories: Sequence[str],
        segment_bytes: int,
        disk: Disk,
        options: SegmentOptions,
        is_full: Callable[[str], bool],
    ) -> None:
        self._directories = directories
        self._segment_bytes = segment_bytes
        self._disk = disk
        self.options = options
        self._is_full = is_full

    def has_space(self, start: int) -> bool:
        """Return whether a try can succeed: a failed one fills the disk and removes the file
        again."""
        try:
            free = self._disk.free_bytes(self._directory_for(start))
        except OSError:
            return True  # `create` will raise the reason
        return free >= self._segment_bytes

    def create(self, start: int) -> Segment:
        """Create a segment. Raises DiskFullError or StoreError; nothing is left behind then."""
        path = os.path.join(self._directory_for(start), file_name(start))
        if not self.has_space(start):
            raise no_room(path, self._segment_bytes)
        segment = Segment.create(path, start, self._segment_bytes, self._disk)
        if self.options.warm:
            segment.warm(self.options.pages_a_flush, self.options.flush_warm)
            advise_soon(segment.map)
        self.lock(segment)
        self.advise(segment)
        return segment

    def advise(self, segment: Segment) -> None:
        if not self.options.read_ahead:
            advise_random(segment.map)

    def lock(self, segment: Segment) -> None:
        """Lock the pages of the segment in memory, if configured and allowed."""
        if self.options.lock and not segment.locked and not segment.map.closed:
            segment.locked = lock(segment.map)

    def _directory_for(self, start: int) -> str:
        return directory_for(start, self._segment_bytes, self._directories, self._is_full)


def directory_for(
    start: int, size: int, directories: Sequence[str], is_full: Callable[[str], bool]
) -> str:
    """Return the directory of the segment at `start`: the writable directories take turns by
    file number; full ones are skipped while another has space (docs/formats/store-format.md,
    section 8)."""
    writable = sorted(directories)
    usable = [path for path in writable if not is_full(path)] or writable
    return usable[start // size % len(usable)]
