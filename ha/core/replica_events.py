"""What happens to a replica's role (events), and what it wants done (effects); see `replica.py`."""

from dataclasses import dataclass
from enum import Enum

from .group_state import GroupState, Ref


class Role(Enum):
    FOLLOWER = "follower"
    PROMOTING = "promoting"
    LEADER = "leader"
    FENCED = "fenced"
    HOLD = "hold"


class Order(Enum):
    """Names are those of the wire's enumeration, without its prefix."""

    NONE = "NONE"
    FOLLOW = "FOLLOW"
    PROMOTE = "PROMOTE"
    STEP_DOWN = "STEP_DOWN"
    HOLD = "HOLD"
    RESEED = "RESEED"


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DirectiveArrived:
    """Of the controller that decides, or of an operator's script. `state` None: it knows none."""

    state: GroupState | None
    order: Order = Order.NONE
    old_leader_is_dead: bool = False
    detail: str = ""
    drain_ns: int = 0  #: STEP_DOWN: the shell may let the followers catch up for so long first
    next: Ref | None = None  #: STEP_DOWN: who leads next


@dataclass(frozen=True, slots=True)
class StateSeen:
    """A newer state came another way: in a leader's hello, in the answer to a proposal."""

    state: GroupState


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    sent_ns: int  #: when the beat was sent that the lease answers
    lease_ns: int


@dataclass(frozen=True, slots=True)
class PeerEcho:
    """See `Lease.peers_echoed`."""

    oldest_ns: int | None
    alone: bool


@dataclass(frozen=True, slots=True)
class LeaderHeard:
    """The last frame of a leader of `epoch` came at `heard_ns`."""

    epoch: int
    heard_ns: int


@dataclass(frozen=True, slots=True)
class FollowersReturned:
    """Everyone who holds a seat beside us asks us to lead on (`returning.py`)."""


@dataclass(frozen=True, slots=True)
class HigherEpochSeen:
    epoch: int


@dataclass(frozen=True, slots=True)
class PromiseSaved:
    epoch: int


@dataclass(frozen=True, slots=True)
class Promoted:
    """`Promote` is done: everything is flushed and the epoch is assigned."""

    epoch: int


@dataclass(frozen=True, slots=True)
class FenceOrdered:
    epoch: int


@dataclass(frozen=True, slots=True)
class StepDownOrdered:
    epoch: int  #: of the next leader; 0: it will be said
    reason: str


@dataclass(frozen=True, slots=True)
class HoldNeeded:
    """Following would cut below our own confirm offset, or the bytes below the cut differ."""

    reason: str


@dataclass(frozen=True, slots=True)
class DiskFailed:
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    pass


Event = (
    DirectiveArrived
    | StateSeen
    | LeaseRenewed
    | PeerEcho
    | LeaderHeard
    | FollowersReturned
    | HigherEpochSeen
    | PromiseSaved
    | Promoted
    | FenceOrdered
    | StepDownOrdered
    | HoldNeeded
    | DiskFailed
    | Tick
)

# --- effects --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SavePromise:
    """Make the promise durable, then say `PromiseSaved`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class SaveState:
    state: GroupState


@dataclass(frozen=True, slots=True)
class Promote:
    """Close the stream, drop a half message, flush everything, assign the epoch durably, then say
    `Promoted`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Lead:
    """Take writes from now on: EPOCH_START first."""

    epoch: int


@dataclass(frozen=True, slots=True)
class StepDown:
    """Stop leading: who waits for an answer gets "unknown"."""

    reason: str


@dataclass(frozen=True, slots=True)
class Follow:
    """Follow the leader of `epoch`, whose address stands in the newest state; None: nobody."""

    leader: Ref | None
    epoch: int


@dataclass(frozen=True, slots=True)
class Hold:
    reason: str


@dataclass(frozen=True, slots=True)
class Reseed:
    """Move the data aside and copy everything again, between two lives."""

    reason: str


@dataclass(frozen=True, slots=True)
class Exit:
    """The disk failed: mark this replica suspect and end the process."""

    reason: str


@dataclass(frozen=True, slots=True)
class RoleMoved:
    role: Role
    reason: str


Effect = (
    SavePromise | SaveState | Promote | Lead | StepDown | Follow | Hold | Reseed | Exit | RoleMoved
)
