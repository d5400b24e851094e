"""Retention service: measures disk use, runs the rules, deletes segments and trims derived data.

The broker's timer calls `step` every `cleanResourceInterval`, and `watch_disk` more often: it
pauses the store when the disk use is too high, and ends the pause when space is free. Both run on
the event loop and do not wait; a thread deletes the files, one at a time with a pause between them
(`deleteCommitLogFilesInterval`), each durably removed before the next, so that a crash never leaves
a gap between files. Before each, all that the store has made of its records is flushed: the end of
a queue never goes back. A failed deletion is tried again in the next round, before any
other.

The time is an argument. It must be the file system's own (a file's age is that of its last write),
so a test that moves the broker's clock deletes nothing.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ..config.store_config import StoreConfig
from ..format.disk import Disk, existing
from ..log.commit_log import CommitLog
from ..log.segment import Segment
from ..log.write_gate import WriteGate
from .archive_watermark import ArchiveWatermark
from .rules import (
    UNKNOWN,
    Pressure,
    Reason,
    Rules,
    SegmentFacts,
    Situation,
    Verdict,
    decide,
    pressure_of,
    used_percent,
    writes_stop,
)

logger = logging.getLogger(__name__)

_NS_PER_MS: Final = 1_000_000
#: Pause cause: the disk use is too high.
_DISK_USE: Final = "disk use"


class TrimmedData(Protocol):
    """Derived data that deletes what belongs to records before the log start; a bounded part per
    call."""

    def trim(self, log_start: int) -> int:
        """Return how many files were deleted. Raises OSError."""
        ...


class Durable(Protocol):
    """What is durable of a store (`flush_threads.py`)."""

    def safe_end(self) -> int:
        """Return the offset before which retention may delete."""
        ...

    def settle(self, end: int) -> str:
        """Make durable what else exists of the records before `end`; return why that is not
        possible, or "". Called by the thread that deletes."""
        ...


class RetentionService:
    """The retention of one store; called from the event loop only."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        followers: Sequence[TrimmedData],
        *,
        disk: Disk,
        gate: WriteGate,
        durable: Durable,
    ) -> None:
        self.rules = Rules.of(config)
        self.watermark = ArchiveWatermark(config.root, disk)
        #: Returns what connected replicas have; None: no followers. Set by the broker.
        self.replica_end: Callable[[], int | None] = lambda: None
        #: Returns from where on records may wait to be delivered; None: unknown. Set by the broker.
        self.waiting_from: Callable[[], int | None] = lambda: None
        self.pressure = Pressure.NONE
        #: Disk use in percent, by directory of the log, then of the queues.
        self.log_use: dict[str, int] = {}
        self.queues_use = UNKNOWN
        #: Whether the log has space for another message.
        self.has_room = True
        self._config = config
        self._log = log
        self._followers = followers
        self._disk = disk
        self._gate = gate
        self._durable = durable
        self._stopped = False
        self._held_since: dict[int, int] = {}
        self._deletion: _Deletion | None = None
        log.is_full = lambda path: self.log_use.get(path, UNKNOWN) > self.rules.forced

    def configure(self, config: StoreConfig) -> None:
        """Use other rules from the next round on."""
        self.rules = Rules.of(config)

    def may_resume(self, cause: str) -> bool:
        """Return whether there is disk space, and no other cause pauses writes."""
        return self.has_room and self._gate.is_paused_only_by(cause)

    # -- the disk -----------------------------------------------------------------------------

    def watch_disk(self) -> None:
        """Measure disk use; pause the store, or end the pause."""
        rules = self.rules
        directories = self._log.writable_directories or self._log.directories
        self.log_use = {path: self._percent(path) for path in directories}
        self.queues_use = self._percent(str(self._config.consume_queue_directory))
        self.has_room = self._log.has_room(self._config.max_message_size)
        self.pressure = pressure_of(rules, self.log_use.values(), self.queues_use)
        was_stopped = self._stopped
        self._stopped = writes_stop(self.pressure, was_stopped)
        if self._stopped:
            use = self.disk_use
            limit = f"diskSpaceWarningLevelRatio {rules.warning} %"
            if use <= rules.warning:
                limit = f"diskSpaceCleanForciblyRatio {rules.forced} %, where writing goes on"
            self._gate.pause(
                _DISK_USE,
                f"The disk of {self._config.root} is {use} % full ({limit}).",
            )
        elif was_stopped:
            self._gate.resume(_DISK_USE)

    @property
    def disk_use(self) -> int:
        """Percent of the disk that decides: the emptiest one of the log's, or that of the
        queues."""
        return max(min(self.log_use.values(), default=UNKNOWN), self.queues_use)

    def tick(self) -> None:
        """About once a second: measure disk use, and continue an unfinished trim."""
        self.watch_disk()
        self._trim()

    @property
    def is_due(self) -> bool:
        """Whether the next round need not wait for its interval: disk pressure lasts after the
        segment of the last one is gone."""
        deletion = self._deletion
        return deletion is not None and self.pressure > Pressure.NONE and deletion.finished()

    def _percent(self, path: str) -> int:
        try:
            return used_percent(*self._disk.space(existing(path)))
        except OSError as error:
            logger.warning("disk.unknown path=%s error=%s", path, error)
            return UNKNOWN

    # -- deciding -----------------------------------------------------------------------------

    def verdicts(self, now_ms: int, hour: int, *, head_only: bool = False) -> list[Verdict]:
        """Return the verdict of every segment; `head_only`: of those that one round could
        delete."""
        segments = self._log.segments
        head = segments[: self.rules.batch_max + 1] if head_only else segments
        situation = Situation(
            now_ms,
            hour,
            self.pressure,
            self._durable.safe_end(),
            self.watermark.value,
            self.replica_end(),
            self.waiting_from(),
        )
        facts = [self._facts(segment, now_ms) for segment in head]
        return decide(facts, situation, self.rules, whole=len(head) == len(segments))

    def _facts(self, segment: Segment, now_ms: int) -> SegmentFacts:
        try:
            modified_ms = os.stat(segment.path).st_mtime_ns // _NS_PER_MS
        except FileNotFoundError:
            modified_ms = 0  # the file was deleted by hand
        held_ms = None
        if segment.held:
            held_ms = now_ms - self._held_since.get(segment.start, now_ms)
        return SegmentFacts(segment.start, segment.end, modified_ms, held_ms)

    # -- deleting -----------------------------------------------------------------------------

    def step(self, now_ms: int, hour: int) -> list[Verdict]:
        """Run one round. Returns the verdicts of the examined segments; those with `delete` are out
        of the log on return, and a thread deletes their files."""
        self.tick()
        self._log.release_pages()
        if self._deletion is not None and not self._deletion.finished():
            return []
        self._deletion = None
        verdicts = self.verdicts(now_ms, hour, head_only=True)
        self._held_since = {
            verdict.segment.start: self._held_since.get(verdict.segment.start, now_ms)
            for verdict in verdicts
            if verdict.reason is Reason.HELD
        }
        dropped = [self._drop(verdict) for verdict in verdicts if verdict.delete]
        if dropped:
            pause_s = self._config.delete_commit_log_files_interval / 1000
            self._deletion = _Deletion(dropped, self._disk, pause_s, self._durable)
            self._trim()
        return verdicts

    def _drop(self, verdict: Verdict) -> Segment:
        """Drop the log's first segment, which is the verdict's."""
        facts = verdict.segment
        segment = self._log.drop_first(unlink=False)
        assert segment.start == facts.start, (segment.start, facts.start)
        logger.info(
            "segment.expired start=%d end=%d reason=%s", facts.start, facts.end, verdict.sentence
        )
        if Reason.ARCHIVE in verdict.overridden:
            logger.warning(
                "archive.overridden start=%d end=%d watermark=%d use=%d%%",
                facts.start,
                facts.end,
                self.watermark.value,
                self.disk_use,
            )
        if Reason.WAITS in verdict.overridden:
            logger.warning(
                "waiting.overridden start=%d end=%d use=%d%%: delayed messages and open "
                "transactions in it are lost; cometmq_timer_dropped and cometmq_transaction_checks "
                "count them",
                facts.start,
                facts.end,
                self.disk_use,
            )
        return segment

    def _trim(self) -> None:
        try:
            for follower in self._followers:
                follower.trim(self._log.start)
        except OSError as error:
            # The next round tries the rest again.
            logger.warning("retention.trim_failed error=%s", error)

    def close(self) -> None:
        """Delete the files of dropped segments, without pauses."""
        if self._deletion is not None:
            self._deletion.stop()


class _Deletion:
    """Deletes the files of dropped segments, oldest first, on a thread."""

    def __init__(
        self,
        segments: Sequence[Segment],
        disk: Disk,
        pause_s: float,
        durable: Durable,
    ) -> None:
        self._segments = list(segments)
        self._disk = disk
        self._pause_s = pause_s
        self._durable = durable
        self._hurry = threading.Event()
        # The thread unmaps segments without holders, which takes a while; the last reader unmaps
        # the others.
        self._free = [segment for segment in segments if not segment.held]
        for segment in segments:
            if segment.held:
                segment.close()
        self._thread = self._begin()

    def _begin(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="store-delete", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        try:
            while self._segments:
                segment = self._segments[0]
                if obstacle := self._durable.settle(segment.end):
                    logger.warning("segment.not_deleted path=%s error=%s", segment.path, obstacle)
                    return
                self._unlink(segment.path)
                if segment in self._free:
                    segment.close()
                del self._segments[0]
                if self._segments:
                    self._hurry.wait(self._pause_s)
        except OSError as error:
            logger.warning("segment.not_deleted path=%s error=%s", self._segments[0].path, error)

    def _unlink(self, path: str) -> None:
        try:
            self._disk.unlink(path)
        except FileNotFoundError:
            return
        self._disk.sync_directory(os.path.dirname(path))

    def wait(self) -> None:
        """Wait for the thread to end."""
        self._thread.join()

    def finished(self) -> bool:
        """Return whether all files are deleted; failed ones are tried again."""
        if self._thread.is_alive():
            return False
        if self._segments:
            self._thread = self._begin()
        return not self._segments

    def stop(self) -> None:
        """Finish now; files that could not be deleted are unmapped, and found at the next start."""
        self._hurry.set()
        self.wait()
        for segment in self._segments:
            segment.close()
