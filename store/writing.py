"""Writing into a store: messages, encoded records, bytes of a leader, and the units of queues.

Never waits, except `append_and_wait`. In SYNC_FLUSH every append asks for a flush; the caller
answers its sender once the store's `flushed_offset` has passed the record's end.
"""

from collections.abc import Callable, Iterable, Sequence
from threading import Event
from typing import Final

from .append import Appender, Encoded, Encoder, refused, unflushed
from .config.store_config import StoreConfig
from .dispatch import Dispatched, Dispatcher
from .flush_threads import FlushThreads
from .format.disk import NO_DESCRIPTORS, shortage
from .format.errors import CorruptLogError, DiskFullError, StoreClosedError
from .format.properties import waits
from .format.record import Message
from .format.results import AppendResult, PutStatus
from .group_commit import FlushRequest
from .index.service import IndexService
from .log.commit_log import CommitLog
from .log.write_gate import WriteGate
from .queue.table import QueueTable
from .stats import Meter

#: Pause cause: dispatch found no free disk space.
_DISPATCH: Final = "dispatch"


class StoreWriter:
    """The writer of one store; called on the store's thread."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: QueueTable,
        appender: Appender,
        dispatcher: Dispatcher,
        *,
        index: IndexService,
        gate: WriteGate,
        threads: FlushThreads,
        meter: Meter,
    ) -> None:
        self._config = config
        self._log = log
        self._queues = queues
        self._appender = appender
        self._dispatcher = dispatcher
        self._index = index
        self._gate = gate
        self._threads = threads
        self._meter = meter
        self._sync = config.sync_flush

    @property
    def allocation_failure(self) -> str:
        """Why the last segment could not be created, or ""."""
        return self._appender.allocation_failure

    @property
    def out_of_buffers(self) -> bool:
        """Whether that failed because the transient pool had no free buffer (a matter of
        milliseconds)."""
        return self._appender.out_of_buffers

    def append_many(self, messages: Sequence[Message]) -> list[AppendResult]:
        """Append in order; one result per message. Never raises for a message, never waits.

        If the log cannot be written, every status is UNKNOWN_ERROR (the first records may be
        stored) and the store is read-only.
        """
        return self._append(self._appender.append_many, messages)

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
        threads = self._threads
        if not threads.started or threads.flushed >= end:
            return results
        settled = Event()
        threads.request(FlushRequest(end, 0, settled))
        settled.wait(self._config.sync_flush_timeout / 1000)
        safe = threads.flushed
        return [unflushed(r) if r.end > safe else r for r in results]

    def _append(
        self,
        append: Callable[[Sequence[Message]], list[AppendResult]],
        messages: Sequence[Message],
    ) -> list[AppendResult]:
        if self._gate.refusal:
            return [refused(PutStatus.SERVICE_NOT_AVAILABLE) for _ in messages]
        meter, log, appender = self._meter, self._log, self._appender
        begin, refusals, begin_ns = log.end, appender.refusals, meter.now_ns()
        try:
            results = append(messages)
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:  # nothing was written
                return [refused(PutStatus.CREATE_MAPPED_FILE_FAILED) for _ in messages]
            self._gate.refuse(f"Writing the commit log failed: {error}.")
            return [refused(PutStatus.UNKNOWN_ERROR) for _ in messages]
        took_ns = meter.now_ns() - begin_ns
        meter.put(len(messages), appender.refusals - refusals, log.end - begin, took_ns)
        if self._sync:
            self._threads.request(FlushRequest(log.end, len(messages)))
        return results

    @property
    def takes_encoded(self) -> bool:
        """Return whether `append_encoded` makes the same records as `append_many`: not if records
        end in a checksum or their units get an extension."""
        return not self._config.enabled_append_prop_crc and not self._queues.write_ext

    def append_encoded(self, encode: Encoder) -> Encoded | None:
        """Append the records that `encode` returns, for queues that `next_number` knows.

        None if the store does not accept messages or the log cannot be written; `append_many` then
        gives the reason for each message. Never waits.
        """
        if self._gate.refusal:
            return None
        meter, begin = self._meter, self._log.end
        begin_ns = meter.now_ns()
        try:
            encoded = self._appender.append_encoded(encode)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                self._gate.refuse(f"Writing the commit log failed: {error}.")
            return None
        if encoded.records:
            took_ns = meter.now_ns() - begin_ns
            meter.put(encoded.records, 0, self._log.end - begin, took_ns)
            if self._sync:
                self._threads.request(FlushRequest(self._log.end, encoded.records))
        return encoded

    def next_number(self, topic: str, queue_id: int) -> int | None:
        """Return the queue offset of the next encoded record; None for a queue that `append_many`
        must create."""
        queue = self._queues.queues.get((topic, queue_id))
        return None if queue is None else queue.next_offset

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
            end = self._log.append_raw(offset, data)
        except OSError as error:
            lack = shortage(error)
            if lack is not None:  # nothing was written; the leader sends it again
                raise DiskFullError(f"{lack.what} for the leader's bytes: {error}.") from error
            self._gate.refuse(f"Writing the commit log failed: {error}.")
            raise StoreClosedError(self._gate.refusal) from error
        if self._sync:
            self._threads.request(FlushRequest(end, 1))
        return end

    def commit(self) -> None:
        """With the transient pool: move `log_end` to `appended_end`. A failed write makes the
        store read-only."""
        try:
            self._log.commit()
        except OSError as error:
            self._gate.refuse(f"Writing the commit log failed: {error}.")

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset that the next append to this queue gets."""
        self._appender.assign_from_log()
        queue = self._queues.queues.get((topic, queue_id))
        return queue.next_offset if queue else 0

    def next_offsets(self, topic: str, queue_ids: Iterable[int]) -> dict[int, int]:
        """Return `next_offset` of those of the queues that exist."""
        self._appender.assign_from_log()
        queues = self._queues.queues
        queues_by_id = {queue_id: queues.get((topic, queue_id)) for queue_id in queue_ids}
        return {queue_id: queue.next_offset for queue_id, queue in queues_by_id.items() if queue}

    def dispatch(self, up_to: int, max_records: int = 10_000) -> Dispatched:
        """Make records that end at or before `up_to` visible in their queues, in log order.

        Call again while `dispatched_offset` is below `up_to`. A failed write makes the store
        read-only; without disk space or descriptors it pauses, and a later call continues. After a
        failure, returns the records of the steps before the failed one; the call that continues
        returns those of the failed step.
        """
        dispatched = Dispatched()
        if self._gate.broken:
            return dispatched
        try:
            self._dispatcher.dispatch(up_to, max_records, dispatched)
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
            self._index.dispatched(len(dispatched))
        return dispatched
