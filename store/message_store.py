"""The message store: a commit log with its consume queues and index, flush, recovery and retention.

Synchronous: one thread (the broker's event loop) makes all calls, and none waits for the disk. Two
threads flush, one allocates segments; `events` is told on the thread that events.py states.

Durability: PUT_OK means that the record is in the page cache and survives the end of the process.
It survives a power loss once `flushed_offset` has passed its end. Readers see a record after
`dispatch` has passed it; the caller limits dispatch (`up_to`), for instance to what replicas have
confirmed.

After a failed log flush or queue write the store is read-only until the next start: `writable` is
false and `refusal` holds the reason. No message is lost: the queues are rebuilt from the log.

Parts: `log` (commit log), `queue_table` (consume queues), `index` (index files), `queries`
(messages by key and id), `retention` (segment deletion, full disks), `blocks` (scrub and repair),
`meter` (counters).
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from threading import Event
from typing import Final

from .append import Appender, Encoded, Encoder, refused, unflushed
from .blocks import BlockAccess
from .config.store_config import StoreConfig
from .digests import DIGESTS_FILE, StoreDigests, sum_of_ends
from .dispatch import Dispatched, Dispatcher
from .events import NO_EVENTS, StoreEvents
from .flush import LogFlusher, QueueFlusher
from .format.checkpoint import Checkpoint, CheckpointFile
from .format.disk import NO_DESCRIPTORS, Disk, shortage
from .format.errors import (
    CorruptLogError,
    DiskFullError,
    StoreClosedError,
    UnsupportedLayoutError,
)
from .format.properties import waits
from .format.record import Message
from .format.results import (
    AppendResult,
    Arrival,
    ColdUnit,
    GetResult,
    GetStatus,
    PutStatus,
    RecoveryReport,
    StoredRecord,
)
from .group_commit import FlushRequest
from .holdings import HoldingsFile
from .index.service import IndexService
from .log.commit_log import CommitLog
from .log.room import holds_next_segment, lack_of_room
from .log.transient_pool import LogCommitter
from .log.write_gate import WriteGate, suppress_no_space
from .native_parts import NativeParts
from .query import MessageQueries
from .queue.table import QueueTable
from .reading import QueueReader
from .recovery import other_engines
from .retention.service import RetentionService
from .stats import Meter, StoreStats
from .store_lock import StoreLock

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
#: Pause cause: dispatch found no free disk space.
_DISPATCH: Final = "dispatch"
_LAST_MS: Final = (1 << 63) - 1


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
        self._events = events
        self.config = config
        self.disk = disk or Disk()
        #: What `open` found; None before.
        self.recovery_report: RecoveryReport | None = None
        self._close_listeners: list[Callable[[], None]] = []
        self.meter = Meter()
        self.log = CommitLog.of(config, self.disk, native.whole_records, events)
        self.queue_table = QueueTable.of(config, self.disk)
        self._gate = WriteGate(events)
        self._opened = False
        self._sync = config.sync_flush
        self._wall_ms = wall_ms
        self._lock = StoreLock(config.root, self.disk)
        self._dispatcher = Dispatcher(self.log, self.queue_table, native.queue_units)
        self._appender = Appender(
            self.log,
            self.queue_table,
            self._dispatcher,
            wall_ms,
            config.max_message_size,
            seal=config.enabled_append_prop_crc,
            lmq_max=config.lmq_max,
            events=events,
        )
        self._reader = QueueReader(
            self.log, self.queue_table, config, native=native.records, events=events
        )
        self._checkpoint = Checkpoint()
        self._checkpoint_file = CheckpointFile(str(config.root / "checkpoint"), self.disk)
        self._committer: LogCommitter | None = None
        self._log_flusher: LogFlusher | None = None
        self._queue_flusher: QueueFlusher | None = None
        self._digests = StoreDigests(config.root / "config" / DIGESTS_FILE, self.disk)
        self._holdings = HoldingsFile(config, self.disk)
        self.index = IndexService(
            config,
            self.log,
            self._dispatcher,
            disk=self.disk,
            wall_ms=wall_ms,
            gate=self._gate,
            digests=self._digests,
            native=native.index_entries,
        )
        self.queries = MessageQueries(
            config, self.log, self._dispatcher, index=self.index, reader=self._reader
        )
        self._reader.check.find_entries = self.index.indexed
        self.blocks = BlockAccess(self.log, self.queue_table, self._reader)
        self.retention = RetentionService(
            config,
            self.log,
            (self.queue_table, self.index),
            disk=self.disk,
            gate=self._gate,
            safe_end=self._safe_end,
            settle=self._settle,
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
            report = self.recovery_report = self._recover()
        except (IsADirectoryError, NotADirectoryError) as error:
            self._release()
            raise UnsupportedLayoutError(
                f"{error.filename} is not part of a store ({error.strerror}). Move it away."
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
        # Imported here because it loads NumPy, which only a store that is opened needs.
        from .recovery.recovery import Recovery, unit_matches

        clean = self._lock.stopped_cleanly
        self._checkpoint = self._checkpoint_file.load()
        self._holdings.load()
        log = self.log
        unfinished = [path for path in (log.load(),) if path]
        unfinished += self.queue_table.load(
            lambda queue, n, offset, size: unit_matches(log, queue, n, offset, size),
            log.start,
            clean=clean,
        )
        recovery = Recovery(
            log,
            self.queue_table,
            self._dispatcher,
            self._checkpoint,
            config=self.config,
            disk=self.disk,
            clean=clean,
            digests=self._digests,
            holdings=self._holdings,
        )
        recovery.check_present()
        self._check_room()
        self.index.load()
        self.retention.watermark.load()
        report = recovery.run(unfinished)
        self.index.recover(clean, self._checkpoint)
        return report

    def _check_room(self) -> None:
        """Raise DiskFullError when the log cannot get its first segment, or fill its last one."""
        log, size = self.log, self.config.mapped_file_size_commit_log
        folders = log.writable_directories
        if lack := lack_of_room(self.disk, folders, size, log.tail.path if log.tail else ""):
            raise DiskFullError(lack)
        if not holds_next_segment(self.disk, folders, size):
            logger.warning(
                "store.small_disk segment_bytes=%d: the disk of %s holds fewer than two segments, "
                "and the last one is never deleted. Put the directory on a larger disk.",
                *(size, folders[0]),
            )

    def start(self) -> None:
        """Write `abort` and start the flush threads; appends are possible afterwards."""
        if not self._opened or self._log_flusher is not None:
            raise StoreClosedError("The store must be opened first, and started only once.")
        self.log.begin_writing()
        self._lock.mark_running()
        self._save_flushed_end()
        with suppress_no_space():
            self._holdings.save(self.log, self.log.end)
        if self.log.pool is not None:
            self._committer = LogCommitter.of(self.log, self.config, self._gate.refuse)
            self._committer.start()
        self._log_flusher = LogFlusher(
            self.log, self.config, self._checkpoint, self._flushed, self._gate.refuse
        )
        self._queue_flusher = QueueFlusher(
            queues=self.queue_table,
            dispatcher=self._dispatcher,
            log_flusher=self._log_flusher,
            checkpoint=self._checkpoint,
            file=self._checkpoint_file,
            config=self.config,
            gate=self._gate,
            index=self.index,
            digests=self._digests,
            note_holdings=lambda flushed: self._holdings.save(self.log, flushed),
        )
        self.index.start()
        self.disk.keep_spares()
        self._log_flusher.start()
        self._queue_flusher.start()
        self.retention.watch_disk()
        self._gate.start()

    def _save_flushed_end(self) -> None:
        """Save the log end in the checkpoint: recovery has flushed the whole log. Only what is
        appended later can be lost in a power loss. A full disk skips this; the next start then
        refuses to cut the log."""
        self._checkpoint.flushed_end = self.log.end
        try:
            self._checkpoint_file.save(self._checkpoint)
        except OSError as error:
            if shortage(error) is None:
                raise

    def close(self) -> None:
        """Flush everything and mark the directory as stopped cleanly; a second call does nothing.

        If the store is read-only, `abort` stays and the next start checks more. Records that are
        not dispatched (not confirmed by the group yet) are dispatched after the next start.
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
        for listener in self._close_listeners:
            listener()

    def add_close_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` after the store was closed; `flushed_offset` is final then."""
        self._close_listeners.append(listener)

    def _finish(self, flusher: QueueFlusher) -> None:
        try:
            self.log.drop_part()
            self.index.finish()
            flusher.finish()
            self.log.discard_prepared()
            self._digests.note_queues(self.log.end, sum_of_ends(self.queue_table.ends()))
            self._digests.note_ends(self.queue_table.ends())
            with suppress_no_space():
                self._digests.save()
                self._holdings.finish(self.log, self.flushed_offset)
            self._lock.mark_stopped(is_dispatched=self._dispatcher.offset == self.log.end)
        except OSError as error:
            # `abort` stays: the next start rebuilds from the log what could not be written.
            if shortage(error) is not None:
                logger.warning("store.not_finished reason=%s", error)
            else:
                self._gate.refuse(f"Stopping failed: {error}.")

    def _release(self) -> None:
        self.log.close()
        self.queue_table.close()
        self.index.close()
        self._checkpoint_file.close()
        self._lock.release()
        self.disk.drop_spares()

    def _safe_end(self) -> int:
        """Return the offset before which retention may delete: flushed and dispatched. (The index
        may lag behind: it is not queried for deleted records.)"""
        return min(self.flushed_offset, self._dispatcher.offset)

    def _settle(self, end: int) -> str:
        """Make durable what else exists of the records before `end`, for their deletion; return why
        that is not possible, or "".

        That is the units in their queues, and the log as it is now: records that were made from
        them, such as a delivered timer or the metadata's snapshot. Called by retention's thread.
        """
        log, queues = self._log_flusher, self._queue_flusher
        if log is None or queues is None:
            return "the store is not started"
        if not log.wait(self.log.end):
            return self._gate.refusal or "the log cannot be flushed"
        try:
            queues.settle(end)
            self._holdings.raise_start(self.log, end)
        except OSError as error:
            if shortage(error) is None:
                self._gate.refuse(f"Flushing the queues failed: {error}.")
            return str(error)
        return ""

    def _flushed(self, offset: int) -> None:
        if self._holdings.needs(self.log, offset):  # before an answer relies on the segment
            try:
                self._holdings.save(self.log, offset)
            except OSError as error:
                if shortage(error) is None:
                    self._gate.refuse(f"The record of what the store has failed: {error}.")
                # Otherwise the next flush tries again.
        self._events.flushed(offset)

    # -- append -------------------------------------------------------------------------------

    def append_many(self, messages: Sequence[Message]) -> list[AppendResult]:
        """Append in order; one result per message. Never raises for a message, never waits.

        If the log cannot be written, every status is UNKNOWN_ERROR (the first records may be
        stored) and the store is read-only.
        """
        return self._append(self._appender.append_many, messages)

    @property
    def takes_encoded(self) -> bool:
        """Return whether `append_encoded` makes the same records as `append_many`: not if records
        end in a checksum or their units get an extension."""
        return not self.config.enabled_append_prop_crc and not self.queue_table.write_ext

    def append_encoded(self, encode: Encoder) -> Encoded | None:
        """Append the records that `encode` returns, for queues that `next_number` knows.

        None if the store does not accept messages or the log cannot be written; `append_many` then
        gives the reason for each message. Never waits. The caller, which needs the duration too,
        counts the append: `meter.put`.
        """
        if self._gate.refusal:
            return None
        try:
            encoded = self._appender.append_encoded(encode)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                self._gate.refuse(f"Writing the commit log failed: {error}.")
            return None
        if encoded.records and self._sync and self._log_flusher is not None:
            self._log_flusher.request(FlushRequest(self.log.end, encoded.records))
        return encoded

    def next_number(self, topic: str, queue_id: int) -> int | None:
        """Return the queue offset of the next encoded record; None for a queue that `append_many`
        must create."""
        queue = self.queue_table.queues.get((topic, queue_id))
        return None if queue is None else queue.next_offset

    def append_batch(self, messages: Sequence[Message]) -> list[AppendResult]:
        """Append the batch of a remoting client: all messages, adjacent in one queue and one
        segment with one store time, or none, with one status for all. The messages have one topic
        and queue and are neither transactional nor delayed (docs/formats/store-format.md, section
        2.10)."""
        return self._append(self._appender.append_batch, messages)

    def append_and_wait(self, messages: Sequence[Message]) -> list[AppendResult]:
        """`append_many` for a caller without an event loop: in SYNC_FLUSH it waits for the flush,
        up to `syncFlushTimeout`, unless all messages have WAIT=false. After the timeout the status
        is FLUSH_DISK_TIMEOUT: stored, durability unknown."""
        results = self._append(self._appender.append_many, messages)
        if self._sync and any(waits(message.properties) for message in messages):
            return self._wait_flushed(results)
        return results

    def _wait_flushed(self, results: list[AppendResult]) -> list[AppendResult]:
        end = max((r.end for r in results if r.status is PutStatus.PUT_OK), default=0)
        flusher = self._log_flusher
        if flusher is None or flusher.flushed >= end:
            return results
        settled = Event()
        flusher.request(FlushRequest(end, 0, settled))
        settled.wait(self.config.sync_flush_timeout / 1000)
        safe = flusher.flushed
        return [unflushed(r) if r.end > safe else r for r in results]

    def _append(
        self,
        append: Callable[[Sequence[Message]], list[AppendResult]],
        messages: Sequence[Message],
    ) -> list[AppendResult]:
        if self._gate.refusal:
            return [refused(PutStatus.SERVICE_NOT_AVAILABLE) for _ in messages]
        meter, log, appender = self.meter, self.log, self._appender
        clock, begin, refusals = meter.steady_ns, log.end, appender.refusals
        begin_ns = clock() if clock is not None else 0
        try:
            results = append(messages)
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:  # nothing was written
                return [refused(PutStatus.CREATE_MAPPED_FILE_FAILED) for _ in messages]
            self._gate.refuse(f"Writing the commit log failed: {error}.")
            return [refused(PutStatus.UNKNOWN_ERROR) for _ in messages]
        took_ns = clock() - begin_ns if clock is not None else 0
        meter.put(len(messages), appender.refusals - refusals, log.end - begin, took_ns)
        if self._sync and self._log_flusher is not None:
            self._log_flusher.request(FlushRequest(log.end, len(messages)))
        return results

    def append_raw(self, offset: int, data: bytes) -> int:
        """Append log bytes of a leader unchanged; returns the end of the last whole record.

        `offset` must be `received_end`, or `log_end`: an incomplete record behind it is then
        dropped (an empty log may begin at any segment start). Raises OffsetOutOfRangeError,
        CorruptLogError or DiskFullError (continue at `received_end`), or StoreClosedError when the
        store is read-only.
        """
        if self._gate.refusal:
            raise (DiskFullError if self._gate.paused else StoreClosedError)(self._gate.refusal)
        try:
            end = self.log.append_raw(offset, data)
        except OSError as error:
            lack = shortage(error)
            if lack is not None:  # nothing was written; the leader sends it again
                raise DiskFullError(f"{lack.what} for the leader's bytes: {error}.") from error
            self._gate.refuse(f"Writing the commit log failed: {error}.")
            raise StoreClosedError(self._gate.refusal) from error
        if self._sync and self._log_flusher is not None:
            self._log_flusher.request(FlushRequest(end, 1))
        return end

    def flush_soon(self) -> None:
        """Request a flush up to the current `log_end`, without the usual pause."""
        if self._log_flusher is not None:
            self._log_flusher.hasten()

    def commit(self) -> None:
        """With the transient pool: move `log_end` to `appended_end`. A failed write makes the
        store read-only."""
        try:
            self.log.commit()
        except OSError as error:
            self._gate.refuse(f"Writing the commit log failed: {error}.")

    def dispatch(self, up_to: int, max_records: int = 10_000) -> Dispatched:
        """Make records that end at or before `up_to` visible in their queues, in log order.

        Call again while `dispatched_offset` is below `up_to`. A failed write makes the store
        read-only; without disk space or descriptors it pauses, and a later call continues. After a
        failure, returns the records of the steps before the failed one; the call that continues
        returns those of the failed step.
        """
        found = Dispatched()
        if self._gate.broken:
            return found
        try:
            self._dispatcher.dispatch(up_to, max_records, found)
        except (OSError, ValueError, CorruptLogError) as error:
            lack = shortage(error) if isinstance(error, OSError) else None
            if lack is not None:
                self._dispatcher.drop_hints()
                reason = f"{lack.what}: the queues cannot grow ({error})."
                self._gate.pause(_DISPATCH, reason, lack.ends_when)
            else:
                self._gate.refuse(f"Building the consume queues failed: {error}.")
        else:
            if self._gate.paused:
                self._gate.resume(_DISPATCH)
        if not self._gate.broken:
            self.index.dispatched(len(found))
        return found

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
        result = self._reader.get(
            topic, queue_id, offset, max_count, max_bytes, tag_codes=tag_codes
        )
        self.meter.get(len(result.records), result.size)
        return result

    def is_cold(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a message lies further behind the log end than
        `accessMessageInMemoryMaxRatio` of the machine's memory, so that reading it may wait for
        the disk. Raises OSError when the queue's file cannot be read."""
        return self._reader.is_cold(topic, queue_id, offset)

    def is_cold_position(self, physical_offset: int) -> bool:
        """Return the same for a physical offset."""
        return self._reader.is_cold_position(physical_offset)

    def cold_units(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        max_bytes: int,
        *,
        tag_codes: frozenset[int] | None = None,
    ) -> tuple[list[ColdUnit], int] | None:
        """Return the units of the cold records that `get` would read, and the queue offset behind
        the last unit examined; None if the record at `offset` is not cold. Costs one comparison
        while the log fits into memory. Raises OSError when the queue's file cannot be read."""
        return self._reader.cold_units(
            topic, queue_id, offset, max_count, max_bytes, tag_codes=tag_codes
        )

    def physical_offset_of(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the physical offset of a visible message. Raises OSError when the queue's file
        cannot be read."""
        return self._reader.physical_offset_of(topic, queue_id, offset)

    def record_range(self, topic: str, queue_id: int, offset: int) -> tuple[int, int] | None:
        """Return physical offset and size of a message's record; None without such a message."""
        return self._reader.record_range(topic, queue_id, offset)

    def offset_by_position(self, topic: str, queue_id: int, physical_offset: int) -> int:
        """Return the first queue offset whose record lies at `physical_offset` or above."""
        return self._reader.offset_by_position(topic, queue_id, physical_offset)

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False
    ) -> int:
        """Return the first offset stored at or after the time; with `upper` the last at or before
        it.

        Where the clock was set back, the store times of a queue are not in order: the result is a
        message stored at or after the time whose predecessor was stored before it (the first
        message has none). There may be several such places; one of them is found, as in Apache.
        """
        return self._reader.offset_by_time(topic, queue_id, timestamp_ms, upper)

    def search_offset(
        self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False
    ) -> int:
        """Return `offset_by_time` for a client: the end for a time to come, although the clock was
        ahead of it when messages were stored."""
        asked_ms = _LAST_MS if timestamp_ms > self._wall_ms() else timestamp_ms
        return self.offset_by_time(topic, queue_id, asked_ms, upper)

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self._reader.min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the end of the visible units."""
        return self._reader.max_offset(topic, queue_id)

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset that the next append to this queue gets."""
        self._appender.assign_from_log()
        queue = self.queue_table.queues.get((topic, queue_id))
        return queue.next_offset if queue else 0

    def next_offsets(self, topic: str, queue_ids: Iterable[int]) -> dict[int, int]:
        """Return `next_offset` of those of the queues that exist."""
        self._appender.assign_from_log()
        queues = self.queue_table.queues
        found = {queue_id: queues.get((topic, queue_id)) for queue_id in queue_ids}
        return {queue_id: queue.next_offset for queue_id, queue in found.items() if queue}

    # -- queues -------------------------------------------------------------------------------

    def queues(self) -> Iterable[tuple[str, int]]:
        """Return (topic, queue id) of every queue that holds or held a record."""
        return [key for key, queue in self.queue_table.queues.items() if queue.next_offset]

    @property
    def id(self) -> str:
        """A random name of this store; "" before the first start of a new one."""
        return self._holdings.id

    def hide_below(self, topic: str, queue_id: int, offset: int) -> None:
        """Hide the units below `offset` from readers, as if retention had deleted them; until the
        next start."""
        queue = self.queue_table.queues.get((topic, queue_id))
        if queue is not None:
            queue.min_offset = max(queue.min_offset, min(offset, queue.max_offset))

    def remove_expired_queues(self, queues: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Remove and return those of these unused queues of which retention has deleted all
        records. They start at offset 0 if they are used again. Raises OSError."""
        table = self.queue_table
        expired = [queue for queue in queues if table.has_expired(*queue, self.log.start)]
        if expired:
            self._digests.forget_queues(expired)  # first: a start goes on at a noted end
        for queue in expired:
            table.remove_expired(*queue)
        return expired

    def lmqs(self) -> list[str]:
        """Return the names of the light queues (LMQ); a record is in queue 0 of those it names."""
        return [queue.topic for queue in self.queue_table.lmqs()]

    def has_lmq(self, name: str) -> bool:
        return (name, 0) in self.queue_table.queues

    def remove_lmq(self, name: str) -> bool:
        """Remove the units of a light queue, not its records; return false if it does not exist or
        has records that are not dispatched. It starts at offset 0 if it is used again. Raises
        OSError."""
        return self.queue_table.remove(name, 0)

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
        return self.log.readable_end if self._log_flusher is None else self._log_flusher.flushed

    @property
    def dispatched_offset(self) -> int:
        return self._dispatcher.offset

    # -- state --------------------------------------------------------------------------------

    @property
    def refusal(self) -> str:
        """Why the store refuses writes, or ""."""
        return self._gate.refusal

    @property
    def writable(self) -> bool:
        return not self._gate.refusal

    @property
    def paused(self) -> bool:
        """Whether writes are refused for lack of disk space; ends when space is free again."""
        return self._gate.paused

    @property
    def no_room(self) -> bool:
        """Whether the next message finds no disk space, as of the last look at the disk."""
        return self._gate.paused or not self.retention.has_room

    def pause(self, cause: str, reason: str) -> None:
        """Refuse writes for lack of disk space until `resume(cause)`; `reason` is a sentence."""
        self._gate.pause(cause, reason)

    def resume(self, cause: str) -> None:
        """End the pause of this cause; no effect without one."""
        self._gate.resume(cause)

    def may_resume(self, cause: str) -> bool:
        """Return whether there is disk space, and no other cause pauses writes."""
        return self.retention.has_room and self._gate.is_paused_only_by(cause)

    @property
    def log_flushes(self) -> int:
        """Number of log flushes that wrote something."""
        return 0 if self._log_flusher is None else self._log_flusher.rounds

    @property
    def allocation_failure(self) -> str:
        """Why the last segment could not be created, or ""."""
        return self._appender.allocation_failure

    @property
    def out_of_buffers(self) -> bool:
        """Whether that failed because the transient pool had no free buffer (a matter of
        milliseconds)."""
        return self._appender.out_of_buffers

    def stats(self) -> StoreStats:
        """Return counters, positions and disk state of this moment."""
        meter, log, retention = self.meter, self.log, self.retention
        log_end = log.readable_end
        return StoreStats(
            put_messages=meter.put_messages,
            put_bytes=meter.put_bytes,
            put_batches=meter.put_batches,
            put_refused=meter.put_refused,
            put_latency=meter.latency_buckets(),
            put_longest_us=meter.longest_ns // 1_000,
            gets=meter.gets,
            get_misses=meter.get_misses,
            queue_units_repaired=self._reader.units.repaired,
            record_mismatches=dict(self._reader.check.mismatches),
            missing_messages=len(self._reader.gaps),
            index_files_damaged=self.index.damaged,
            get_messages=meter.get_messages,
            get_bytes=meter.get_bytes,
            rates=meter.rates(),
            log_start=log.start,
            log_end=log_end,
            flush_behind=max(log_end - self.flushed_offset, 0),
            dispatch_behind=max(log_end - self._dispatcher.offset, 0),
            index_behind=self.index.behind,
            segments=len(log.segments),
            segment_size=self.config.mapped_file_size_commit_log,
            queues=len(self.queue_table.queues),
            disk_use=retention.disk_use,
            pressure=retention.pressure.name.lower(),
            archive_watermark=retention.watermark.value,
            refusal=self._gate.refusal,
        )
