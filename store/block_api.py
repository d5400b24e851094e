"""The store's face for who checks and mends its bytes: finished segments, block by block.

A segment is finished when the log has gone on behind it: nobody writes there any more, so its bytes can be compared with
a checksum taken once, and with another replica's. What does not match is *rotten*: no reader gets it, nothing is cut
because of it, and `mend` puts the right bytes into its place (HA note, R14). The store itself never decides what is
right; it refuses to hand out what is said, or found, to be wrong.

Reads check the bodies of records in finished segments while `on_rot` is set: what the disk did to cold data shows
when it is read. The segment that is written is never checked: it was in memory a moment ago.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from .format.errors import CorruptLogError, OffsetOutOfRangeError
from .log.commit_log import CommitLog
from .log.segment import HeldView
from .reading import QueueReader


class BlockApi:
    """What a scrub asks of an opened store."""

    _log: CommitLog
    _reader: QueueReader

    @property
    def on_rot(self) -> Callable[[int, int], bool] | None:
        """Called with offset and size of a record that a reader wanted and that is damaged. True: hold the
        reader here, the record will be mended; False: it is lost, go on behind it."""
        return self._reader.on_rot

    @on_rot.setter
    def on_rot(self, hook: Callable[[int, int], bool] | None) -> None:
        self._reader.on_rot = hook

    @property
    def guard(self) -> Callable[[int, int], None] | None:
        """Called before raw bytes [begin, end) of a finished segment are handed out (replication); may raise
        CorruptLogError."""
        return self._log.guard

    @guard.setter
    def guard(self, hook: Callable[[int, int], None] | None) -> None:
        self._log.guard = hook

    def finished_segments(self) -> list[tuple[int, int]]:
        """Start and size of every finished segment, the oldest first."""
        end = self._log.readable_end
        return [(each.start, each.size) for each in self._log.segments if each.end <= end]

    def hold_segment(self, start: int) -> HeldView | None:
        """A counted view of the finished segment that begins there; None: it is gone. Take and release it on the
        store's thread; others may read it meanwhile."""
        for segment in self._log.segments:
            if segment.start == start and segment.end <= self._log.readable_end:
                return segment.hold()
        return None

    @contextmanager
    def places(self, places: Sequence[tuple[int, int]]) -> Iterator[Callable[[], list[bytes]]]:
        """A read of these offsets and lengths, for a thread: the disk may be slow, and the loop does not wait for it.

        The segments are held on the store's thread until the context ends. Raises OffsetOutOfRangeError, and
        CorruptLogError for what is rotten; the read itself OSError.
        """
        log, forbidden = self._log, self._reader.forbidden
        with ExitStack() as held:
            reads: list[Callable[[], bytes]] = []
            holding: set[int] = set()
            for offset, length in places:
                end = offset + length
                if not log.start <= offset < end <= log.readable_end:
                    raise OffsetOutOfRangeError(offset, log.start, log.readable_end)
                if any(begin < end and offset < stop for begin, stop in forbidden):
                    raise CorruptLogError(str(offset), offset, "a block of the log is rotten.")
                segment = log.segment_at(offset)
                if segment.start not in holding:
                    holding.add(segment.start)
                    held.enter_context(segment.hold())
                reads.append(partial(segment.read, offset - segment.start, length))
            yield lambda: [read() for read in reads]

    def forbid(self, begin: int, end: int) -> None:
        """The bytes [begin, end) are rotten: no reader gets them until `allow`."""
        self._reader.forbidden.add((begin, end))

    def allow(self, begin: int, end: int) -> None:
        """They are mended."""
        self._reader.forbidden.discard((begin, end))

    def mend(self, offset: int, data: bytes) -> None:
        """Put the right bytes in the place of rotten ones, durably; within one finished segment.

        May be called on a thread. Raises OffsetOutOfRangeError when the segment is gone, OSError.
        """
        for segment in self._log.segments[:]:
            finished = segment.end <= self._log.readable_end
            if finished and segment.start <= offset and offset + len(data) <= segment.end:
                segment.overwrite(offset - segment.start, data)
                return
        raise OffsetOutOfRangeError(offset, self._log.start, self._log.readable_end)
