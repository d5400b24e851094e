"""Events and effects of the group controller: plain values without behaviour.

They mirror `cometmq.v1.BrokerBeat`, `Directive` and `AlterIsrRequest` without protobuf. All times
are steady nanoseconds of the controller's process, except `sent_ns`, which is the broker's clock
and only compared with earlier heartbeats of the same incarnation (docs/formats/ha.md, sections 6.6
to 6.8).
"""

from dataclasses import dataclass, field
from enum import Enum

from msgspec import Struct

from ..group_state import NO_ADDRESSES, Addresses, GroupState, Policy, Ref

#: Upper limit of positions and epochs: they fit signed 64-bit integers with headroom for additions.
NUMBER_MAX = 1 << 62
#: Later than any time.
FOREVER_NS = 1 << 62


class Limits(Struct, frozen=True):
    """Time limits of one controller."""

    lease_ns: int = 2_500_000_000  #: a leader may write for this long after it sent a heartbeat
    heartbeat_ns: int = 250_000_000  #: interval of heartbeats

    @property
    def grace_ns(self) -> int:
        """How long a controller collects heartbeats after its start before it elects (rule R3)."""
        return self.lease_ns + 2 * self.heartbeat_ns

    @property
    def take_over_ns(self) -> int:
        """How long an elected replica may take until it leads: its wait and its work."""
        return 3 * self.lease_ns

    @property
    def tick_gap_max_ns(self) -> int:
        """Events further apart mean that the controller was suspended: silence proves nothing."""
        return max(self.lease_ns // 2, 200_000_000)


class Order(Enum):
    """Orders; the names are those of the protobuf enumeration."""

    NONE = "NONE"
    FOLLOW = "FOLLOW"
    PROMOTE = "PROMOTE"
    STEP_DOWN = "STEP_DOWN"
    HOLD = "HOLD"
    RESEED = "RESEED"


class Heartbeat(Struct, frozen=True):
    """State that a replica reports about itself."""

    broker_id: int
    replica_uuid: str
    incarnation: int
    seq: int = 0
    sent_ns: int = 0
    leads: bool = False  #: role LEADER
    addresses: Addresses = NO_ADDRESSES
    promised_epoch: int = 0
    last_epoch: int = 0
    log_start: int = 0
    log_end: int = 0
    flushed_end: int = 0
    confirm: int = 0
    suspect: bool = False
    heard_epoch: int = 0  #: epoch of the leader that it follows; 0: none
    heard_age_ns: int = -1  #: since the last frame of that leader; -1: never
    known: GroupState | None = None
    policy: Policy | None = None
    learner: bool = False
    log_is_empty: bool = False
    priority: int = 0
    drained: bool = False
    no_room: bool = False
    leaving: bool = False  #: is stopping
    leader_refused: bool = False  #: the port of the leader of `heard_epoch` refuses connections
    lacks_quorum: bool = False  #: leads with fewer in-sync replicas connected than the minimum

    @property
    def ref(self) -> Ref:
        """This incarnation of the replica."""
        return Ref(self.broker_id, self.incarnation)


# --- events ---------------------------------------------------------------------------------------


class Started(Struct, frozen=True):
    """The controller starts. `state` is the content of its store, None while it is not read."""

    state: GroupState | None
    active: bool = True
    claim_until_ns: int = FOREVER_NS  #: end of the right to decide; no lease outlives it


class ActiveChanged(Struct, frozen=True):
    """This nameserver became active or inactive."""

    active: bool
    claim_until_ns: int = FOREVER_NS  #: as in `Started`
    #: Every lease of the formerly active nameserver has ended: its claim expired.
    leases_are_over: bool = False


class ClaimRenewed(Struct, frozen=True):
    """This nameserver may decide until a later time."""

    until_ns: int


class HeartbeatArrived(Struct, frozen=True):
    session: int
    heartbeat: Heartbeat


class SessionClosed(Struct, frozen=True):
    session: int


class ProcessExited(Struct, frozen=True):
    """A supervisor reported the end of a process. Incarnation 0: the latest one."""

    broker_id: int
    replica_uuid: str
    incarnation: int


class AlterIsr(Struct, frozen=True):
    request: int
    leader: Ref
    epoch: int
    state_version: int
    proposal_seq: int
    members: tuple[Ref, ...]
    confirm: int = 0


class CasDone(Struct, frozen=True):
    """Result of a compare-and-set.

    `state` is the content of the store now; None: the store is unreachable or the outcome is
    unknown, and the store must be read again.
    """

    ticket: int
    accepted: bool
    state: GroupState | None


class StateRead(Struct, frozen=True):
    """Content of the store (version 0: empty); None: the store cannot be read now."""

    state: GroupState | None


class Switchover(Struct, frozen=True):
    request: int
    to: int = -1
    max_wait_ns: int = 0
    dry_run: bool = False


class ForceElect(Struct, frozen=True):
    request: int
    to: int
    accept_loss: bool = False
    reason: str = ""
    dry_run: bool = False


class SetDrain(Struct, frozen=True):
    request: int
    drain: bool


class SetPolicy(Struct, frozen=True):
    request: int
    sync: bool | None = None  #: None: unchanged
    min_in_sync: int = 0  #: 0: unchanged
    dry_run: bool = False


class Tick(Struct, frozen=True):
    """A timer tick; `wall_ms` is only recorded as the start of a hold."""

    wall_ms: int = 0


Event = (
    Started
    | ActiveChanged
    | ClaimRenewed
    | HeartbeatArrived
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


class CompareAndSet(Struct, frozen=True):
    """Replace the expected version by `state`; answered by `CasDone`."""

    ticket: int
    expected_version: int
    state: GroupState


class ReadState(Struct, frozen=True):
    """Read the store; answered by `StateRead`."""


class Direct(Struct, frozen=True):
    """Send a directive on this session."""

    session: int
    broker_id: int
    order: Order
    state: GroupState
    active: bool
    lease_for_seq: int = 0
    lease_ms: int = 0
    old_leader_is_dead: bool = False
    drain_ms: int = 0
    wait_ms: int = 0  #: PROMOTE: leases of former leaders have ended after this time
    next: Ref | None = None
    detail: str = ""


class RefusalCode(Enum):
    """Reasons to refuse a heartbeat."""

    ID_IN_USE = "ID_IN_USE"
    STALE = "STALE"
    INVALID = "INVALID"
    FULL = "FULL"


class Refuse(Struct, frozen=True):
    """Close this session with a sentence for the broker's operator."""

    session: int
    code: RefusalCode
    reason: str


class ProposalAnswer(Struct, frozen=True):
    """Answer to a proposal. Not decided: the leader keeps counting the union and proposes again."""

    request: int
    accepted: bool
    decided: bool
    state: GroupState
    reason: str = ""


class Outcome(Enum):
    """Result of an operator's command."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


class OperationAnswer(Struct, frozen=True):
    request: int
    outcome: Outcome
    message: str
    steps: tuple[str, ...] = ()
    lost_start: int = 0
    lost_end: int = 0


class StateChanged(Struct, frozen=True):
    """The group's state changed: log it once, publish it, push it."""

    old: GroupState
    new: GroupState
    why: str


class LogEvent(Struct, frozen=True):
    """An event for the log."""

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
    | LogEvent
)


@dataclass(slots=True)
class Replica:
    """Registration of a replica: its newest incarnation. Not persistent."""

    heartbeat: Heartbeat
    session: int  #: 0: closed
    heard_ns: int
    first_ns: int  #: of this incarnation
    heartbeats: int = 1
    led_epoch: int = 0  #: newest epoch in which this incarnation reported that it leads
    dead: bool = False  #: proven: its supervisor reported the exit
    dead_ns: int = 0
    failed_epoch: int = 0  #: elected for this epoch, but did not lead in time
    lacks_quorum_ns: int = 0  #: time since which it reports so; 0: it does not
    known: GroupState | None = field(default=None, repr=False)

    @property
    def ref(self) -> Ref:
        return self.heartbeat.ref

    def alive(self, now_ns: int, limits: Limits) -> bool:
        """Return whether a heartbeat came within the lease and no exit was reported."""
        return not self.dead and now_ns - self.heard_ns < limits.lease_ns

    def overdue(self, now_ns: int, limits: Limits) -> bool:
        """Return whether a heartbeat is missing; for operators only, it decides nothing."""
        return self.dead or now_ns - self.heard_ns > 2 * limits.heartbeat_ns


class PendingChange(Struct):
    """A change that the store has not confirmed yet."""

    ticket: int
    state: GroupState
    why: str
    proven: bool = False
    proposal: AlterIsr | None = None
    taken: bool = False  #: the change accepts the proposal instead of burning it
