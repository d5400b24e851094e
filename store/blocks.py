"""Block access to finished segments, for scrub and repair.

A segment is finished when the log has continued in the next one: it is not written any more, so
its bytes can be compared with a stored checksum and with another replica's bytes. A block whose
checksum does not match is *damaged*: readers do not get its records, nothing is cut because of it,
and `repair` overwrites it with the right bytes (docs/formats/ha.md). The store does not decide
which bytes are right; the caller marks and repairs.

Readers check every record (`record_check.py`). A guard is asked about the damaged records of
finished segments (`guard.py`). The segment that is written cannot be repaired.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from .format.errors import CorruptLogError, OffsetOutOfRangeError
from .gaps import Gaps
from .guard import BlockGuard
from .log.commit_log import CommitLog
from .log.segment import HeldView
from .queue.table import QueueTable
from .reading import QueueReader

if TYPE_CHECKING:
    from .queue.unit_check import UnitCheck


class BlockAccess:
    """Finished segments of an opened store: hold, mark as damaged, repair."""

    def __init__(self, log: CommitLog, queues: QueueTable, reader: QueueReader) -> None:
        self._log = log
        self._queues = queues
        self._reader = reader

    def guard(self, guard: BlockGuard | None) -> None:
        """Ask `guard` about damaged records and before raw reads; None: no more."""
        self._reader.guard = self._log.guard = guard

    def finished_segments(self) -> list[tuple[int, int]]:
        """Return start and size of every finished segment, oldest first."""
        end = self._log.readable_end
        return [(each.start, each.size) for each in self._log.segments if each.end <= end]

    def hold_segment(self, start: int) -> HeldView | None:
        """Return a counted view of the finished segment that begins at `start`; None if retention
        has deleted it. Hold and release it on the store's thread; other threads may read it."""
        for segment in self._log.segments:
            if segment.start == start and segment.end <= self._log.readable_end:
                return segment.hold()
        return None

    @contextmanager
    def range_reader(
        self, ranges: Sequence[tuple[int, int]]
    ) -> Iterator[Callable[[], list[bytes]]]:
        """Prepare a read of these offsets and lengths that another thread runs, so that the event
        loop does not wait for the disk.

        The segments are held on the store's thread until the context ends. Raises
        OffsetOutOfRangeError, and CorruptLogError for a damaged range; the read itself OSError.
        """
        log, damaged = self._log, self._reader.damaged
        with ExitStack() as held:
            reads: list[Callable[[], bytes]] = []
            holding: set[int] = set()
            for offset, length in ranges:
                end = offset + length
                if not log.start <= offset < end <= log.readable_end:
                    raise OffsetOutOfRangeError(offset, log.start, log.readable_end)
                if any(begin < end and offset < stop for begin, stop in damaged):
                    raise CorruptLogError(str(offset), offset, "the range is in a damaged block.")
                segment = log.segment_at(offset)
                if segment.start not in holding:
                    holding.add(segment.start)
                    held.enter_context(segment.hold())
                reads.append(partial(segment.read, offset - segment.start, length))
            yield lambda: [read() for read in reads]

    def unit_check(self) -> "UnitCheck":
        """Return a new round of comparing consume queue units with the log; its steps run on the
        store's thread."""
        from .queue.unit_check import UnitCheck

        reader = self._reader
        return UnitCheck(self._log, self._queues, reader.units, reader.is_damaged)

    def resume(self) -> list[tuple[str, int]]:
        """Continue the search of one of the queues in which reads ended; return the topics and
        queue ids that may be read again."""
        reader, queues = self._reader, self._queues.queues
        stopped = [(key, queues.get(key)) for key in reader.stopped]
        reader.stopped.clear()
        ready = []
        searched = False
        for key, queue in stopped:
            if queue is not None and reader.units.searches(queue):
                if searched or reader.units.search_on(queue):
                    reader.stopped.add(key)
                searched = True
            if key not in reader.stopped:
                ready.append(key)
        return ready

    @property
    def gaps(self) -> Gaps:
        """Messages that readers skip because their records are damaged."""
        return self._reader.gaps

    @property
    def searching(self) -> bool:
        """Whether `resume` has a search to continue."""
        queues = (self._queues.queues.get(key) for key in self._reader.stopped)
        return any(queue is not None and self._reader.units.searches(queue) for queue in queues)

    def mark_damaged(self, begin: int, end: int) -> None:
        """Withhold the bytes [begin, end) from readers until `clear_damaged`."""
        self._reader.damaged.add((begin, end))

    def clear_damaged(self, begin: int, end: int) -> None:
        """Undo `mark_damaged`."""
        self._reader.damaged.discard((begin, end))
        self._reader.units.forget()
        self._reader.gaps.clear()

    def repair(self, offset: int, data: bytes) -> None:
        """Overwrite bytes within one finished segment; durable on return.

        May be called on another thread. Raises OffsetOutOfRangeError when retention has deleted the
        segment, OSError.
        """
        for segment in self._log.segments[:]:
            finished = segment.end <= self._log.readable_end
            if finished and segment.start <= offset and offset + len(data) <= segment.end:
                segment.overwrite(offset - segment.start, data)
                return
        raise OffsetOutOfRangeError(offset, self._log.start, self._log.readable_end)
