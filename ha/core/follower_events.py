"""What happens to a follower (events), and what it wants done (effects); see `follower.py`.

Events and the two effects of every chunk are plain slotted values: they are made for each chunk.
"""

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    IDLE = "idle"
    HELLO = "hello"
    CHECK = "check"
    CATCHUP = "catchup"
    IN_SYNC = "in_sync"
    REFUSED = "refused"
    DIVERGED = "diverged"


class Complaint(Enum):
    """Why a frame was not taken; names are those of the wire's enumeration."""

    CRC = "NACK_CRC"
    GAP = "NACK_GAP"
    DISK_FULL = "NACK_DISK_FULL"
    DIVERGED = "NACK_DIVERGED"
    DISK_ERROR = "NACK_DISK_ERROR"


# --- events ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Connecting:
    """A stream is being opened; the hello goes out as its first frame. The ends are the log's own: a
    failed append may have taken some records of its chunk."""

    log_end: int
    flushed_end: int


@dataclass(slots=True)
class Accepted:
    epoch: int
    start_offset: int
    verify_from: int
    verify_to: int
    confirm: int


@dataclass(slots=True)
class Refused:
    code: str
    detail: str


@dataclass(slots=True)
class TailCompared:
    equal: bool


@dataclass(slots=True)
class ChunkArrived:
    epoch: int
    offset: int
    crc_ok: bool
    confirm: int


@dataclass(slots=True)
class Appended:
    log_end: int  #: after the last whole record
    received_end: int  #: >= log_end while a part of a record is there


@dataclass(slots=True)
class AppendFailed:
    complaint: Complaint
    detail: str


@dataclass(slots=True)
class Flushed:
    flushed_end: int


@dataclass(slots=True)
class BeatArrived:
    epoch: int
    leader_end: int
    confirm: int
    in_sync: bool


@dataclass(slots=True)
class OtherFrame:
    """A frame that only proves that the leader lives (consumer offsets)."""


@dataclass(slots=True)
class StreamEnded:
    goodbye: bool  #: the leader said that it goes


@dataclass(slots=True)
class Tick:
    pass


Event = (
    Connecting
    | Accepted
    | Refused
    | TailCompared
    | ChunkArrived
    | Appended
    | AppendFailed
    | Flushed
    | BeatArrived
    | OtherFrame
    | StreamEnded
    | Tick
)

# --- effects --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompareTail:
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Append:
    """Append the chunk that just arrived."""


@dataclass(frozen=True, slots=True)
class SendAck:
    pass


@dataclass(frozen=True, slots=True)
class SendNack:
    complaint: Complaint
    offset: int
    detail: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the stream; `StreamEnded` follows."""

    reason: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Connect again after this pause (the shell adds jitter)."""

    after_ms: int


@dataclass(frozen=True, slots=True)
class StateMoved:
    state: State


@dataclass(frozen=True, slots=True)
class Stopped:
    """The leader's refusal, or our own finding; emitted once for each new reason."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class LeaderAlive:
    alive: bool


@dataclass(frozen=True, slots=True)
class ConfirmMoved:
    confirm: int


Effect = (
    CompareTail
    | Append
    | SendAck
    | SendNack
    | Drop
    | Retry
    | StateMoved
    | Stopped
    | LeaderAlive
    | ConfirmMoved
)
