"""Role machine: the role of one replica and the order of steps into it (pure).

Roles and their moves (`_MOVES`; docs/formats/ha.md, section 6.7):

    FOLLOWER    receives from the leader that the group's state names, or waits for one
    PROMOTING   elected: saves the promise, flushes the log, assigns the epoch, and waits until the
                former leader can no longer write
    LEADER      accepts writes while its lease permits (`lease.py`)
    FENCED      stopped leading: accepts nothing until a leader is named. A leader that stopped only
                because its permission expired resumes the same epoch through PROMOTING
                (`may_resume`)
    HOLD        must not follow (it would cut confirmed bytes) and was not elected: an operator
                decides

Guarantees: the promised epoch never decreases, and it is durable (`SavePromise` -> `PromiseSaved`)
before anything is done or acknowledged in that epoch (I1). The replica leads an epoch only if the
group's state names this *incarnation* and no newer epoch was promised (I2). After a promotion it
accepts no write before the former leader's permission has ended, unless that leader is proven dead.
A state of an older epoch, or of a lower version, changes nothing.

A *static* replica has no controller: its epoch comes from its files, its lease never ends, and
orders come from an operator's command as the same events.
"""

from msgspec import Struct, field

from .group_state import GroupState, Ref
from .lease import Lease
from .role_events import (
    DirectiveArrived,
    DiskFailed,
    Effect,
    Event,
    Exit,
    FenceOrdered,
    Follow,
    FollowersReturned,
    HigherEpochSeen,
    Hold,
    HoldNeeded,
    Lead,
    LeaderHeard,
    LeaseRenewed,
    Order,
    PeerEcho,
    PromiseSaved,
    Promote,
    Promoted,
    Reseed,
    Role,
    RoleMoved,
    SavePromise,
    SaveState,
    StateSeen,
    StepDown,
    StepDownOrdered,
    Tick,
)
from .static_state import is_newer

__all__ = [
    "DirectiveArrived",
    "DiskFailed",
    "Effect",
    "Event",
    "Exit",
    "FenceOrdered",
    "Follow",
    "FollowersReturned",
    "HigherEpochSeen",
    "Hold",
    "HoldNeeded",
    "LAPSED_LEASES",
    "Lead",
    "LeaderHeard",
    "LeaseRenewed",
    "Order",
    "PeerEcho",
    "PromiseSaved",
    "Promote",
    "Promoted",
    "Reseed",
    "Role",
    "RoleMachine",
    "RoleMoved",
    "SavePromise",
    "SaveState",
    "StateSeen",
    "StepDown",
    "StepDownOrdered",
    "Tick",
]


_MOVES: dict[Role, tuple[Role, ...]] = {
    Role.FOLLOWER: (Role.PROMOTING, Role.HOLD),
    Role.PROMOTING: (Role.LEADER, Role.FENCED, Role.FOLLOWER),
    Role.LEADER: (Role.FENCED,),
    Role.FENCED: (Role.FOLLOWER, Role.PROMOTING, Role.HOLD),
    Role.HOLD: (Role.FOLLOWER, Role.PROMOTING),
}
#: A leader without permission for this many leases steps down, so that waiting sends get an answer.
LAPSED_LEASES = 2


class RoleMachine(Struct):
    me: Ref
    lease: Lease
    promised_epoch: int  #: durable
    state: GroupState | None = None  #: the newest known
    role: Role = Role.FOLLOWER
    epoch: int = 0  #: that this replica leads or led last; 0: none in this incarnation
    following: tuple[Ref, int] | None = None  #: leader and epoch of the last Follow
    pending_epoch: int = 0  #: a promise that is being written to disk
    promoted: bool = False  #: PROMOTING: only the wait is left
    #: last frame of another leader; after a restart, the start: an earlier incarnation may have
    #: received one
    heard_ns: int = 0
    former: tuple[int, int] | None = (
        None  #: broker id and epoch of the newest leader before the state's
    )
    led_epoch: int = 0  #: newest epoch with bytes in the log at the start of this incarnation
    proven: bool = False  #: PROMOTING: the former leader is proven dead, no wait
    lapsed_ns: int = 0  #: LEADER: time since which it may not write; 0: it may
    lapsed: bool = False  #: FENCED only because the permission expired, or PROMOTING after it
    hold_reason: str = ""
    _hold_version: int = field(default=0)

    def on_event(self, event: Event, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case LeaseRenewed():
                self.lease.renew(event.sent_ns, event.lease_ns)
                if self.lease.may_write(now_ns):
                    self._resume("the controller answers again", effects)
            case FollowersReturned():
                self._resume("the followers returned", effects)
            case PeerEcho():
                self.lease.renew_by_peers(event.oldest_ns, alone=event.alone)
            case LeaderHeard():
                self.heard_ns = max(self.heard_ns, event.heard_ns)
            case DirectiveArrived():
                self._on_directive(event, now_ns, effects)
            case StateSeen():
                self._adopt_state(event.state, now_ns, effects)
            case HigherEpochSeen():
                self._on_higher(event.epoch, effects)
            case PromiseSaved():
                self._on_promise_saved(event, effects)
            case Promoted():
                self._on_promoted(event, now_ns, effects)
            case FenceOrdered():
                self._on_higher(event.epoch, effects)
            case StepDownOrdered():
                self._on_step_down(event, effects)
            case HoldNeeded():
                self._hold(event.reason, effects)
            case DiskFailed():
                self._on_disk_failed(event, effects)
            case Tick():
                self._on_tick(now_ns, effects)
        return effects

    def may_write(self, now_ns: int) -> bool:
        return self.role is Role.LEADER and self.lease.may_write(now_ns)

    # --- directives and states --------------------------------------------------------------------

    def _on_directive(self, event: DirectiveArrived, now_ns: int, effects: list[Effect]) -> None:
        if event.state is not None:
            if self.state is not None and is_newer(self.state, event.state):
                return  # the order is based on an old state
            self._adopt_state(event.state, now_ns, effects)
        match event.order:
            case Order.PROMOTE:
                self._on_elected(event, now_ns, effects)
            case Order.STEP_DOWN:
                self._on_step_down(StepDownOrdered(0, event.detail or "ordered"), effects)
            case Order.HOLD:
                if self.role in (Role.FENCED, Role.FOLLOWER):
                    self._hold(event.detail or "ordered", effects)
            case Order.RESEED:
                if self.role not in (Role.LEADER, Role.PROMOTING):
                    effects.append(Reseed(event.detail or "ordered"))
            case Order.FOLLOW | Order.NONE:
                pass  # the state names the leader

    def _adopt_state(self, state: GroupState, now_ns: int, effects: list[Effect]) -> None:
        if self.state is None or is_newer(state, self.state):
            if self.state is not None and self.state.leader is not None:
                self.former = (self.state.leader.broker_id, self.state.epoch)
            self.state = state
            effects.append(SaveState(state))
        elif state != self.state:
            return
        if self.role in (Role.LEADER, Role.PROMOTING):
            if state.epoch > self.epoch:
                self._stop_leading(f"epoch {state.epoch} has begun", effects)
            elif state.epoch == self.epoch and state.leader != self.me:
                self._stop_leading(
                    f"the group's state of version {state.version} names another leader", effects
                )
        self._follow_state(state, effects)

    def _follow_state(self, state: GroupState, effects: list[Effect]) -> None:
        leader = state.leader
        if leader is None or self.role in (Role.LEADER, Role.PROMOTING):
            return
        if leader.broker_id == self.me.broker_id:
            return  # elected, or an earlier incarnation of this replica: wait for the order
        if self.role is Role.HOLD and state.version <= self._hold_version:
            return
        if state.epoch > max(self.promised_epoch, self.pending_epoch):
            self._promise(state.epoch, effects)
        if state.epoch <= self.promised_epoch:
            # Also with a higher promise (a fence without an election): the hello makes that leader
            # step down, and a newer epoch is elected. Nothing of an older epoch is accepted.
            self._follow(leader, state.epoch, effects)

    def _follow(self, leader: Ref, epoch: int, effects: list[Effect]) -> None:
        if self.role is not Role.FOLLOWER:
            self.hold_reason = ""
            self._move(Role.FOLLOWER, f"broker {leader.broker_id} leads epoch {epoch}", effects)
        if self.following != (leader, epoch):
            self.following = (leader, epoch)
            effects.append(Follow(leader, epoch))

    def _on_elected(self, event: DirectiveArrived, now_ns: int, effects: list[Effect]) -> None:
        state = self.state
        if state is None or state.leader != self.me:
            return
        if state.epoch < max(self.promised_epoch, self.pending_epoch):
            return
        if self.role is Role.PROMOTING:
            if event.old_leader_is_dead:
                self.proven = True
                self.lease.write_after_ns = now_ns
                self._lead_when_due(now_ns, effects)
            return
        if self.role is Role.LEADER:
            return
        ends_ns = max(self._former_permission_ends_ns(state), now_ns + event.wait_ns)
        self.lease.write_after_ns = now_ns if event.old_leader_is_dead else ends_ns
        self.proven = event.old_leader_is_dead
        self.following = None
        self.promoted = False
        self.epoch = state.epoch
        self.hold_reason = ""
        self._move(Role.PROMOTING, f"elected in epoch {state.epoch}", effects)
        if state.epoch > self.promised_epoch:
            self._promise(state.epoch, effects)
        else:
            effects.append(Promote(state.epoch))

    def _former_permission_ends_ns(self, state: GroupState) -> int:
        """Return the time at which the former leader can surely not write any more (R4)."""
        if not self.heard_ns or not self.lease.is_needed:
            return 0
        # An earlier incarnation of this replica: if it led, its predecessors could not write.
        before = state.epoch - 1
        if self.former == (self.me.broker_id, before) and self.led_epoch == before:
            return 0
        return self.heard_ns + self.lease.lease_ns + self.lease.margin_ns

    # --- promises ---------------------------------------------------------------------------------

    def _promise(self, epoch: int, effects: list[Effect]) -> None:
        if epoch > max(self.pending_epoch, self.promised_epoch):
            self.pending_epoch = epoch
            effects.append(SavePromise(epoch))

    def _on_promise_saved(self, event: PromiseSaved, effects: list[Effect]) -> None:
        self.promised_epoch = max(self.promised_epoch, event.epoch)
        if self.role is Role.PROMOTING:
            if event.epoch == self.epoch:
                effects.append(Promote(self.epoch))
        elif self.state is not None:
            self._follow_state(self.state, effects)

    def _on_higher(self, epoch: int, effects: list[Effect]) -> None:
        """Refuse everything of lower epochs from now on."""
        if epoch > self.epoch and self.role in (Role.LEADER, Role.PROMOTING):
            self._stop_leading(f"epoch {epoch} was seen", effects)
        self._promise(epoch, effects)

    # --- leading ----------------------------------------------------------------------------------

    def _on_promoted(self, event: Promoted, now_ns: int, effects: list[Effect]) -> None:
        if self.role is Role.PROMOTING and event.epoch == self.epoch:
            self.promoted = True
            if not self.proven and self.state is not None:
                # Until now the stream may have delivered frames and returned echoes.
                ends_ns = self._former_permission_ends_ns(self.state)
                self.lease.write_after_ns = max(self.lease.write_after_ns, ends_ns)
            self._lead_when_due(now_ns, effects)

    def _lead_when_due(self, now_ns: int, effects: list[Effect]) -> None:
        if self.promoted and now_ns >= self.lease.write_after_ns:
            self.promoted = False
            self.lapsed_ns = 0
            self._move(Role.LEADER, f"epoch {self.epoch}", effects)
            effects.append(Lead(self.epoch))

    @property
    def may_resume(self) -> bool:
        """Whether it stopped only because its permission expired, and no replica can have led after
        it."""
        state = self.state
        is_newest = max(self.promised_epoch, self.pending_epoch) <= self.epoch
        named = state is not None and state.leader == self.me and state.epoch == self.epoch
        return self.lapsed and is_newest and named

    def _resume(self, reason: str, effects: list[Effect]) -> None:
        """Resume the same epoch, as if the permission had returned just before the step-down."""
        if self.role is not Role.FENCED or not self.may_resume:
            return
        self.proven = True  # the predecessors are gone as before
        self.promoted = False
        self.following = None
        self._move(Role.PROMOTING, f"{reason}: epoch {self.epoch} continues", effects)
        self.lapsed = True
        effects.append(Promote(self.epoch))

    def _on_step_down(self, event: StepDownOrdered, effects: list[Effect]) -> None:
        if self.role in (Role.LEADER, Role.PROMOTING):
            self._stop_leading(event.reason, effects)
        self.lapsed = False  # ordered: it must not resume
        if event.epoch:
            self._promise(event.epoch, effects)

    def _stop_leading(self, reason: str, effects: list[Effect]) -> None:
        was_promoting = self.role is Role.PROMOTING
        self.promoted = False
        self.lapsed_ns = 0
        self.lease.end()
        self._move(Role.FENCED, reason, effects)
        if not was_promoting:
            effects.append(StepDown(reason))

    def _hold(self, reason: str, effects: list[Effect]) -> None:
        if self.role is Role.HOLD or self.role in (Role.LEADER, Role.PROMOTING):
            return
        self.hold_reason = reason
        self.following = None
        self._hold_version = 0 if self.state is None else self.state.version
        self._move(Role.HOLD, reason, effects)
        effects.append(Hold(reason))

    def _on_disk_failed(self, event: DiskFailed, effects: list[Effect]) -> None:
        if self.role in (Role.LEADER, Role.PROMOTING):
            self._stop_leading(event.reason, effects)
        effects.append(Exit(event.reason))

    def _on_tick(self, now_ns: int, effects: list[Effect]) -> None:
        if self.role is Role.PROMOTING:
            self._lead_when_due(now_ns, effects)
        elif self.role is Role.LEADER:
            if self.lease.may_write(now_ns):
                self.lapsed_ns = 0
            elif not self.lapsed_ns:
                self.lapsed_ns = now_ns
            elif now_ns - self.lapsed_ns >= LAPSED_LEASES * self.lease.lease_ns:
                self._stop_leading(
                    "no permission to write: neither controller nor followers answer", effects
                )
                self.lapsed = True

    def _move(self, role: Role, reason: str, effects: list[Effect]) -> None:
        assert role in _MOVES[self.role], (self.role, role)
        self.role = role
        self.lapsed = False
        effects.append(RoleMoved(role, reason))

    def validate(self) -> None:
        """Assert every invariant; tests and the simulation call it after each event."""
        self.lease.validate()
        if self.role in (Role.LEADER, Role.PROMOTING):
            assert self.state is None or self.epoch >= self.state.epoch, (self.epoch, self.state)
        if self.role is Role.LEADER:
            assert self.promised_epoch <= self.epoch or self.pending_epoch <= self.epoch
            assert self.promised_epoch == self.epoch, (self.promised_epoch, self.epoch)
        assert (self.role is Role.HOLD) == bool(self.hold_reason), (self.role, self.hold_reason)
        assert not self.promoted or self.role is Role.PROMOTING
