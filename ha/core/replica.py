"""The role of one replica: who it is told to be, and the order in which it becomes it.

Roles and their moves (`_MOVES`; HA note, section 6.7):

    FOLLOWER    takes bytes from the leader that the group's state names, or waits for one
    PROMOTING   elected: the promise is being saved, the log flushed, the epoch assigned; then it waits until the
                former leader can no longer write
    LEADER      takes writes while its lease says so (`lease.py`)
    FENCED      led, and does not any more: takes nothing until a leader is named. Who stopped for nothing but want of
                permission leads on in the same epoch, through PROMOTING, when it may be had again (`may_resume`)
    HOLD        must not follow (it would cut what was confirmed) and was not elected: an operator decides

Promises: the promised epoch never goes back, and it is on the disk (`SavePromise` -> `PromiseSaved`) before
anything is done or acknowledged in that epoch (I1); it leads an epoch only if the group's state names this
*incarnation* and nothing newer was promised (I2); after a promotion it takes no write before the former
leader's permission has ended, unless that one is proved dead; a state of a lower version changes nothing.

A *static* replica has no controller: its epoch is what its files say, its lease never ends, and orders come
from an operator's script as the same events.
"""

from dataclasses import dataclass, field

from .group_state import GroupState, Ref
from .lease import Lease
from .replica_events import (
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
#: A leader without permission for this many leases steps down, so that whoever waits gets an answer.
LAPSED_LEASES = 2


@dataclass(slots=True)
class RoleMachine:
    me: Ref
    lease: Lease
    promised_epoch: int  #: durable
    state: GroupState | None = None  #: the newest that is known
    role: Role = Role.FOLLOWER
    epoch: int = 0  #: that we lead, or led last; 0: none in this life
    following: tuple[Ref, int] | None = None  #: leader and epoch of the last Follow
    pending_epoch: int = 0  #: a promise that is on its way to the disk
    promoted: bool = False  #: PROMOTING: everything is done but the waiting
    heard_ns: int = 0  #: last frame of another leader; after a restart, the start: an older life may have heard it
    former: tuple[int, int] | None = (
        None  #: broker id and epoch of the newest leader before the state's
    )
    led_epoch: int = 0  #: newest epoch of which our log had bytes when this life began
    proven: bool = False  #: PROMOTING: the former leader is dead, there is nothing to wait for
    lapsed_ns: int = 0  #: LEADER: since when it may not write; 0: it may
    lapsed: bool = False  #: FENCED for nothing but want of permission, or PROMOTING after it
    hold_reason: str = ""
    _hold_version: int = field(default=0)

    def on_event(self, event: Event, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case LeaseRenewed():
                self.lease.renewed(event.sent_ns, event.lease_ns)
                if self.lease.may_write(now_ns):
                    self._resume("a controller answers", effects)
            case FollowersReturned():
                self._resume("the followers are back", effects)
            case PeerEcho():
                self.lease.peers_echoed(event.oldest_ns, alone=event.alone)
            case LeaderHeard():
                self.heard_ns = max(self.heard_ns, event.heard_ns)
            case DirectiveArrived():
                self._on_directive(event, now_ns, effects)
            case StateSeen():
                self._see(event.state, now_ns, effects)
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

    # --- what the controller says -----------------------------------------------------------------

    def _on_directive(self, event: DirectiveArrived, now_ns: int, effects: list[Effect]) -> None:
        if event.state is not None:
            if self.state is not None and event.state.version < self.state.version:
                return  # an order that stands on an old state
            self._see(event.state, now_ns, effects)
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
                pass  # the state says whom

    def _see(self, state: GroupState, now_ns: int, effects: list[Effect]) -> None:
        if self.state is None or state.version > self.state.version:
            if self.state is not None and self.state.leader is not None:
                self.former = (self.state.leader.broker_id, self.state.epoch)
            self.state = state
            effects.append(SaveState(state))
        elif state != self.state:
            return
        if self.role in (Role.LEADER, Role.PROMOTING):
            if state.epoch > self.epoch:
                self._lose(f"epoch {state.epoch} has begun", effects)
            elif state.epoch == self.epoch and state.leader != self.me:
                self._lose(f"the group's state of version {state.version} names another", effects)
        self._follow_state(state, effects)

    def _follow_state(self, state: GroupState, effects: list[Effect]) -> None:
        leader = state.leader
        if leader is None or self.role in (Role.LEADER, Role.PROMOTING):
            return
        if leader.broker_id == self.me.broker_id:
            return  # elected, or an older life of ours: an order will say
        if self.role is Role.HOLD and state.version <= self._hold_version:
            return
        if state.epoch > max(self.promised_epoch, self.pending_epoch):
            self._promise(state.epoch, effects)
        if state.epoch <= self.promised_epoch:
            # Also when more was promised (a fence without an election): our hello tells that leader, which steps
            # down, and somebody is elected for a newer epoch. Nothing of an older one is taken.
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
        self.lease.write_after_ns = (
            now_ns if event.old_leader_is_dead else self._former_permission_ends_ns(state)
        )
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
        """When the former leader can surely not write any more, by what it heard from us (R4)."""
        if not self.heard_ns or not self.lease.is_needed:
            return 0
        # An older life of ours, which this one has replaced: if it led, those before it could not write.
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
        """Nothing of a lower epoch is taken any more."""
        if epoch > self.epoch and self.role in (Role.LEADER, Role.PROMOTING):
            self._lose(f"epoch {epoch} was seen", effects)
        self._promise(epoch, effects)

    # --- leading ----------------------------------------------------------------------------------

    def _on_promoted(self, event: Promoted, now_ns: int, effects: list[Effect]) -> None:
        if self.role is Role.PROMOTING and event.epoch == self.epoch:
            self.promoted = True
            if not self.proven and self.state is not None:
                # Until now its stream may have brought frames, and taken echoes back.
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
        """It stopped for nothing but want of permission, and nobody can have led after it."""
        state = self.state
        is_newest = max(self.promised_epoch, self.pending_epoch) <= self.epoch
        named = state is not None and state.leader == self.me and state.epoch == self.epoch
        return self.lapsed and is_newest and named

    def _resume(self, reason: str, effects: list[Effect]) -> None:
        """Lead on in the same epoch: like a leader whose permission came back a moment before it gave up."""
        if self.role is not Role.FENCED or not self.may_resume:
            return
        self.proven = True  # those before it are as gone as they were
        self.promoted = False
        self.following = None
        self._move(Role.PROMOTING, f"{reason}: epoch {self.epoch} goes on", effects)
        self.lapsed = True
        effects.append(Promote(self.epoch))

    def _on_step_down(self, event: StepDownOrdered, effects: list[Effect]) -> None:
        if self.role in (Role.LEADER, Role.PROMOTING):
            self._lose(event.reason, effects)
        self.lapsed = False  # by order: it stays so
        if event.epoch:
            self._promise(event.epoch, effects)

    def _lose(self, reason: str, effects: list[Effect]) -> None:
        was_promoting = self.role is Role.PROMOTING
        self.promoted = False
        self.lapsed_ns = 0
        self.lease.ended()
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
            self._lose(event.reason, effects)
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
                self._lose(
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
