"""Events and effects of a replica's role machine (`role_machine.py`)."""

from enum import Enum

from msgspec import Struct

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


class DirectiveArrived(Struct, frozen=True):
    """A directive of the active controller or of an operator's command. `state` None: none
    known."""

    state: GroupState | None
    order: Order = Order.NONE
    old_leader_is_dead: bool = False
    detail: str = ""
    wait_ns: int = 0  #: PROMOTE: leases of former leaders have ended after this time
    drain_ns: int = 0  #: STEP_DOWN: time for the followers to catch up first
    next: Ref | None = None  #: STEP_DOWN: the next leader


class StateSeen(Struct, frozen=True):
    """A newer state from another source: a leader's hello, the answer to a proposal."""

    state: GroupState


class LeaseRenewed(Struct, frozen=True):
    sent_ns: int  #: send time of the heartbeat that the lease answers
    lease_ns: int


class PeerEcho(Struct, frozen=True):
    """See `Lease.renew_by_peers`."""

    oldest_ns: int | None
    alone: bool


class LeaderHeard(Struct, frozen=True):
    """The last frame of the leader of `epoch` arrived at `heard_ns`."""

    epoch: int
    heard_ns: int


class FollowersReturned(Struct, frozen=True):
    """Every other seat holder sent a hello to this fenced leader (`leader_resume.py`)."""


class HigherEpochSeen(Struct, frozen=True):
    epoch: int


class PromiseSaved(Struct, frozen=True):
    epoch: int


class Promoted(Struct, frozen=True):
    """`Promote` is complete: everything is flushed and the epoch is assigned."""

    epoch: int


class FenceOrdered(Struct, frozen=True):
    epoch: int


class StepDownOrdered(Struct, frozen=True):
    epoch: int  #: of the next leader; 0: unknown
    reason: str


class HoldNeeded(Struct, frozen=True):
    """Following would cut below the own confirm offset, or the bytes below the cut differ."""

    reason: str


class DiskFailed(Struct, frozen=True):
    reason: str


class Tick(Struct, frozen=True):
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


class SavePromise(Struct, frozen=True):
    """Make the promise durable; answered by `PromiseSaved`."""

    epoch: int


class SaveState(Struct, frozen=True):
    state: GroupState


class Promote(Struct, frozen=True):
    """Close the stream, drop a partly received record, flush everything, assign the epoch durably;
    answered by `Promoted`."""

    epoch: int


class Lead(Struct, frozen=True):
    """Accept writes from now on, EPOCH_START first."""

    epoch: int


class StepDown(Struct, frozen=True):
    """Stop leading: waiting sends get an unknown result."""

    reason: str


class Follow(Struct, frozen=True):
    """Follow the leader of `epoch`, whose address is in the newest state; None: no leader."""

    leader: Ref | None
    epoch: int


class Hold(Struct, frozen=True):
    reason: str


class Reseed(Struct, frozen=True):
    """Move the data aside and copy everything again before the next start."""

    reason: str


class Exit(Struct, frozen=True):
    """The disk failed: mark this replica suspect and end the process."""

    reason: str


class RoleMoved(Struct, frozen=True):
    role: Role
    reason: str


Effect = (
    SavePromise | SaveState | Promote | Lead | StepDown | Follow | Hold | Reseed | Exit | RoleMoved
)
