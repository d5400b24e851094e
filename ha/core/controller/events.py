"""What the group controller hears and what it orders: plain values, no behaviour.

Mirrors `cometmq.v1.BrokerBeat`, `Directive` and `AlterIsrRequest` without protobuf. All times are the
steady nanoseconds of whoever runs the controller, except `sent_ns`, which is the broker's own and only
compared with earlier beats of the same life. Source: HA note, sections 6.6 to 6.8.
"""

from dataclasses import dataclass, field
from enum import Enum

from ..group_state import NO_ADDRESSES, Addresses, GroupState, Policy, Ref

#: Positions and epochs above this are a broken sender's: they must fit signed 64-bit numbers, with room
#: to add to them.
NUMBER_MAX = 1 << 62


@dataclass(frozen=True, slots=True)
class Limits:
    """Times that one controller goes by."""

    lease_ns: int = 5_000_000_000  #: L: a leader may write so long after it sent a beat
    beat_ns: int = 1_000_000_000  #: how often brokers beat

    @property
    def grace_ns(self) -> int:
        """How long a controller that has just started listens before it elects (R3)."""
        return self.lease_ns + 2 * self.beat_ns

    @property
    def take_over_ns(self) -> int:
        """How long a replica that was elected may take until it leads: its own wait, and its work."""
        return 3 * self.lease_ns

    @property
    def tick_gap_max_ns(self) -> int:
        """Events further apart mean that the controller itself slept: silence proves nothing."""
        return max(self.lease_ns // 2, 200_000_000)


class Order(Enum):
    """Names are those of the wire's enumeration."""

    NONE = "NONE"
    FOLLOW = "FOLLOW"
    PROMOTE = "PROMOTE"
    STEP_DOWN = "STEP_DOWN"
    HOLD = "HOLD"
    RESEED = "RESEED"


@dataclass(frozen=True, slots=True)
class Beat:
    """What a replica says of itself."""

    broker_id: int
    replica_uuid: str
    incarnation: int
    seq: int = 0
    sent_ns: int = 0
    leads: bool = False  #: its role is LEADER
    addresses: Addresses = NO_ADDRESSES
    promised_epoch: int = 0
    last_epoch: int = 0
    log_start: int = 0
    log_end: int = 0
    flushed_end: int = 0
    confirm: int = 0
    suspect: bool = False
    heard_epoch: int = 0  #: of the leader that it follows; 0: of none
    heard_age_ns: int = -1  #: since that leader's last frame; -1: never
    known: GroupState | None = None
    policy: Policy | None = None
    learner: bool = False
    log_is_empty: bool = False
    priority: int = 0
    drained: bool = False
    no_room: bool = False

    @property
    def ref(self) -> Ref:
        """This life."""
        return Ref(self.broker_id, self.incarnation)


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The controller begins to listen. `state` is what its store holds, None while it is unread."""

    state: GroupState | None
    active: bool = True


@dataclass(frozen=True, slots=True)
class ActiveChanged:
    """This nameserver became, or ceased to be, the one that decides."""

    active: bool


@dataclass(frozen=True, slots=True)
class BeatArrived:
    session: int
    beat: Beat


@dataclass(frozen=True, slots=True)
class SessionClosed:
    session: int


@dataclass(frozen=True, slots=True)
class ProcessExited:
    """A supervisor saw the process end. Incarnation 0: whichever life was last."""

    broker_id: int
    replica_uuid: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class AlterIsr:
    request: int
    leader: Ref
    epoch: int
    state_version: int
    proposal_seq: int
    members: tuple[Ref, ...]
    confirm: int = 0


@dataclass(frozen=True, slots=True)
class CasDone:
    """The store's answer. `state` is what it holds now; None: it does not know whether it took the
    change, or cannot be reached, and must be read again."""

    ticket: int
    accepted: bool
    state: GroupState | None


@dataclass(frozen=True, slots=True)
class StateRead:
    """What the store holds now (version 0: nothing); None: it cannot be read at present."""

    state: GroupState | None


@dataclass(frozen=True, slots=True)
class Switchover:
    request: int
    to: int = -1
    max_wait_ns: int = 0
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class ForceElect:
    request: int
    to: int
    accept_loss: bool = False
    reason: str = ""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class SetDrain:
    request: int
    drain: bool


@dataclass(frozen=True, slots=True)
class SetPolicy:
    request: int
    sync: bool | None = None  #: None: as it is
    min_in_sync: int = 0  #: 0: as it is
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; `wall_ms` only dates holds for people."""

    wall_ms: int = 0


Event = (
    Started
    | ActiveChanged
    | BeatArrived
    | SessionClosed
    | ProcessExited
    | AlterIsr
    | CasDone
    | StateRead
    | Switchover
    | ForceElect
    | SetDrain
    | SetPolicy
    | Tick
)

# --- effects --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompareAndSet:
    """Put `state` in place of the version that is expected; answer with `CasDone`."""

    ticket: int
    expected_version: int
    state: GroupState


@dataclass(frozen=True, slots=True)
class ReadState:
    """Read the store; answer with `StateRead`."""


@dataclass(frozen=True, slots=True)
class Direct:
    """Tell the broker of this session."""

    session: int
    broker_id: int
    order: Order
    state: GroupState
    active: bool
    lease_for_seq: int = 0
    lease_ms: int = 0
    old_leader_is_dead: bool = False
    drain_ms: int = 0
    next: Ref | None = None
    detail: str = ""


class RefusalCode(Enum):
    """Why a beat is not taken."""

    ID_IN_USE = "ID_IN_USE"
    STALE = "STALE"
    INVALID = "INVALID"
    FULL = "FULL"


@dataclass(frozen=True, slots=True)
class Refuse:
    """Close this session with a sentence for the broker's operator."""

    session: int
    code: RefusalCode
    reason: str


@dataclass(frozen=True, slots=True)
class ProposalAnswer:
    """Undecided: the leader keeps counting the union and proposes again."""

    request: int
    accepted: bool
    decided: bool
    state: GroupState
    reason: str = ""


class Outcome(Enum):
    """How an operator's command ended."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class OperationAnswer:
    request: int
    outcome: Outcome
    message: str
    steps: tuple[str, ...] = ()
    lost_start: int = 0
    lost_end: int = 0


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The group's state is another one now: log it once, show it, push it."""

    old: GroupState
    new: GroupState
    why: str


@dataclass(frozen=True, slots=True)
class Noted:
    """Something an operator should see, once."""

    event: str
    detail: str


Effect = (
    CompareAndSet
    | ReadState
    | Direct
    | Refuse
    | ProposalAnswer
    | OperationAnswer
    | StateChanged
    | Noted
)


@dataclass(slots=True)
class Replica:
    """What the controller has seen of a replica: its newest life. Lost with the process."""

    beat: Beat
    session: int  #: 0: closed
    heard_ns: int
    first_ns: int  #: of this life
    beats: int = 1
    led_epoch: int = 0  #: the newest epoch in which this life was seen leading
    dead: bool = False  #: proven: its supervisor saw it exit
    dead_ns: int = 0
    failed_epoch: int = 0  #: it was elected for this epoch and did not lead in time
    known: GroupState | None = field(default=None, repr=False)

    @property
    def ref(self) -> Ref:
        return self.beat.ref

    def alive(self, now_ns: int, limits: Limits) -> bool:
        """It beat within the lease, and nobody saw it die."""
        return not self.dead and now_ns - self.heard_ns < limits.lease_ns


@dataclass(slots=True)
class PendingChange:
    """The change that the store is asked for."""

    ticket: int
    state: GroupState
    why: str
    proven: bool = False
    proposal: AlterIsr | None = None
    taken: bool = False  #: the proposal is accepted by this change, not burned
