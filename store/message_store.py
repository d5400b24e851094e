"""The store's face: one log, its consume queues, flush, recovery.

Synchronous; every call comes from one thread (the event loop of the broker) and none waits. Two
threads flush, one at a time allocates. `on_flushed` and `on_refused` may be called on a flush thread.

What a PUT_OK promises: the record is in the page cache and survives the process. It survives power
loss once `flushed_offset` has passed its end. Readers see a record after `dispatch` passed it; who
calls decides how far (`up_to`), for instance not beyond what replicas have confirmed.

After a failed flush or a failed queue write the store is read-only until it is opened again:
`writable` is false and `refusal` says why. Nothing is lost by that: the log is the truth, queues are
derived from it at the next start.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from .append import Appender, refused
from .checkpoint import Checkpoint, CheckpointFile
from .commit_log import CommitLog
from .config import StoreConfig
from .disk import Disk
from .dispatch import Dispatcher
from .errors import CorruptLogError, StoreClosedError
from .flush import LogFlusher, QueueFlusher
from .ownership import Ownership
from .queue_table import QueueTable
from .reading import READ_BYTES_DEFAULT, QueueReader
from .record import Message
from .recovery import Recovery, unit_matches
from .results import (
    AppendResult,
    Arrival,
    GetResult,
    GetStatus,
    PutStatus,
    RecoveryReport,
    StoredRecord,
)

__all__ = [
    "AppendResult",
    "Arrival",
    "GetResult",
    "GetStatus",
    "MessageStore",
    "PutStatus",
    "RecoveryReport",
    "StoredRecord",
]

logger = logging.getLogger(__name__)
_NOT_STARTED = "The store was not started."
_CLOSED = "The store is closed."


class MessageStore:
    """Open, start, use, close; each once."""

    def __init__(
        self, config: StoreConfig, wall_ms: Callable[[], int], disk: Disk | None = None
    ) -> None:
        self.config = config
        self.disk = disk or Disk()
        #: Called on the flush thread with the new flushed offset.
        self.on_flushed: Callable[[int], None] | None = None
        #: Called once when the store becomes read-only, by whichever thread found the reason.
        self.on_refused: Callable[[str], None] | None = None
        self.refusal = _NOT_STARTED
        self._broken = False
        self._opened = False
        self._ownership = Ownership(config.root, self.disk)
        self._log = CommitLog(
            str(config.commit_log_directory), config.mapped_file_size_commit_log, self.disk
        )
        self._queues = QueueTable(
            str(config.consume_queue_directory),
            config.consume_queue_file_bytes,
            config.open_queue_files_max,
            self.disk,
        )
        self._dispatcher = Dispatcher(self._log, self._queues)
        self._appender = Appender(
            self._log, self._queues, self._dispatcher, wall_ms, config.max_message_size
        )
        self._reader = QueueReader(self._log, self._queues, config.max_filter_message_size)
        self._checkpoint = Checkpoint()
        self._checkpoint_file = CheckpointFile(str(config.root / "checkpoint"), self.disk)
        self._log_flusher: LogFlusher | None = None
        self._queue_flusher: QueueFlusher | None = None

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> RecoveryReport:
        """Lock, load, recover; the store can then be read.

        Queues are restored to where readers had seen them; `dispatch` goes on from there. Raises
        StoreLockedError, UnsupportedLayoutError, CorruptLogError (nothing was changed) or OSError.
        """
        if self._opened:
            raise StoreClosedError("A store is opened once; make a new one.")
        self._ownership.acquire()
        self._opened = True
        try:
            report = self._recover()
        except BaseException:
            self._release()
            raise
        logger.info(
            "store.recovered clean=%s log_start=%d log_end=%d records_scanned=%d torn_bytes=%d",
            report.clean,
            report.log_start,
            report.log_end,
            report.records_scanned,
            report.torn_bytes,
        )
        if report.torn_bytes:
            logger.warning("log.cut offset=%d bytes=%d", report.log_end, report.torn_bytes)
        return report

    def _recover(self) -> RecoveryReport:
        clean = self._ownership.stopped_cleanly
        self._checkpoint = self._checkpoint_file.load()
        log = self._log
        unfinished = [path for path in (log.load(),) if path]
        unfinished += self._queues.load(
            lambda queue, n, offset, size: unit_matches(log, queue, n, offset, size), log.start
        )
        recovery = Recovery(
            log,
            self._queues,
            self._dispatcher,
            self._checkpoint,
            clean=clean,
            check_crc=self.config.check_crc_on_recover,
        )
        return recovery.run(unfinished)

    def start(self) -> None:
        """Write `abort`, start the flush threads; from now on the store can be written."""
        if not self._opened or self._log_flusher is not None:
            raise StoreClosedError("The store must be opened, and started once.")
        self.config.commit_log_directory.mkdir(parents=True, exist_ok=True)
        self._ownership.mark_running()
        self._log_flusher = LogFlusher(
            self._log, self.config, self._checkpoint, self._flushed, self._refuse
        )
        self._queue_flusher = QueueFlusher(
            queues=self._queues,
            dispatcher=self._dispatcher,
            log_flusher=self._log_flusher,
            checkpoint=self._checkpoint,
            file=self._checkpoint_file,
            config=self.config,
            disk=self.disk,
            on_failed=self._refuse,
        )
        self._log_flusher.start()
        self._queue_flusher.start()
        if not self._broken:
            self.refusal = ""

    def close(self) -> None:
        """Flush everything and leave a cleanly stopped directory; a second call does nothing.

        If the store became read-only, or records were not dispatched yet, `abort` stays: the next
        start then checks more.
        """
        if not self._opened or self.refusal == _CLOSED:
            return
        if self._log_flusher is not None and self._queue_flusher is not None:
            self._queue_flusher.stop()
            self._log_flusher.stop()
            if not self._broken:
                self._finish(self._queue_flusher)
        self.refusal = _CLOSED
        self._release()

    def _finish(self, flusher: QueueFlusher) -> None:
        try:
            self._log.drop_part()
            flusher.finish()
            self._log.discard_prepared()
            if self._dispatcher.offset == self._log.end:
                self._ownership.mark_stopped()
        except OSError as error:
            self._refuse(f"Stopping failed: {error}.")

    def _release(self) -> None:
        self._log.close()
        self._queues.close()
        self._checkpoint_file.close()
        self._ownership.release()

    # -- state --------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        return not self.refusal

    @property
    def log_start(self) -> int:
        return self._log.start

    @property
    def log_end(self) -> int:
        """End of the last whole record."""
        return self._log.end

    @property
    def received_end(self) -> int:
        """Where the next raw bytes must begin; beyond `log_end` while a record is incomplete."""
        return self._log.received_end

    @property
    def flushed_offset(self) -> int:
        """Everything before it survives power loss."""
        return self._log.end if self._log_flusher is None else self._log_flusher.flushed

    @property
    def dispatched_offset(self) -> int:
        return self._dispatcher.offset

    @property
    def log_flushes(self) -> int:
        """Flushes of the log that found something to do (the count behind group commit)."""
        return 0 if self._log_flusher is None else self._log_flusher.rounds

    @property
    def allocation_failure(self) -> str:
        """Why the last segment could not be made, or ""."""
        return self._appender.allocation_failure

    @property
    def on_new_segment(self) -> Callable[[int], list[Message]] | None:
        """Called in `append_many` before the first record of every segment, with the segment's
        offset; the records it returns go first."""
        return self._appender.on_new_segment

    @on_new_segment.setter
    def on_new_segment(self, hook: Callable[[int], list[Message]] | None) -> None:
        self._appender.on_new_segment = hook

    def _flushed(self, offset: int) -> None:
        if self.on_flushed is not None:
            self.on_flushed(offset)

    def _refuse(self, reason: str) -> None:
        if self._broken:
            return
        self._broken = True
        self.refusal = f"The store is read-only: {reason} Repair the disk and restart."
        logger.error("store.read_only reason=%s", reason)
        if self.on_refused is not None:
            self.on_refused(self.refusal)

    # -- writing ------------------------------------------------------------------------------

    def append_many(self, messages: Sequence[Message]) -> list[AppendResult]:
        """Append in order; one result a message. Never raises for a message, never waits.

        If the log cannot be written, the whole batch is refused although its first records may be
        there (an unknown outcome, not a loss), and the store is read-only.
        """
        if self.refusal:
            return [refused(PutStatus.SERVICE_NOT_AVAILABLE) for _ in messages]
        try:
            results = self._appender.append_many(messages)
        except OSError as error:
            self._refuse(f"Writing the commit log failed: {error}.")
            return [refused(PutStatus.SERVICE_NOT_AVAILABLE) for _ in messages]
        if self._log_flusher is not None:
            self._log_flusher.wake(len(messages))
        return results

    def append_raw(self, offset: int, data: bytes) -> int:
        """Append log bytes of a leader as they are; returns the end of the last whole record.

        `offset` must be `received_end`, or `log_end`: a part of a record that is there is then
        dropped (an empty log may begin at any segment's start). Raises OffsetOutOfRangeError,
        CorruptLogError (go on at `received_end`), DiskFullError (the same) or StoreClosedError
        when the store cannot be written.
        """
        if self.refusal:
            raise StoreClosedError(self.refusal)
        try:
            end = self._log.append_raw(offset, data)
        except OSError as error:
            self._refuse(f"Writing the commit log failed: {error}.")
            raise StoreClosedError(self.refusal) from error
        if self._log_flusher is not None:
            self._log_flusher.wake(1)
        return end

    def dispatch(self, up_to: int, max_records: int = 10_000) -> list[Arrival]:
        """Make records that end at or before `up_to` visible in their queues, in log order.

        Call again while `dispatched_offset` is below `up_to`. A failed write makes the store
        read-only and returns nothing.
        """
        if self._broken:
            return []
        try:
            return self._dispatcher.dispatch(up_to, max_records)
        except (OSError, ValueError, CorruptLogError) as error:
            self._refuse(f"Building the consume queues failed: {error}.")
            return []

    # -- reading ------------------------------------------------------------------------------

    def read_log(self, offset: int, max_bytes: int) -> bytes:
        """Raw bytes from `offset`: whole records where possible, never beyond `log_end`, never
        across a segment; b"" at `log_end`. Raises OffsetOutOfRangeError."""
        return self._log.read_raw(offset, max_bytes)

    def log_crc(self, start: int, end: int) -> int:
        """CRC-32 of the log bytes [start, end). Raises OffsetOutOfRangeError."""
        return self._log.crc(start, end)

    def record_at(self, physical_offset: int) -> bytes:
        """The whole record that begins there. Raises OffsetOutOfRangeError, RecordFormatError."""
        return self._log.record_at(physical_offset)

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int = READ_BYTES_DEFAULT,
        *,
        tag_codes: frozenset[int] | None = None,
    ) -> GetResult:
        """Up to `max_count` records from queue offset `offset` on, filtered by tags code.

        The first record comes even if it is larger than `max_bytes`.
        """
        return self._reader.get(topic, queue_id, offset, max_count, max_bytes, tag_codes=tag_codes)

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self._reader.min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """End of what readers see."""
        return self._reader.max_offset(topic, queue_id)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """The offset that the next append to this queue gets."""
        self._appender.assign_from_log()
        queue = self._queues.queues.get((topic, queue_id))
        return queue.next_offset if queue else 0

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False
    ) -> int:
        """First offset stored at or after the time; with `upper` the last at or before it."""
        return self._reader.offset_by_time(topic, queue_id, timestamp_ms, upper)

    def queues(self) -> Iterable[tuple[str, int]]:
        """(topic, queue id) of every queue that holds or held a record."""
        return [key for key, queue in self._queues.queues.items() if queue.next_offset]
