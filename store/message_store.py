"""The store's face: one log, its consume queues, flush, recovery.

Synchronous; every call comes from one thread (the event loop of the broker) and none waits. Two
threads flush, one at a time allocates. `on_flushed` and `on_refused` may be called on a flush thread.

What a PUT_OK promises: the record is in the page cache and survives the process. It survives power
loss once `flushed_offset` has passed its end. Readers see a record after `dispatch` passed it; who
calls decides how far (`up_to`), for instance not beyond what replicas have confirmed.

Reading stands in `read_api.py`, appending in `write_api.py`, checking and mending in `block_api.py`. After a failed flush or a failed queue
write the store is read-only until it is opened again: `writable` is false and `refusal` says why.
Nothing is lost by that: the log is the truth, queues are derived from it at the next start.
"""

import logging
from collections.abc import Callable

from .append import Appender
from .block_api import BlockApi
from .config.store_config import StoreConfig
from .dispatch import Dispatcher
from .flush import LogFlusher, QueueFlusher
from .format.checkpoint import Checkpoint, CheckpointFile
from .format.disk import NO_SPACE, Disk
from .format.errors import CorruptLogError, StoreClosedError, UnsupportedLayoutError
from .format.results import (
    AppendResult,
    Arrival,
    GetResult,
    GetStatus,
    PutStatus,
    RecoveryReport,
    StoredRecord,
)
from .index.indexing import Indexing
from .log.commit_log import CommitLog
from .log.transient_pool import LogCommitter
from .log.write_gate import WriteGate
from .query_api import QueryApi
from .queue.table import QueueTable
from .read_api import ReadApi
from .reading import QueueReader
from .retention.service import RetentionService
from .state_api import StateApi
from .stats import Meter
from .store_lock import StoreLock
from .write_api import WriteApi

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
#: The cause of a pause: what is dispatched finds no room.
_QUEUES = "dispatch"


class MessageStore(ReadApi, QueryApi, WriteApi, StateApi, BlockApi):
    """Open, start, use, close; each once."""

    def __init__(
        self, config: StoreConfig, wall_ms: Callable[[], int], disk: Disk | None = None
    ) -> None:
        self.config = config
        self.disk = disk or Disk()
        #: Called on the flush thread with the new flushed offset.
        self.on_flushed: Callable[[int], None] | None = None
        #: With the transient pool: called with the new `log_end` by whichever thread committed.
        self.on_committed: Callable[[int], None] | None = None
        #: Called when the store is closed; `flushed_offset` says how much of the log is on the disk.
        self.on_closed: list[Callable[[], None]] = []
        self.meter = Meter()
        self._gate = WriteGate()
        self._opened = False
        self._sync = config.sync_flush
        self._ownership = StoreLock(config.root, self.disk)
        self._log = CommitLog.of(config, self.disk)
        self._queues = QueueTable(
            str(config.consume_queue_directory),
            config.consume_queue_file_bytes,
            config.open_queue_files_max,
            self.disk,
            ext_file_bytes=config.mapped_file_size_consume_queue_ext,
            write_ext=config.enable_consume_queue_ext,
        )
        self._dispatcher = Dispatcher(self._log, self._queues)
        self._appender = Appender(
            self._log,
            self._queues,
            self._dispatcher,
            wall_ms,
            config.max_message_size,
            seal=config.enabled_append_prop_crc,
            light_max=config.light_queues,
        )
        self._reader = QueueReader(self._log, self._queues, config)
        self._checkpoint = Checkpoint()
        self._checkpoint_file = CheckpointFile(str(config.root / "checkpoint"), self.disk)
        self._committer: LogCommitter | None = None
        self._log_flusher: LogFlusher | None = None
        self._queue_flusher: QueueFlusher | None = None
        self._indexing = Indexing(
            config, self._log, self._dispatcher, disk=self.disk, wall_ms=wall_ms, gate=self._gate
        )
        #: Decides which segments go, deletes them, and pauses the store on a full disk.
        self.retention = RetentionService(
            config,
            self._log,
            (self._queues, self._indexing),
            disk=self.disk,
            gate=self._gate,
            safe_end=self._safe_end,
        )

    # -- life ---------------------------------------------------------------------------------

    def open(self) -> RecoveryReport:
        """Lock, load, recover; the store can then be read.

        Queues are restored to where readers had seen them; `dispatch` goes on from there. Raises
        StoreLockedError, UnsupportedLayoutError, CorruptLogError (nothing was changed) or OSError.
        """
        if self._opened:
            raise StoreClosedError("A store is opened once; make a new one.")
        try:
            self._ownership.acquire()
            self._opened = True
            report = self._recover()
        except (IsADirectoryError, NotADirectoryError) as error:
            self._release()
            raise UnsupportedLayoutError(
                f"{error.filename} is no part of a store ({error.strerror}). Move it away."
            ) from error
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
        # NumPy comes with it: only who opens a store waits for that.
        from .recovery.recovery import Recovery, unit_matches

        clean = self._ownership.stopped_cleanly
        self._checkpoint = self._checkpoint_file.load()
        log = self._log
        unfinished = [path for path in (log.load(),) if path]
        unfinished += self._queues.load(
            lambda queue, n, offset, size: unit_matches(log, queue, n, offset, size),
            log.start,
            clean=clean,
        )
        recovery = Recovery(
            log,
            self._queues,
            self._dispatcher,
            self._checkpoint,
            config=self.config,
            disk=self.disk,
            clean=clean,
        )
        self._indexing.load()
        self.retention.watermark.load()
        report = recovery.run(unfinished)
        self._indexing.recover(clean, self._checkpoint)
        return report

    def start(self) -> None:
        """Write `abort`, start the flush threads; from now on the store can be written."""
        if not self._opened or self._log_flusher is not None:
            raise StoreClosedError("The store must be opened, and started once.")
        self._log.begin_writing()
        self._ownership.mark_running()
        self._note_flushed()
        if self._log.pool is not None:
            self._log.on_committed = self._committed
            self._committer = LogCommitter.of(self._log, self.config, self._gate.refuse)
            self._committer.start()
        self._log_flusher = LogFlusher(
            self._log, self.config, self._checkpoint, self._flushed, self._gate.refuse
        )
        self._queue_flusher = QueueFlusher(
            queues=self._queues,
            dispatcher=self._dispatcher,
            log_flusher=self._log_flusher,
            checkpoint=self._checkpoint,
            file=self._checkpoint_file,
            config=self.config,
            gate=self._gate,
            indexing=self._indexing,
        )
        self._indexing.start()
        self._log_flusher.start()
        self._queue_flusher.start()
        self.retention.watch_disk()
        self._gate.start()

    def _note_flushed(self) -> None:
        """All that recovery kept is on the disk: what comes behind it, and only that, a power loss may
        take. On a full disk that stays unsaid; the next start then refuses to cut anything."""
        self._checkpoint.flushed_end = self._log.end
        try:
            self._checkpoint_file.save(self._checkpoint)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise

    def close(self) -> None:
        """Flush everything and leave a cleanly stopped directory; a second call does nothing.

        If the store became read-only, or records were not dispatched yet, `abort` stays: the next
        start then checks more.
        """
        if not self._opened or self._gate.closed:
            return
        self.retention.close()
        if self._log_flusher is not None and self._queue_flusher is not None:
            if self._committer is not None:
                self._committer.stop()
            self._queue_flusher.stop()
            self._log_flusher.stop()
            if not self._gate.broken:
                self._finish(self._queue_flusher)
        self._gate.close()
        self._release()
        for told in self.on_closed:
            told()

    def _finish(self, flusher: QueueFlusher) -> None:
        try:
            self._log.drop_part()
            self._indexing.finish()
            flusher.finish()
            self._log.discard_prepared()
            if self._dispatcher.offset == self._log.end:
                self._ownership.mark_stopped()
        except OSError as error:
            # `abort` stays: the next start makes from the log what could not be written.
            if error.errno in NO_SPACE:
                logger.warning("store.not_finished reason=%s", error)
            else:
                self._gate.refuse(f"Stopping failed: {error}.")

    def _release(self) -> None:
        self._log.close()
        self._queues.close()
        self._indexing.close()
        self._checkpoint_file.close()
        self._ownership.release()

    # -- state --------------------------------------------------------------------------------

    def _safe_end(self) -> int:
        """Retention may delete what lies before it: it is flushed, and readers have seen it. (The
        index need not know it: nobody asks for what is gone.)"""
        return min(self.flushed_offset, self._dispatcher.offset)

    def _flushed(self, offset: int) -> None:
        if self.on_flushed is not None:
            self.on_flushed(offset)

    def _committed(self, offset: int) -> None:
        if self.on_committed is not None:
            self.on_committed(offset)

    # -- writing ------------------------------------------------------------------------------

    def dispatch(self, up_to: int, max_records: int = 10_000) -> list[Arrival]:
        """Make records that end at or before `up_to` visible in their queues, in log order.

        Call again while `dispatched_offset` is below `up_to`. A failed write makes the store
        read-only and returns nothing; a full disk pauses it, and a later call goes on.
        """
        if self._gate.broken:
            return []
        try:
            arrivals = self._dispatcher.dispatch(up_to, max_records)
        except (OSError, ValueError, CorruptLogError) as error:
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                self._dispatcher.drop_hints()
                self._gate.pause(_QUEUES, f"The disk is full: the queues cannot grow ({error}).")
            else:
                self._gate.refuse(f"Building the consume queues failed: {error}.")
            return []
        if self._gate.paused:
            self._gate.resume(_QUEUES)
        self._indexing.dispatched(len(arrivals))
        return arrivals
