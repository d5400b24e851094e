"""Result types of the store: small slotted values, one per message on the hot path.

Names of the statuses are RocketMQ's (docs/formats/store-format.md, sections 7.3 and 9.1).
"""

import enum

from msgspec import Struct, field


class PutStatus(enum.Enum):
    """Outcome of one append: RocketMQ's names, each with the component that returns it."""

    PUT_OK = "PUT_OK"
    #: Store (`append_and_wait`) and durability gate: stored, but not flushed in time.
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    #: Durability gate: stored, but the replicas did not confirm in time.
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    #: Not used: missing replicas are detected before the append (HA_NOT_AVAILABLE), as in the
    #: reference.
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    #: Not used: the sender checks `write_refusal` before the append.
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"
    #: Store: closed, read-only or paused; `MessageStore.refusal` has the reason.
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    #: Store: no next segment (the disk is full, no buffer is free). Nothing was written.
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    #: Store: topic too long, body too large, a host that is neither IPv4 nor IPv6, or a batch that
    #: is transactional, delayed or for several queues.
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    #: Store: more than 32,767 bytes of properties.
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    #: Store: the record does not fit an empty segment (only with tiny segments).
    END_OF_FILE = "END_OF_FILE"
    #: The broker's sender: a write to the page cache took too long; queued sends are refused.
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
    #: Store: writing failed midway, the message may be stored. The store is read-only then.
    UNKNOWN_ERROR = "UNKNOWN_ERROR"
    #: The broker's timers: too many messages for one moment, a time too far ahead, or switched off.
    WHEEL_TIMER_FLOW_CONTROL = "WHEEL_TIMER_FLOW_CONTROL"
    WHEEL_TIMER_MSG_ILLEGAL = "WHEEL_TIMER_MSG_ILLEGAL"
    WHEEL_TIMER_NOT_ENABLE = "WHEEL_TIMER_NOT_ENABLE"
    #: Not used: there is no escape bridge.
    PUT_TO_REMOTE_BROKER_FAIL = "PUT_TO_REMOTE_BROKER_FAIL"
    #: Store: the message would exceed `maxLmqConsumeQueueNum` light queues.
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = "LMQ_CONSUME_QUEUE_NUM_EXCEEDED"


class AppendResult(Struct):
    """Position of a stored message. Offsets are -1 and size 0 unless it was stored.

    The result of an accepted message is an `Arrival`: one object per message, not two.
    """

    status: PutStatus
    physical_offset: int
    size: int
    queue_offset: int
    store_timestamp_ms: int

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


class Arrival(AppendResult):
    """One record of a consume queue; `StoreWriter.dispatch` returns those that became visible."""

    topic: str
    queue_id: int
    tags_code: int


class GetStatus(enum.Enum):
    """Outcome of one queue read; `reading.py` lists conditions and next offsets."""

    FOUND = "FOUND"
    #: The queue does not exist and cannot be created.
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    #: Units were examined, none matched the filter; continue at `next_offset`.
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    #: The queue has never held a message.
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    #: The records were deleted by retention (or are damaged), their units still exist.
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    #: The offset is that of the next message to come.
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    #: Only for brokers that reset a group's offset; the store never returns it.
    OFFSET_RESET = "OFFSET_RESET"


class StoredRecord(Struct):
    """A copy of one whole record, as on disk. `tags_code` is the resolved hash where the queue has
    extension units."""

    queue_offset: int
    physical_offset: int
    data: bytes
    tags_code: int


class GetResult(Struct):
    """Records of one queue in order; continue at `next_offset`."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: list[StoredRecord] = field(default_factory=list)
    #: The records lie so far back that they are probably not in memory here.
    suggest_pulling_from_slave: bool = False
    #: Bytes of all records.
    size: int = 0


class ColdUnit(Struct, frozen=True):
    """A queue unit whose record must be read from the disk."""

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int


class RecoveryReport(Struct, frozen=True):
    """What `open` found, kept, cut and rebuilt; all positions are physical offsets."""

    clean: bool  #: the last run was stopped properly
    log_start: int
    log_end: int
    scanned_from: int
    records_scanned: int
    torn_bytes: int  #: bytes after the last whole record that were cut and zeroed
    dispatched_offset: int
    queues: int
    segments_removed: int
    segments: int = 0  #: segments of the log now
    verdict: str = "end of the log"  #: what followed the last whole record (recovery/rules.py)
    reason: str = ""  #: what was wrong there, if bytes were cut
    lost_bytes: int = 0  #: bytes that were cut because pages before them never reached the disk
    lost_records: int = 0  #: whole records among them
    lost_kept_at: str = ""  #: the file that holds a copy of them
    units_from: int = -1  #: queue units of records from here on were rewritten; -1: none
    units_rebuilt: int = 0
    files_unfinished: int = 0  #: files that a killed process left unfinished, removed

    def lines(self) -> list[str]:
        """Return the report as sentences, one per line; two without changes."""
        stop = "was stopped properly" if self.clean else "was not stopped properly"
        lines = [
            f"The store {stop}. Kept: the log from {self.log_start} to {self.log_end} "
            f"({_count(self.segments, 'segment')}), {_count(self.queues, 'queue')}.",
            f"Checked: {_count(self.records_scanned, 'record')} from offset {self.scanned_from}.",
        ]
        if self.torn_bytes:
            lines.append(
                f"Cut at {self.log_end}: {_count(self.torn_bytes, 'byte')} that are no whole record"
                + (f" ({self.reason.rstrip('.')})." if self.reason else ".")
            )
        if self.lost_bytes:
            lines.append(
                f"Cut at {self.log_end}: {_count(self.lost_bytes, 'byte')} with "
                f"{_count(self.lost_records, 'whole record')}, because pages before them did not "
                "reach the disk (nothing of it had been flushed). "
                f"A copy is in {self.lost_kept_at}."
            )
        if self.segments_removed or self.files_unfinished:
            lines.append(
                f"Removed: {_count(self.segments_removed, 'segment')} behind the end, "
                f"{_count(self.files_unfinished, 'unfinished file')}."
            )
        if self.units_from >= 0:
            lines.append(
                f"Rebuilt: {_count(self.units_rebuilt, 'queue unit')} from offset "
                f"{self.units_from} on. Readers see the log up to {self.dispatched_offset}."
            )
        return lines


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
