"""Events and effects of the follower's state machine (`follower.py`).

Events and the two effects of every chunk are plain slotted values, because each chunk creates them.
"""

from enum import Enum

from msgspec import Struct

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


class Connecting(Struct):
    """A stream is opening; the hello is its first frame.

    The ends are the log's own, because a failed append may have stored some records of its chunk.
    The history is a copy of the one on disk, because a lost election may have begun an epoch.
    """

    log_end: int
    flushed_end: int
    history: EpochHistory | None = None  #: None: unchanged


class Accepted(Struct):
    epoch: int
    start_offset: int
    verify_from: int
    verify_to: int
    confirm: int


class CutOrdered(Struct):
    """The logs diverge at `cut`. `accept_loss` is the flag of the group's state."""

    epoch: int
    cut: int
    verify_from: int
    verify_to: int
    confirm: int
    accept_loss: bool = False


class Refused(Struct):
    code: str
    detail: str
    may_reseed: bool = False  #: the group's state does not name this follower as in sync


class Promised(Struct):
    """The promise was raised outside of a stream (an election, a fence); it is durable."""

    epoch: int


class TailCompared(Struct):
    equal: bool


class ChunkArrived(Struct):
    epoch: int  #: epoch of the bytes; without an own history: the leader's
    offset: int
    crc_ok: bool
    confirm: int
    epoch_start: int = 0  #: start of that epoch


class Appended(Struct):
    log_end: int  #: end of the last whole record
    received_end: int  #: >= log_end while a record is partly received


class AppendFailed(Struct):
    reason: NackReason
    detail: str


class Flushed(Struct):
    flushed_end: int


class HeartbeatArrived(Struct):
    epoch: int
    leader_end: int
    confirm: int
    in_sync: bool


class OtherFrame(Struct):
    """Another frame (consumer offsets): proof that the leader is alive."""


class StreamEnded(Struct):
    goodbye: bool  #: the leader announced the end


class Tick(Struct):
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


class SavePromise(Struct, frozen=True):
    """Make the promise durable, before anything is acknowledged in this epoch (I1)."""

    epoch: int


class AssignEpoch(Struct, frozen=True):
    """Make the label of the bytes from `start` on durable, before the chunk is appended."""

    epoch: int
    start: int


class Cut(Struct, frozen=True):
    """Write the plan and reopen: the bytes from `to` on are archived and cut before the next
    start."""

    to: int
    epoch: int
    accept_loss: bool


class Reseed(Struct, frozen=True):
    """Write the plan and reopen: the data moves aside and is copied again."""

    reason: str


class SuspectCleared(Struct, frozen=True):
    """The log holds everything that the leader confirmed: remove the mark from disk."""


class CompareTail(Struct, frozen=True):
    start: int
    end: int


class Append(Struct, frozen=True):
    """Append the chunk of the current event."""


class SendAck(Struct, frozen=True):
    pass


class SendNack(Struct, frozen=True):
    reason: NackReason
    offset: int
    detail: str


class Drop(Struct, frozen=True):
    """Close the stream; `StreamEnded` follows."""

    reason: str


class Reconnect(Struct, frozen=True):
    """Reconnect after this time (the shell adds jitter)."""

    after_ms: int


class StateMoved(Struct, frozen=True):
    state: State


class Stopped(Struct, frozen=True):
    """The leader's refusal or an own finding; emitted once for each new reason."""

    code: str
    detail: str


class LeaderAlive(Struct, frozen=True):
    alive: bool


class ConfirmMoved(Struct, frozen=True):
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
