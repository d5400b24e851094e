"""The store's face, as far as it answers how far it is: positions, counts, and room to write.

`MessageStore` sets the parts. Numbers only; nothing here waits or fails.
"""

from collections.abc import Callable

from .append import Appender
from .dispatch import Dispatcher
from .flush import LogFlusher
from .format.record import FIXED_V4, MAGIC_V1, MAGIC_V2, Message
from .log.commit_log import CommitLog
from .log.write_gate import WriteGate
from .queue.table import QueueTable
from .stats import Meter


class StateApi:
    """Where log, disk and queues stand, and whether messages are taken."""

    #: Counts puts and gets; `stats.collect` makes an answer of it.
    meter: Meter
    _gate: WriteGate
    _log: CommitLog
    _queues: QueueTable
    _appender: Appender
    _dispatcher: Dispatcher
    _log_flusher: LogFlusher | None

    # -- writing ------------------------------------------------------------------------------

    @property
    def refusal(self) -> str:
        """Why nothing can be written now, or ""."""
        return self._gate.refusal

    @property
    def writable(self) -> bool:
        return not self._gate.refusal

    @property
    def paused(self) -> bool:
        """Nothing can be written for want of room; that ends by itself."""
        return self._gate.paused

    @property
    def on_refused(self) -> Callable[[str], None] | None:
        """Called once when the store becomes read-only, by whichever thread found the reason."""
        return self._gate.on_refused

    @on_refused.setter
    def on_refused(self, hook: Callable[[str], None] | None) -> None:
        self._gate.on_refused = hook

    @property
    def on_resumed(self) -> Callable[[], None] | None:
        """Called when there is room again, by whichever thread found it."""
        return self._gate.on_resumed

    @on_resumed.setter
    def on_resumed(self, hook: Callable[[], None] | None) -> None:
        self._gate.on_resumed = hook

    @property
    def on_new_segment(self) -> Callable[[int], list[Message]] | None:
        """Called in `append_many` before the first record of every segment, with the segment's
        offset; the records it returns go first."""
        return self._appender.on_new_segment

    @on_new_segment.setter
    def on_new_segment(self, hook: Callable[[int], list[Message]] | None) -> None:
        self._appender.on_new_segment = hook

    # -- positions ----------------------------------------------------------------------------

    @property
    def log_start(self) -> int:
        return self._log.start

    @property
    def log_end(self) -> int:
        """End of the last whole record that can be read."""
        return self._log.readable_end

    @property
    def appended_end(self) -> int:
        """End of the last whole record; beyond `log_end` only with the transient pool."""
        return self._log.end

    @property
    def received_end(self) -> int:
        """Where the next raw bytes must begin; beyond `log_end` while a record is incomplete."""
        return self._log.received_end

    @property
    def flushed_offset(self) -> int:
        """Everything before it survives power loss."""
        return self._log.readable_end if self._log_flusher is None else self._log_flusher.flushed

    @property
    def dispatched_offset(self) -> int:
        return self._dispatcher.offset

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the readable log that no queue has seen yet."""
        return max(self._log.readable_end - self._dispatcher.offset, 0)

    # -- counts -------------------------------------------------------------------------------

    @property
    def log_flushes(self) -> int:
        """Flushes of the log that found something to do (the count behind group commit)."""
        return 0 if self._log_flusher is None else self._log_flusher.rounds

    @property
    def allocation_failure(self) -> str:
        """Why the last segment could not be made, or ""."""
        return self._appender.allocation_failure

    @property
    def out_of_buffers(self) -> bool:
        """Whether it was the transient store pool, which has room again in a moment."""
        return self._appender.out_of_buffers

    @property
    def queue_count(self) -> int:
        return len(self._queues.queues)

    def remove_expired_queue(self, topic: str, queue_id: int) -> bool:
        """Remove a queue that nobody uses any more once retention has taken all of its records; false
        before that. It begins at 0 if it is used again. Raises OSError."""
        return self._queues.remove_expired(topic, queue_id, self._log.start)

    # -- light queues -------------------------------------------------------------------------

    def light_queues(self) -> list[str]:
        """Names of the light queues; a record is in queue 0 of those that it names."""
        return [queue.topic for queue in self._queues.light_queues()]

    def has_light_queue(self, name: str) -> bool:
        return (name, 0) in self._queues.queues

    def remove_light_queue(self, name: str) -> bool:
        """Remove a light queue with its units, not the records; false where it is not there, or not
        all of it is dispatched. It begins at 0 if it is used again. Raises OSError."""
        return self._queues.remove(name, 0)

    def oldest_store_ms(self) -> int | None:
        """When the first record that is still there was stored; None: there is none."""
        log = self._log
        start = log.start
        if log.readable_end - start < FIXED_V4.size:
            return None
        magic = FIXED_V4.unpack(log.read(start, FIXED_V4.size))[1]
        return log.store_timestamp(start) if magic in (MAGIC_V1, MAGIC_V2) else None

    def segment_starts(self) -> list[int]:
        """First offsets of the log's segments, oldest first."""
        return [segment.start for segment in self._log.segments]
