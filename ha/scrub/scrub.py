"""Scrub: verifies finished segments against their digests and the other replicas, and repairs
blocks.

    a segment is finished -> CRC-32 of every MiB, on a thread -> `<store>/ha/digests`
    every hour, and after a reader found damage:
        own blocks against their digests     mismatch: damaged, readers wait until it is repaired
        digests against other replicas'      different: the side with damaged records is wrong
        damaged -> ReadRange from peers -> bytes that match the digest -> write, flush, read again
    at the start and every hour: consume queue units against the log (store/queue/unit_check.py),
    index files against their digests (store/digests.py, store/index/digest.py)

Damage never causes a cut. A block is only overwritten with bytes that match the digest taken when
it was intact (or, if that was taken too late, that make its damaged records whole). While a replica
that may have the right bytes does not answer, readers wait in front of a damaged block. If no
replica has them, readers get the records with intact bodies and skip the others; the block stays,
and every round logs it. Reads are limited to `bytes_per_second` (docs/formats/ha.md, R14, drill
26).
"""

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from ...proto import v1
from ...store.format.disk import Disk
from ...store.format.errors import CorruptLogError
from ...store.queue.unit_repair import CHECK_BYTES as UNITS_BYTES
from ..state import digests
from ..state.digests import BLOCK_BYTES, SegmentDigest
from .api import Options, Result, ScrubbedStore
from .peer import Peer, PeerError
from .serve import block_message, log_bytes

__all__ = ["Options", "Result", "Scrub", "ScrubbedStore"]

logger = logging.getLogger(__name__)

#: Interval of the check for finished segments: damage before the digest is taken shows only in the
#: checksums of records.
_SEAL_EVERY_S: Final = 0.05
#: The interval while the segment has more room than is written in it, or nothing is written.
_SEAL_FAR_S: Final = 0.5
_FAR_BYTES: Final = 256 << 20
#: Pause before a failed save of a digest is retried.
_SEAL_RETRY_S: Final = 1.0
#: Units are checked on the event loop, at this fraction of the rate: a few percent of its time.
_UNITS_SHARE: Final = 16
#: Pause between the detection of damage and the next round.
_SOON_S: Final = 0.2


class Scrub:
    """The scrub of one store; everything except reads and checksums runs on the event loop."""

    def __init__(
        self,
        directory: Path,
        store: ScrubbedStore,
        peers: Callable[[], Iterable[Peer]],
        options: Options | None = None,
        disk: Disk | None = None,
        *,
        count: Callable[[Result], None] | None = None,
    ) -> None:
        """`directory` is `<store>/ha`; `peers` returns the other replicas known now; `count` is
        called with the result of every round."""
        self._directory = directory
        self._store = store
        self._blocks = store.blocks
        self._peers = peers
        self._count = count
        self._options = options or Options()
        self._disk = disk or Disk()
        self._digests = digests.load(directory)
        #: Finished before this start: their bytes may be damaged before the digest is taken.
        self._late = {start for start, _ in store.blocks.finished_segments()}
        self._next_roll = 0  # no other segment is finished before the log's end reaches this
        self._damaged_blocks: set[tuple[int, int]] = set()  # begin, end
        self._unrepairable: set[tuple[int, int]] = set()
        self._verified: set[int] = set()  # blocks that were intact when they were sent
        self._tasks: list[asyncio.Task[None]] = []
        self._lock = asyncio.Lock()
        self._sealing = asyncio.Lock()
        self._wake = asyncio.Event()
        self.total = Result()

    # --- start and stop ---------------------------------------------------------------------------

    def start(self) -> None:
        self._blocks.guard(self)
        loop = asyncio.get_running_loop()
        steps = (self._seal_on(), self._scrub_on(), self._check_derived_on())
        self._tasks = [loop.create_task(step) for step in steps]

    async def stop(self) -> None:
        """Stop; call it before the store closes."""
        self._blocks.guard(None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _seal_on(self) -> None:
        seen = -1
        while True:
            before, seen = seen, self._store.log_end
            try:
                if self._store.log_end >= self._next_roll:
                    await self.seal()
            except OSError as error:
                logger.warning("scrub.digest_not_saved error=%s", error)
                await asyncio.sleep(_SEAL_RETRY_S)
            is_far = seen == before or self._next_roll - seen > _FAR_BYTES
            await asyncio.sleep(_SEAL_FAR_S if is_far else _SEAL_EVERY_S)

    async def _scrub_on(self) -> None:
        interval_s = self._options.interval_s or None
        while True:
            try:
                await asyncio.wait_for(self._wake.wait(), interval_s)
                await asyncio.sleep(_SOON_S)
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self.run_once()
            except OSError as error:
                logger.error("scrub.failed error=%s", error)

    async def _check_derived_on(self) -> None:
        """Check queues and index at the start, then as often as the log."""
        while True:
            await asyncio.sleep(_SOON_S)
            try:
                await self.check_units()
                await self.check_index()
            except OSError as error:
                logger.error("scrub.derived_failed error=%s", error)
            if not self._options.interval_s:
                return
            await asyncio.sleep(self._options.interval_s)

    async def check_units(self) -> None:
        """Compare all consume queue units with the log, and write damaged ones again. Raises
        OSError."""
        check = self._blocks.unit_check()
        rate = self._options.bytes_per_second // _UNITS_SHARE
        pause_s = UNITS_BYTES / rate if rate else 0
        while check.step(self._store.dispatched_offset):  # noqa: ASYNC110 - a rate limit
            await asyncio.sleep(pause_s)

    async def check_index(self) -> None:
        """Compare the index files with their digests, and the entries of the one that is being
        filled; damaged ones are rebuilt. Raises OSError."""
        index = self._store.index
        for path in index.full_files():
            with suppress(FileNotFoundError):  # deleted by retention
                digest = await asyncio.to_thread(index.read_digest, path)
                index.compare(path, digest)
            await asyncio.sleep(0)
        filling = index.filling()
        if filling is not None:
            with suppress(FileNotFoundError):
                if not await asyncio.to_thread(filling.is_intact):
                    index.rebuild_from(filling.path)

    # --- digests ----------------------------------------------------------------------------------

    async def seal(self) -> int:
        """Take the missing digests of finished segments; returns their number."""
        async with self._sealing:
            return await self._seal()

    async def _seal(self) -> int:
        finished = self._blocks.finished_segments()
        first = finished[0][0] if finished else self._store.log_start
        if any(start < first for start in self._digests):  # retention deleted segments
            self._digests = {s: each for s, each in self._digests.items() if s >= first}
            await asyncio.to_thread(digests.forget, self._directory, 1 << 62, self._disk, first)
        taken = 0
        while (found := self._unsealed()) is not None:
            start, size = found
            held = self._blocks.hold_segment(start)
            if held is None:  # deleted by retention just now
                break
            try:
                blocks = await asyncio.to_thread(digests.blocks_of, held.data)
            finally:
                held.release()
            digest = SegmentDigest(start, size, start not in self._late, blocks)
            await asyncio.to_thread(digests.append, self._directory, digest, self._disk)
            self._digests[start] = digest
            taken += 1
            if digest.sealed:  # still from memory: no check needed before it is sent
                self._verified.update(range(start, start + size, BLOCK_BYTES))
            else:  # many at once, after an upgrade: not urgent
                await self._pause(size)
        latest = self._blocks.finished_segments()[-1:]
        if latest and found is None:
            self._next_roll = sum(latest[0]) + latest[0][1]
        return taken

    def _unsealed(self) -> tuple[int, int] | None:
        """Return a segment without a digest: those finished after the start come first."""
        left = [each for each in self._blocks.finished_segments() if each[0] not in self._digests]
        return min(left, key=lambda each: (each[0] in self._late, each), default=None)

    async def _pause(self, read_bytes: int) -> None:
        if self._options.bytes_per_second:
            await asyncio.sleep(read_bytes / self._options.bytes_per_second)

    # --- one round --------------------------------------------------------------------------------

    async def run_once(self) -> Result:
        """Check every finished segment and repair what can be repaired. Raises OSError when a
        repair fails."""
        async with self._lock:
            await self.seal()
            result = Result(rounds=1)
            for digest in list(self._digests.values()):
                await self._check_segment(digest, result)
            await self._compare(result)
            result.damaged = len(self._damaged_blocks)
            for begin, end in sorted(self._damaged_blocks):
                await self._repair(begin, end, result)
            self._add(result)
            return result

    def _add(self, result: Result) -> None:
        total = self.total
        for name in ("rounds", "blocks", "damaged", "repaired", "lost", "different"):
            setattr(total, name, getattr(total, name) + getattr(result, name))
        total.unreached = result.unreached
        if self._count is not None:
            self._count(result)
        level = logging.INFO if not (result.damaged or result.different) else logging.WARNING
        logger.log(
            level,
            "scrub.round blocks=%d damaged=%d repaired=%d lost=%d different=%d unreached=%s",
            result.blocks,
            result.damaged,
            result.repaired,
            result.lost,
            result.different,
            ",".join(result.unreached) or "-",
        )

    async def _check_segment(self, digest: SegmentDigest, result: Result) -> None:
        async for begin, length, crc in self._current_blocks(digest):
            result.blocks += 1
            if crc != digest.block_at(begin)[2]:
                self._mark(begin, begin + length)

    async def _current_blocks(
        self, digest: SegmentDigest, first: int = 0, last: int = 1 << 62
    ) -> AsyncIterator[tuple[int, int, int]]:
        """Yield start, length and current CRC-32 of the segment's blocks that touch [first,
        last)."""
        for position in range(0, digest.size, BLOCK_BYTES):
            begin = digest.start + position
            length = min(BLOCK_BYTES, digest.size - position)
            if begin + length <= first or begin >= last:
                continue
            held = self._blocks.hold_segment(digest.start)
            if held is None:  # deleted by retention meanwhile
                return
            try:
                crc = await asyncio.to_thread(digests.block_crc, held.data, position, length)
            finally:
                held.release()
            yield begin, length, crc
            await self._pause(length)

    def _mark(self, begin: int, end: int) -> None:
        if (begin, end) in self._damaged_blocks:
            return
        self._damaged_blocks.add((begin, end))
        self._blocks.mark_damaged(begin, end)
        self._verified.discard(begin)
        logger.error("scrub.damaged begin=%d end=%d", begin, end)

    # --- the other replicas -----------------------------------------------------------------------

    async def _compare(self, result: Result) -> None:
        """Compare recorded digests with the peers'. If both match their bytes and differ, one was
        damaged before its digest was taken."""
        if not self._digests:
            return
        start = min(self._digests)
        end = max(each.end for each in self._digests.values())
        for peer in self._peers():
            try:
                async for theirs in peer.digests(start, end):
                    await self._compare_block(theirs, peer, result)
            except PeerError as error:
                result.unreached.append(peer.address)
                logger.info("scrub.unreached peer=%s error=%s", peer.address, error)

    async def _compare_block(self, theirs: v1.BlockDigest, peer: Peer, result: Result) -> None:
        ours = self._digest_at(theirs.offset)
        if ours is None:
            return
        begin, length, crc = ours.block_at(theirs.offset)
        same_place = (begin, length) == (theirs.offset, theirs.length)
        if not same_place or crc == theirs.crc32 or (begin, begin + length) in self._damaged_blocks:
            return
        if await self._has_damaged_record(ours, begin, length):
            self._mark(begin, begin + length)
            return
        result.different += 1
        logger.error(
            "scrub.different begin=%d length=%d peer=%s ours=%08x theirs=%08x",
            begin,
            length,
            peer.address,
            crc,
            theirs.crc32,
        )

    def _digest_at(self, offset: int) -> SegmentDigest | None:
        # All segments have one size.
        size = next(iter(self._digests.values())).size if self._digests else 1
        return self._digests.get(offset - offset % size)

    async def _has_damaged_record(
        self, digest: SegmentDigest, begin: int, length: int, patch: bytes | None = None
    ) -> bool:
        """Return whether a record that touches the block is damaged, with `patch` in place of the
        block."""
        held = self._blocks.hold_segment(digest.start)
        if held is None:
            return False
        try:
            from .records import damaged_records  # needs NumPy

            place = (begin - digest.start, length)
            return await asyncio.to_thread(damaged_records, held.data, digest.start, place, patch)
        finally:
            held.release()

    async def _repair(self, begin: int, end: int, result: Result) -> None:
        digest = self._digest_at(begin)
        if digest is None:  # deleted by retention
            self._clear_damaged(begin, end)
            return
        length = end - begin
        if await self._is_intact(digest, begin, length):  # one failed read, not the disk
            self._clear_damaged(begin, end)
            return
        silent = False
        for peer in self._peers():
            try:
                data = await peer.read(begin, length)
            except PeerError as error:
                silent = True
                logger.info("scrub.unreached peer=%s error=%s", peer.address, error)
                continue
            if len(data) == length and await self._is_right(digest, begin, data):
                await self._overwrite(digest, begin, data)
                result.repaired += 1
                logger.warning("scrub.repaired begin=%d end=%d peer=%s", begin, end, peer.address)
                return
        result.lost += 1
        if silent:  # it may have them: readers wait
            return
        self._unrepairable.add((begin, end))
        self._blocks.clear_damaged(begin, end)
        logger.error("scrub.lost begin=%d end=%d: no replica has the right bytes", begin, end)

    async def _is_intact(self, digest: SegmentDigest, begin: int, length: int) -> bool:
        as_noted = await self._matches_digest(digest, begin)
        return as_noted and not await self._has_damaged_record(digest, begin, length)

    async def _is_right(self, digest: SegmentDigest, begin: int, data: bytes) -> bool:
        """Return whether these are the right bytes of the block."""
        if zlib.crc32(data) == digest.block_at(begin)[2]:
            return not await self._has_damaged_record(digest, begin, len(data), data)
        if digest.sealed and not await self._matches_digest(digest, begin):
            return False  # damaged after the digest: only matching bytes are right
        # The digest may be of damaged bytes: check the records instead.
        was_damaged = await self._has_damaged_record(digest, begin, len(data))
        return was_damaged and not await self._has_damaged_record(digest, begin, len(data), data)

    async def _matches_digest(self, digest: SegmentDigest, begin: int) -> bool:
        noted = digest.block_at(begin)[2]
        return any(
            [crc == noted async for _, _, crc in self._current_blocks(digest, begin, begin + 1)]
        )

    async def _overwrite(self, digest: SegmentDigest, begin: int, data: bytes) -> None:
        await asyncio.to_thread(self._blocks.repair, begin, data)
        index = (begin - digest.start) // BLOCK_BYTES
        crc = zlib.crc32(data)
        if digest.blocks[index] != crc:
            blocks = (*digest.blocks[:index], crc, *digest.blocks[index + 1 :])
            changed = SegmentDigest(digest.start, digest.size, digest.sealed, blocks)
            await asyncio.to_thread(digests.append, self._directory, changed, self._disk)
            self._digests[digest.start] = changed
        self._clear_damaged(begin, begin + len(data))

    def _clear_damaged(self, begin: int, end: int) -> None:
        self._damaged_blocks.discard((begin, end))
        self._unrepairable.discard((begin, end))
        self._blocks.clear_damaged(begin, end)

    # --- damage found by readers and senders ------------------------------------------------------

    def will_repair(self, offset: int, size: int) -> bool:
        """Mark the blocks of a damaged record and schedule their repair; returns False if
        unrepairable."""
        digest = self._digest_at(offset)
        if digest is None:
            self._wake.set()
            return True
        last = min(offset + size, digest.end) - 1
        touched = {digest.block_at(at)[:2] for at in (*range(offset, last, BLOCK_BYTES), last)}
        blocks = {(begin, begin + length) for begin, length in touched}
        if blocks <= self._unrepairable:
            return False
        for begin, end in blocks:
            self._mark(begin, end)
        self._wake.set()
        return True

    def before_raw_read(self, begin: int, end: int) -> None:
        """Check each block once before it is sent, so that a replica never copies damaged bytes."""
        digest = self._digest_at(begin)
        if digest is None:
            return
        for at in (*range(begin, end - 1, BLOCK_BYTES), end - 1):
            start, length, crc = digest.block_at(at)
            if start in self._verified:
                continue
            held = self._blocks.hold_segment(digest.start)
            if held is None:
                return
            with held as data:
                now = digests.block_crc(data, start - digest.start, length)
            if now != crc:
                self._mark(start, start + length)
                self._wake.set()
                raise CorruptLogError(
                    str(digest.start), start, "the checksum of a block does not match."
                )
            self._verified.add(start)

    # --- answers to peers -------------------------------------------------------------------------

    async def get_digests(self, request: v1.DigestsRequest) -> AsyncIterator[v1.BlockDigest]:
        """Yield the finished blocks that touch the range, with recorded and current checksum."""
        await self.seal()
        end = request.end or 1 << 62
        for start in sorted(self._digests):
            digest = self._digests[start]
            if digest.end <= request.start or start >= end:
                continue
            if request.recorded_only:
                for position in range(0, digest.size, BLOCK_BYTES):
                    yield block_message(digest, start + position, 0)
                continue
            async for begin, length, crc in self._current_blocks(digest, request.start, end):
                if crc != digest.block_at(begin)[2]:
                    self._mark(begin, begin + length)
                    self._wake.set()
                yield block_message(digest, begin, crc)

    def read_range(self, request: v1.ReadRangeRequest) -> AsyncIterator[v1.LogBytes]:
        """Yield the log's bytes, at most 4 MiB, fewer at the log's end."""
        return log_bytes(self._store, request)
