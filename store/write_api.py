"""The writing half of the store's face: how messages, batches and a leader's bytes come into the log.

`MessageStore` sets the parts. A message that is refused has a status of its own; a log that cannot be
written makes the store read-only, whoever finds it out.
"""

from collections.abc import Callable, Sequence
from threading import Event

from .append import Appender, refused, unflushed
from .config.store_config import StoreConfig
from .flush import LogFlusher
from .format.disk import NO_SPACE
from .format.errors import DiskFullError, StoreClosedError
from .format.properties import waits
from .format.record import Message
from .format.results import AppendResult, PutStatus
from .group_commit import FlushRequest
from .log.commit_log import CommitLog
from .log.write_gate import WriteGate
from .stats import Meter


class WriteApi:
    """What can be put into a started store."""

    config: StoreConfig
    meter: Meter
    _appender: Appender
    _gate: WriteGate
    _log: CommitLog
    _log_flusher: LogFlusher | None
    _sync: bool

    def append_many(self, messages: Sequence[Message]) -> list[AppendResult]:
        """Append in order; one result a message. Never raises for a message, never waits.

        If the log cannot be written, the outcome of the whole batch is UNKNOWN_ERROR (its first
        records may be there), and the store is read-only.
        """
        return self._append(self._appender.append_many, messages)

    def append_batch(self, messages: Sequence[Message]) -> list[AppendResult]:
        """Append the batch of a remoting client: all of it, side by side in one queue and one
        segment with one store time, or nothing, with one status for all (store format, section
        2.10). Members are of one topic and queue, neither transactional nor delayed."""
        return self._append(self._appender.append_batch, messages)

    def append_and_wait(self, messages: Sequence[Message]) -> list[AppendResult]:
        """`append_many` for a caller without an event loop: in SYNC_FLUSH it waits for the disk,
        unless all messages say WAIT=false, up to `syncFlushTimeout`. After that the status is
        FLUSH_DISK_TIMEOUT: stored, and nobody knows yet whether it is durable."""
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
        meter, log, appender = self.meter, self._log, self._appender
        clock, begin, refusals = meter.steady_ns, log.end, appender.refusals
        begin_ns = clock() if clock is not None else 0
        try:
            results = append(messages)
        except OSError as error:
            self._gate.refuse(f"Writing the commit log failed: {error}.")
            return [refused(PutStatus.UNKNOWN_ERROR) for _ in messages]
        took_ns = clock() - begin_ns if clock is not None else 0
        meter.put(len(messages), appender.refusals - refusals, log.end - begin, took_ns)
        if self._sync and self._log_flusher is not None:
            self._log_flusher.request(FlushRequest(self._log.end, len(messages)))
        return results

    def flush_soon(self) -> None:
        """Let `flushed_offset` reach what `log_end` is now, as soon as the disk can."""
        if self._log_flusher is not None:
            self._log_flusher.hasten()

    def commit(self) -> None:
        """With the transient pool: let `log_end` be `appended_end` now. A failed write makes the
        store read-only."""
        try:
            self._log.commit()
        except OSError as error:
            self._gate.refuse(f"Writing the commit log failed: {error}.")

    def append_raw(self, offset: int, data: bytes) -> int:
        """Append log bytes of a leader as they are; returns the end of the last whole record.

        `offset` must be `received_end`, or `log_end`: a part of a record that is there is then
        dropped (an empty log may begin at any segment's start). Raises OffsetOutOfRangeError,
        CorruptLogError (go on at `received_end`), DiskFullError (the same) or StoreClosedError
        when the store cannot be written.
        """
        if self._gate.refusal:
            raise (DiskFullError if self._gate.paused else StoreClosedError)(self._gate.refusal)
        try:
            end = self._log.append_raw(offset, data)
        except OSError as error:
            if error.errno in NO_SPACE:  # nothing of it was written; the leader sends it again
                raise DiskFullError(f"There is no room for the leader's bytes: {error}.") from error
            self._gate.refuse(f"Writing the commit log failed: {error}.")
            raise StoreClosedError(self._gate.refusal) from error
        if self._sync and self._log_flusher is not None:
            self._log_flusher.request(FlushRequest(end, 1))
        return end
