"""Events and effects of the follower's state machine (`follower.py`).

Events and the two effects of every chunk are plain slotted values, because each chunk creates them.
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
    """Reason of a NACK; the names are those of the protobuf enumeration."""

    CRC = "NACK_CRC"
    GAP = "NACK_GAP"
    DISK_FULL = "NACK_DISK_FULL"
    DIVERGED = "NACK_DIVERGED"
    DISK_ERROR = "NACK_DISK_ERROR"


# --- events ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Connecting:
    """A stream is opening; the hello is its first frame.

    The ends are the log's own, because a failed append may have stored some records of its chunk.
    The history is a copy of the one on disk, because a lost election may have begun an epoch.
    """

    log_end: int
    flushed_end: int
    history: EpochHistory | None = None  #: None: unchanged


@dataclass(slots=True)
class Accepted:
    epoch: int
    start_offset: int
    verify_from: int
    verify_to: int
    confirm: int


@dataclass(slots=True)
class CutOrdered:
    """The logs diverge at `cut`. `accept_loss` is the flag of the group's state."""

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
    may_reseed: bool = False  #: the group's state does not name this follower as in sync


@dataclass(slots=True)
class Promised:
    """The promise was raised outside of a stream (an election, a fence); it is durable."""

    epoch: int


@dataclass(slots=True)
class TailCompared:
    equal: bool


@dataclass(slots=True)
class ChunkArrived:
    epoch: int  #: epoch of the bytes; without an own history: the leader's
    offset: int
    crc_ok: bool
    confirm: int
    epoch_start: int = 0  #: start of that epoch


@dataclass(slots=True)
class Appended:
    log_end: int  #: end of the last whole record
    received_end: int  #: >= log_end while a record is partly received


@dataclass(slots=True)
class AppendFailed:
    reason: NackReason
    detail: str


@dataclass(slots=True)
class Flushed:
    flushed_end: int


@dataclass(slots=True)
class HeartbeatArrived:
    epoch: int
    leader_end: int
    confirm: int
    in_sync: bool


@dataclass(slots=True)
class OtherFrame:
    """Another frame (consumer offsets): proof that the leader is alive."""


@dataclass(slots=True)
class StreamEnded:
    goodbye: bool  #: the leader announced the end


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
    | HeartbeatArrived
    | OtherFrame
    | StreamEnded
    | Tick
)

# --- effects: executed in order, each one done before the next ------------------------------------


@dataclass(frozen=True, slots=True)
class SavePromise:
    """Make the promise durable, before anything is acknowledged in this epoch (I1)."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AssignEpoch:
    """Make the label of the bytes from `start` on durable, before the chunk is appended."""

    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Write the plan and reopen: the bytes from `to` on are archived and cut before the next
    start."""

    to: int
    epoch: int
    accept_loss: bool


@dataclass(frozen=True, slots=True)
class Reseed:
    """Write the plan and reopen: the data moves aside and is copied again."""

    reason: str


@dataclass(frozen=True, slots=True)
class SuspectCleared:
    """The log holds everything that the leader confirmed: remove the mark from disk."""


@dataclass(frozen=True, slots=True)
class CompareTail:
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Append:
    """Append the chunk of the current event."""


@dataclass(frozen=True, slots=True)
class SendAck:
    pass


@dataclass(frozen=True, slots=True)
class SendNack:
    reason: NackReason
    offset: int
    detail: str


@dataclass(frozen=True, slots=True)
class Drop:
    """Close the stream; `StreamEnded` follows."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Reconnect after this time (the shell adds jitter)."""

    after_ms: int


@dataclass(frozen=True, slots=True)
class StateMoved:
    state: State


@dataclass(frozen=True, slots=True)
class Stopped:
    """The leader's refusal or an own finding; emitted once for each new reason."""

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
    | Reconnect
    | StateMoved
    | Stopped
    | LeaderAlive
    | ConfirmMoved
)
