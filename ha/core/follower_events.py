"""What happens to a follower (events), and what it wants done (effects); see `follower.py`.

Events and the two effects of every chunk are plain slotted values: they are made for each chunk.
"""

from dataclasses import dataclass
from enum import Enum

from .epochs import EpochHistory


class State(Enum):
    IDLE = "idle"
    HELLO = "hello"
    CHECK = "check"
    CATCHUP = "catchup"
    IN_SYNC = "in_sync"
    CUTTING = "cutting"
    REFUSED = "refused"
    DIVERGED = "diverged"
    HOLD = "hold"


MOVES: dict[State, tuple[State, ...]] = {
    State.IDLE: (State.HELLO,),
    State.HELLO: (State.IDLE, State.CHECK, State.REFUSED, State.DIVERGED, State.HOLD),
    State.CHECK: (State.IDLE, State.CATCHUP, State.DIVERGED, State.CUTTING),
    State.CATCHUP: (State.IDLE, State.IN_SYNC),
    State.IN_SYNC: (State.IDLE, State.CATCHUP),
    State.CUTTING: (),
    State.REFUSED: (State.HELLO,),
    State.DIVERGED: (State.HELLO,),
    State.HOLD: (State.HELLO,),
}


class NackReason(Enum):
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
    failed append may have taken some records of its chunk. So is the history, a copy of the disk's: an election that
    came to nothing may have begun an epoch."""

    log_end: int
    flushed_end: int
    history: EpochHistory | None = None  #: None: as it was


@dataclass(slots=True)
class Accepted:
    epoch: int
    start_offset: int
    verify_from: int
    verify_to: int
    confirm: int


@dataclass(slots=True)
class CutOrdered:
    """The leader's log parted from ours at `cut`. `accept_loss`: the group's state says so."""

    epoch: int
    cut: int
    verify_from: int
    verify_to: int
    confirm: int
    accept_loss: bool = False


@dataclass(slots=True)
class Refused:
    code: str
    detail: str
    may_reseed: bool = False  #: nobody counts on our bytes: we are not in sync by the group's state


@dataclass(slots=True)
class Promised:
    """The promise was raised outside of a stream (an election, a fence); it is durable."""

    epoch: int


@dataclass(slots=True)
class TailCompared:
    equal: bool


@dataclass(slots=True)
class ChunkArrived:
    epoch: int  #: of its bytes; without a history of our own: of the leader
    offset: int
    crc_ok: bool
    confirm: int
    epoch_start: int = 0  #: where the epoch of its bytes starts


@dataclass(slots=True)
class Appended:
    log_end: int  #: after the last whole record
    received_end: int  #: >= log_end while a part of a record is there


@dataclass(slots=True)
class AppendFailed:
    complaint: NackReason
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
    | CutOrdered
    | Promised
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

# --- effects: executed in order, each one done before the next ------------------------------------


@dataclass(frozen=True, slots=True)
class SavePromise:
    """Make the promise durable: nothing may be acknowledged in this epoch before (I1)."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AssignEpoch:
    """Make it durable that the bytes from `start` on are of `epoch`, before the chunk is appended."""

    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Write the plan and live anew: the bytes from `to` on go, with an archive, between two lives."""

    to: int
    epoch: int
    accept_loss: bool


@dataclass(frozen=True, slots=True)
class Reseed:
    """Write the plan and live anew: move everything aside and copy it again."""

    reason: str


@dataclass(frozen=True, slots=True)
class SuspectCleared:
    """We hold everything that the leader confirmed: remove the mark from the disk."""


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
    complaint: NackReason
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
    SavePromise
    | AssignEpoch
    | Cut
    | Reseed
    | SuspectCleared
    | CompareTail
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
