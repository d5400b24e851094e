"""What the store answers: small slotted values, built once a message on the hot path.

Names of the statuses are RocketMQ's (store format, sections 7.3 and 9.1).
"""

import enum
from dataclasses import dataclass, field


class PutStatus(enum.Enum):
    """Outcome of one append."""

    PUT_OK = "PUT_OK"
    #: No room for the next segment: the disk is full. Nothing of the message was written.
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    #: Topic too long, body too large, a host that is neither IPv4 nor IPv6.
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    #: More than 32,767 bytes of properties.
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    #: The store is closed or read-only; `MessageStore.refusal` says why.
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    #: The record does not fit an empty segment (only with tiny segments).
    END_OF_FILE = "END_OF_FILE"


@dataclass(slots=True)
class AppendResult:
    """Where a message came to lie. Offsets are -1 and size 0 unless the status is PUT_OK.

    The result of an accepted message is an `Arrival`: one object a message, not two.
    """

    status: PutStatus
    physical_offset: int
    size: int
    queue_offset: int
    store_timestamp_ms: int

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


@dataclass(slots=True)
class Arrival(AppendResult):
    """One record of a consume queue; `MessageStore.dispatch` returns those that became visible."""

    topic: str
    queue_id: int
    tags_code: int


class GetStatus(enum.Enum):
    """Outcome of one read of a queue."""

    FOUND = "FOUND"
    #: Units were looked at, none matched the filter; go on at `next_offset`.
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    #: The queue has never held a message.
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    #: The records were deleted by retention while the units are still there.
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    #: Asked for exactly the next message that will come.
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"


@dataclass(slots=True)
class StoredRecord:
    """A copy of one whole record, as it lies on disk."""

    queue_offset: int
    physical_offset: int
    data: bytes
    tags_code: int


@dataclass(slots=True)
class GetResult:
    """Records of one queue in order; `next_offset` is where to go on."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: list[StoredRecord] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What `open` found and did, for the log line and the banner."""

    clean: bool
    log_start: int
    log_end: int
    scanned_from: int
    records_scanned: int
    torn_bytes: int  #: bytes after the last whole record that were cut and zeroed
    dispatched_offset: int
    queues: int
    segments_removed: int
