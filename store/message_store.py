"""The message store: a commit log with its consume queues and index, flush, recovery and retention.

Synchronous: one thread (the broker's event loop) makes all calls, and none waits for the disk. Two
threads flush, one allocates segments. The store calls `events` on the threads that events.py names.

Durability: PUT_OK means that the record is in the page cache and survives the end of the process.
It survives a power loss once `flushed_offset` has passed its end. Readers see a record after
`dispatch` has passed it; the caller limits dispatch (`up_to`), for instance to what replicas have
confirmed.

After a failed log flush or queue write the store is read-only until the next start: `writable` is
false and `refusal` holds the reason. No message is lost: the queues are rebuilt from the log.

Parts: `log` (commit log), `queue_table` (consume queues), `index` (index files), `queries`
(messages by key and id), `retention` (segment deletion, full disks), `blocks` (scrub and repair),
`meter` (counters), `writer` (appends, dispatch), `reader` (reads by queue), `removal`
(unused queues), `gate` (whether writes are accepted).
"""

import logging
from collections.abc import Callable, Iterable

from .append import Appender
from .blocks import BlockAccess
from .config.store_config import StoreConfig
from .digests import DIGESTS_FILE, StoreDigests
from .dispatch import Dispatcher
from .events import NO_EVENTS, StoreEvents
from .flush_threads import FlushThreads
from .format.disk import Disk, shortage
from .format.errors import (
    StoreClosedError,
    UnsupportedLayoutError,
)
from .format.results import (
    GetResult,
    RecoveryReport,
)
from .holdings import HoldingsFile
from .index.service import IndexService
from .log.commit_log import CommitLog
from .log.room import check_room
from .log.write_gate import WriteGate
from .native_parts import NativeParts
from .query import MessageQueries
from .queue.loading import load_queues
from .queue.removal import QueueRemoval
from .queue.table import QueueTable
from .reading import QueueReader
from .recovery import other_engines
from .retention.service import RetentionService
from .snapshot import store_stats
from .stats import Meter, StoreStats
from .store_lock import StoreLock
from .writing import StoreWriter

logger = logging.getLogger(__name__)


class MessageStore:
    """One store directory; `open`, `start` and `close` are each called once."""

    def __init__(
        self,
        config: StoreConfig,
        wall_ms: Callable[[], int],
        disk: Disk | None = None,
        native: NativeParts | None = None,
        events: StoreEvents = NO_EVENTS,
    ) -> None:
        native = native or NativeParts()
        self.config = config
        self.disk = disk or Disk()
        #: What `open` found; None before.
        self.recovery_report: RecoveryReport | None = None
        self._close_listeners: list[Callable[[], None]] = []
        self.meter = Meter()
        self.log = CommitLog.of(config, self.disk, native.whole_records, events)
        self.queue_table = QueueTable.of(config, self.disk)
        #: Whether writes are accepted; parts of the broker may pause them.
        self.gate = WriteGate(events)
        self._opened = False
        self._lock = StoreLock(config.root, self.disk)
        self._dispatcher = Dispatcher(self.log, self.queue_table, native.queue_units)
        self.reader = QueueReader(
            self.log,
            self.queue_table,
            config,
            native=native.records,
            events=events,
            wall_ms=wall_ms,
        )
        self._digests = StoreDigests(config.root / "config" / DIGESTS_FILE, self.disk)
        #: Removal of unused queues.
        self.removal = QueueRemoval(self.queue_table, self.log, self._digests)
        self._holdings = HoldingsFile(config, self.disk)
        self._threads = self._flush_threads(events)
        self.index = IndexService(
            config,
            self.log,
            self._dispatcher,
            disk=self.disk,
            wall_ms=wall_ms,
            gate=self.gate,
            digests=self._digests,
            native=native.index_entries,
        )
        #: Appends and dispatch.
        self.writer = self._writer(wall_ms, events)
        self.queries = MessageQueries(
            config, self.log, self._dispatcher, index=self.index, reader=self.reader
        )
        self.reader.check.find_entries = self.index.indexed
        self.blocks = BlockAccess(self.log, self.queue_table, self.reader)
        self.retention = RetentionService(
            config,
            self.log,
            (self.queue_table, self.index),
            disk=self.disk,
            gate=self.gate,
            durable=self._threads,
        )

    def _flush_threads(self, events: StoreEvents) -> FlushThreads:
        return FlushThreads(
            self.config,
            self.log,
            self.queue_table,
            self._dispatcher,
            gate=self.gate,
            digests=self._digests,
            holdings=self._holdings,
            disk=self.disk,
            events=events,
        )

    def _writer(self, wall_ms: Callable[[], int], events: StoreEvents) -> StoreWriter:
        config = self.config
        appender = Appender(
            self.log,
            self.queue_table,
            self._dispatcher,
            wall_ms,
            config.max_message_size,
            seal=config.enabled_append_prop_crc,
            lmq_max=config.lmq_max,
            events=events,
        )
        return StoreWriter(
            config,
            self.log,
            self.queue_table,
            appender,
            self._dispatcher,
            index=self.index,
            gate=self.gate,
            threads=self._threads,
            meter=self.meter,
        )

    # -- open, start, close -------------------------------------------------------------------

    def open(self) -> RecoveryReport:
        """Lock, load and recover the directory; reads are possible afterwards.

        The queues hold what readers had seen before the stop; `dispatch` continues from there.
        Raises StoreLockedError, UnsupportedLayoutError, AbsentPartError, CorruptLogError (nothing
        was changed) or OSError.
        """
        if self._opened:
            raise StoreClosedError("The store was opened before; create a new MessageStore.")
        if other := other_engines.found(self.config.root):
            raise UnsupportedLayoutError(other)
        try:
            self._lock.acquire()
            self._opened = True
            self.recovery_report = self._recover()
        except (IsADirectoryError, NotADirectoryError) as error:
            self._release()
            raise UnsupportedLayoutError(
                f"{error.filename} is not part of a store ({error.strerror}). Move it away."
            ) from error
        except BaseException:
            self._release()
            raise
        return self.recovery_report

    def _recover(self) -> RecoveryReport:
        # Imported here because it loads NumPy, which only a store that is opened needs.
        from .recovery.recovery import Recovery, unit_matches

        clean = self._lock.stopped_cleanly
        self._threads.load()
        log = self.log
        unfinished = [path for path in (log.load(),) if path]
        unfinished += load_queues(
            self.queue_table,
            lambda queue, n, offset, size: unit_matches(log, queue, n, offset, size),
            log.start,
            clean=clean,
        )
        recovery = Recovery(
            log,
            self.queue_table,
            self._dispatcher,
            self._threads.checkpoint,
            config=self.config,
            disk=self.disk,
            clean=clean,
            digests=self._digests,
            holdings=self._holdings,
        )
        recovery.check_present()
        check_room(self.disk, log)
        self.index.load()
        self.retention.watermark.load()
        report = recovery.run(unfinished)
        self.index.recover(clean, self._threads.checkpoint)
        return report

    def start(self) -> None:
        """Write `abort` and start the flush threads; appends are possible afterwards."""
        if not self._opened or self._threads.started:
            raise StoreClosedError("The store must be opened first, and started only once.")
        self.log.begin_writing()
        self._lock.mark_running()
        self._threads.prepare()
        self._threads.create(self.index)
        self.index.start()
        self.disk.keep_spares()
        self._threads.start()
        self.retention.watch_disk()
        self.gate.start()

    def close(self) -> None:
        """Flush everything and mark the directory as stopped cleanly; a second call does nothing.

        If the store is read-only, `abort` stays and the next start checks more. Records that are
        not dispatched (not confirmed by the group yet) are dispatched after the next start.
        """
        if not self._opened or self.gate.closed:
            return
        self.retention.close()
        if self._threads.started:
            self._threads.stop()
            if not self.gate.broken:
                self._finish()
        self.gate.close()
        self._release()
        for listener in self._close_listeners:
            listener()

    def add_close_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` after the store was closed; `flushed_offset` is final then."""
        self._close_listeners.append(listener)

    def _finish(self) -> None:
        try:
            self.log.drop_part()
            self.index.finish()
            self._threads.finish()
            self._lock.mark_stopped(is_dispatched=self._dispatcher.offset == self.log.end)
        except OSError as error:
            # `abort` stays: the next start rebuilds from the log what could not be written.
            if shortage(error) is not None:
                logger.warning("store.not_finished reason=%s", error)
            else:
                self.gate.refuse(f"Stopping failed: {error}.")

    def _release(self) -> None:
        self.log.close()
        self.queue_table.close()
        self.index.close()
        self._threads.close()
        self._lock.release()
        self.disk.drop_spares()

    # -- append -------------------------------------------------------------------------------

    def append_raw(self, offset: int, data: bytes) -> int:
        """Append bytes of the leader's log (`StoreWriter.append_raw`)."""
        return self.writer.append_raw(offset, data)

    def flush_soon(self) -> None:
        """Request a flush up to the current `log_end`, without the usual pause."""
        self._threads.hasten()

    # -- read the log -------------------------------------------------------------------------

    def read_log(self, offset: int, max_bytes: int) -> bytes:
        """Return raw bytes from `offset`: whole records where possible, never beyond `log_end`,
        never across a segment; b"" at `log_end`. Raises OffsetOutOfRangeError."""
        return self.log.read_raw(offset, max_bytes)

    def log_crc(self, start: int, end: int) -> int:
        """Return the CRC-32 of the log bytes [start, end). Raises OffsetOutOfRangeError."""
        return self.log.crc(start, end)

    def record_at(self, physical_offset: int) -> bytes:
        """Return the record that begins at the offset. Raises OffsetOutOfRangeError,
        RecordFormatError."""
        return self.log.record_at(physical_offset)

    # -- read queues --------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int | None = None,
        *,
        tag_codes: frozenset[int] | None = None,
    ) -> GetResult:
        """Read up to `max_count` records from queue offset `offset` on, filtered by tags code.

        The first record is returned even if it is larger than `max_bytes`. Without `max_bytes`
        RocketMQ's limits apply (`maxTransfer...`). A unit without a matching record is skipped
        (reading.py lists all statuses). Raises OSError when the queue's file cannot be read.
        """
        result = self.reader.get(topic, queue_id, offset, max_count, max_bytes, tag_codes=tag_codes)
        self.meter.get(len(result.records), result.size)
        return result

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self.reader.min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the end of the visible units."""
        return self.reader.max_offset(topic, queue_id)

    # -- queues -------------------------------------------------------------------------------

    def queues(self) -> Iterable[tuple[str, int]]:
        """Return (topic, queue id) of every queue that holds or held a record."""
        return [key for key, queue in self.queue_table.queues.items() if queue.next_offset]

    @property
    def id(self) -> str:
        """A random name of this store; "" before the first start of a new one."""
        return self._holdings.id

    # -- positions ----------------------------------------------------------------------------

    @property
    def log_start(self) -> int:
        return self.log.start

    @property
    def log_end(self) -> int:
        """End of the last whole record that can be read."""
        return self.log.readable_end

    @property
    def appended_end(self) -> int:
        """End of the last whole record; beyond `log_end` only with the transient pool."""
        return self.log.end

    @property
    def received_end(self) -> int:
        """Where the next raw bytes must begin; beyond `log_end` while a record is incomplete."""
        return self.log.received_end

    @property
    def flushed_offset(self) -> int:
        """Everything before it survives power loss."""
        return self._threads.flushed

    @property
    def dispatched_offset(self) -> int:
        return self._dispatcher.offset

    # -- state --------------------------------------------------------------------------------

    @property
    def refusal(self) -> str:
        """Why the store refuses writes, or ""."""
        return self.gate.refusal

    @property
    def writable(self) -> bool:
        return not self.gate.refusal

    @property
    def paused(self) -> bool:
        """Whether writes are refused for lack of disk space; ends when space is free again."""
        return self.gate.paused

    @property
    def no_room(self) -> bool:
        """Whether the next message finds no disk space, as of the last look at the disk, or of the
        last try to create a segment."""
        return self.gate.paused or self.log.lacks_space or not self.retention.has_room

    def stats(self) -> StoreStats:
        """Return counters, positions and disk state of this moment."""
        return store_stats(self)
