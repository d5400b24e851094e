"""Events and effects of a replica's role machine (`role_machine.py`)."""

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
    """Orders; the names are those of the protobuf enumeration without its prefix."""

    NONE = "NONE"
    FOLLOW = "FOLLOW"
    PROMOTE = "PROMOTE"
    STEP_DOWN = "STEP_DOWN"
    HOLD = "HOLD"
    RESEED = "RESEED"


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DirectiveArrived:
    """A directive of the active controller or of an operator's command. `state` None: none
    known."""

    state: GroupState | None
    order: Order = Order.NONE
    old_leader_is_dead: bool = False
    detail: str = ""
    wait_ns: int = 0  #: PROMOTE: leases of former leaders have ended after this time
    drain_ns: int = 0  #: STEP_DOWN: time for the followers to catch up first
    next: Ref | None = None  #: STEP_DOWN: the next leader


@dataclass(frozen=True, slots=True)
class StateSeen:
    """A newer state from another source: a leader's hello, the answer to a proposal."""

    state: GroupState


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    sent_ns: int  #: send time of the heartbeat that the lease answers
    lease_ns: int


@dataclass(frozen=True, slots=True)
class PeerEcho:
    """See `Lease.renew_by_peers`."""

    oldest_ns: int | None
    alone: bool


@dataclass(frozen=True, slots=True)
class LeaderHeard:
    """The last frame of the leader of `epoch` arrived at `heard_ns`."""

    epoch: int
    heard_ns: int


@dataclass(frozen=True, slots=True)
class FollowersReturned:
    """Every other seat holder sent a hello to this fenced leader (`leader_resume.py`)."""


@dataclass(frozen=True, slots=True)
class HigherEpochSeen:
    epoch: int


@dataclass(frozen=True, slots=True)
class PromiseSaved:
    epoch: int


@dataclass(frozen=True, slots=True)
class Promoted:
    """`Promote` is complete: everything is flushed and the epoch is assigned."""

    epoch: int


@dataclass(frozen=True, slots=True)
class FenceOrdered:
    epoch: int


@dataclass(frozen=True, slots=True)
class StepDownOrdered:
    epoch: int  #: of the next leader; 0: unknown
    reason: str


@dataclass(frozen=True, slots=True)
class HoldNeeded:
    """Following would cut below the own confirm offset, or the bytes below the cut differ."""

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
    """Make the promise durable; answered by `PromiseSaved`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class SaveState:
    state: GroupState


@dataclass(frozen=True, slots=True)
class Promote:
    """Close the stream, drop a partly received record, flush everything, assign the epoch durably;
    answered by `Promoted`."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Lead:
    """Accept writes from now on, EPOCH_START first."""

    epoch: int


@dataclass(frozen=True, slots=True)
class StepDown:
    """Stop leading: waiting sends get an unknown result."""

    reason: str


@dataclass(frozen=True, slots=True)
class Follow:
    """Follow the leader of `epoch`, whose address is in the newest state; None: no leader."""

    leader: Ref | None
    epoch: int


@dataclass(frozen=True, slots=True)
class Hold:
    reason: str


@dataclass(frozen=True, slots=True)
class Reseed:
    """Move the data aside and copy everything again before the next start."""

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
