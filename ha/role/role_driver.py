"""Role driver: executes the effects of the role machine, and owns the leader or follower side.

Exactly one side exists at any time: the leader's while `role` is LEADER, otherwise the follower's,
which keeps the confirm offset even without a leader. Everything runs on the broker's event loop.
Effects are executed in order, and each step that must be durable is durable before the next. Bytes
of the log are never changed here: a cut is a plan for the next start (`rejoin/pending.py`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from google.protobuf.message import DecodeError

from ...proto import v1
from ..core import (
    role_machine as core,
)
from ..core.departure import has_left
from ..core.follower_events import State
from ..core.group_state import NO_ADDRESSES, Addresses, GroupState, Member, Policy, Ref
from ..core.in_sync_events import ProposeIsr
from ..core.pending_isr import Proposals
from ..core.role_machine import Role
from ..core.static_state import live_state
from ..events import STATE, ReplicationEvents
from ..state.replica import Replica
from ..stream import frames
from ..stream.follower import FollowerSide
from ..stream.leader import LeaderSide
from .epoch_start import begin_epoch, wait_drained
from .factories import make_follower, make_leader
from .first_role import first_role
from .plan_writer import PlanWriter

logger = logging.getLogger(__name__)

_LEAVE_POLL_S = 0.005
#: Longest wait of a replica that has left for the confirmation of what it received: a round trip.
_CONFIRM_WAIT_NS = 500_000_000


class RoleReports(Protocol):
    """Where the role driver reports to: the link to the controller, if there is one."""

    def changed(self) -> None:
        """Something changed that the controller should receive soon."""

    def proposed(self, proposal: ProposeIsr) -> None:
        """The leader side proposes another in-sync set."""


class RoleDriver:
    def __init__(
        self,
        replica: Replica,
        events: ReplicationEvents,
        reports: RoleReports,
        *,
        registers: bool = False,
    ) -> None:
        """`registers`: this replica registers with nameservers."""
        self._registers = registers
        self.replica = replica
        self.events = events
        self.reports = reports
        self.is_static = not replica.config.enable_controller_mode
        self.leader: LeaderSide | None = None
        self.follower: FollowerSide | None = None
        self.draining = False
        self.drained = False  #: stepped down as ordered, and the next leader has everything
        self.leaving = False  #: this process stops
        self._departed = False  #: the group does not count on it any more
        self.counts = replica.counts
        self.proposals: Proposals | None = None  #: of the last time as leader
        self._addresses = NO_ADDRESSES  #: of this replica
        #: The state of a static group, and its bytes for the followers.
        self._encoded: tuple[GroupState, bytes] | None = None
        self._started = False
        self._effects: deque[core.Effect] = deque()
        self._running = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.plans = PlanWriter(replica, events)
        self.machine = first_role(replica)
        if self.machine.role is Role.LEADER:
            self.leader = self._new_leader(self.machine.epoch, replica.positions.confirm)
        else:
            self.follower = make_follower(replica, events, self, replica.positions.confirm)

    # --- start and stop ---------------------------------------------------------------------------

    def start(self) -> None:
        self._started = True
        if self.follower is not None:
            self.follower.start()
        state = self.machine.state
        if state is not None and self.leader is None:
            # The last known leader may be alive while no controller is.
            self.feed(core.StateSeen(state))

    async def stop(self) -> None:
        """Stop all decisions; streams get a goodbye."""
        self._started = False
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.follower is not None:
            await self.follower.stop()
        if self.leader is not None:
            self.leader.send_goodbye()

    # --- hot path ---------------------------------------------------------------------------------

    @property
    def local_ok(self) -> int:
        """No answer OK of this replica was for a byte above this offset."""
        before = self.replica.positions.local_ok
        if self.leader is None:
            return before
        answered = self.leader.core.confirm
        if self.policy.sync_flush:
            answered = min(answered, self.replica.log.flushed_offset)
        return max(before, answered)

    def permission_refusal(self) -> str | None:
        """Return why the lease forbids a write now (R4), or None. Usually one clock read and a
        comparison."""
        lease = self.machine.lease
        now_ns = self.replica.steady_ns()
        if lease.may_write(now_ns) and self.machine.role is Role.LEADER:
            return None
        self.refresh_lease()
        if self.machine.may_write(now_ns):
            return None
        self.counts["writes_without_permission"] += 1
        return (
            "this leader had no answer from the controller or its followers for "
            f"{self.replica.config.controller_lease_ms} ms: another leader may have been "
            "elected"
        )

    # --- events -----------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        return self.machine.role

    def feed(self, event: core.Event) -> None:
        self._effects.extend(self.machine.on_event(event, self.replica.steady_ns()))
        if self._running:
            return  # the running loop continues with these effects
        self._running = True
        try:
            while self._effects:
                self._execute(self._effects.popleft())
        finally:
            self._running = False

    def directive(self, event: core.DirectiveArrived) -> None:
        """Handle a directive of the active controller. A planned step-down drains first."""
        if self.follower is not None:
            heard = core.LeaderHeard(self.follower.core.epoch, self.follower.frame_ns)
            self.feed(heard)
        if event.order is core.Order.STEP_DOWN and self.role is Role.LEADER:
            self.feed(core.DirectiveArrived(event.state))
            if not self.draining and self.role is Role.LEADER:
                self._spawn(self._drain_and_step_down(event))
            return
        self.feed(event)

    def tick(self, now_ns: int) -> None:
        if self.leader is not None:
            self.leader.tick(now_ns)
            self.refresh_lease()
        elif self.follower is not None:
            self.follower.tick(now_ns)
        self.feed(core.Tick())

    def refresh_lease(self) -> None:
        """Renew the lease from the followers' echoes (R4)."""
        if self.leader is not None and not self.is_static:
            members = self.leader.core
            self.feed(core.PeerEcho(members.oldest_echo_ns, members.is_alone))

    # --- effects ----------------------------------------------------------------------------------

    def _execute(self, effect: core.Effect) -> None:
        match effect:
            case core.SavePromise():
                self._save_promise(effect.epoch)
            case core.SaveState():
                self._save_state(effect.state)
            case core.Promote():
                self._spawn(self._promote(effect.epoch))
            case core.Lead():
                self._lead(effect.epoch)
            case core.StepDown():
                self._step_down(effect.reason)
            case core.Follow():
                self._follow(effect)
            case core.Hold():
                self._hold(effect.reason)
            case core.Reseed():
                self.reseed(effect.reason)
            case core.Exit():
                self._exit(effect.reason)
            case core.RoleMoved():
                logger.info("ha.role role=%s reason=%s", effect.role.value, effect.reason)
                self.counts[f"role_{effect.role.value}"] += 1
                self.events.role_changed()
                self.reports.changed()

    def _save_promise(self, epoch: int) -> None:
        try:
            self.replica.promise(epoch)
        except OSError as error:
            self._effects.extend(
                self.machine.on_event(core.DiskFailed(f"the promise was not saved: {error}"), 0)
            )
            return
        logger.info("ha.promised epoch=%d", epoch)
        if self.follower is not None:
            self.follower.promised(epoch)
        self._effects.extend(
            self.machine.on_event(core.PromiseSaved(epoch), self.replica.steady_ns())
        )
        self.reports.changed()

    def _save_state(self, state: GroupState) -> None:
        try:
            self.replica.save_state(state)
        except OSError as error:
            # Not the source of truth: the next version retries, and the controller has it.
            logger.warning("ha.state.not_saved version=%d error=%s", state.version, error)
        if self.leader is not None:
            self.leader.state_seen(state)
        elif self._departed:
            pass  # the leader would count it again
        elif self.follower is not None and self.machine.following is not None:
            self.follower.set_leader(self._address_of_leader())
            self.follower.reconnect_now()
        self.events.role_changed()

    def _address_of_leader(self) -> str:
        state = self.machine.state
        if state is None or state.leader is None:
            return ""
        member = state.member(state.leader.broker_id)
        return "" if member is None else member.addresses.ha

    def _follow(self, effect: core.Follow) -> None:
        if self._departed:
            return
        if self.follower is None or self.follower.stopped:
            self._make_new_follower()
        assert self.follower is not None
        self.replica.epoch = max(self.replica.epoch, effect.epoch)
        self.drained = False
        self.follower.set_leader(self._address_of_leader())
        self.follower.reconnect_now()

    def _make_new_follower(self, confirm: int | None = None) -> None:
        if confirm is None:
            confirm = self.confirm
        self.follower = make_follower(self.replica, self.events, self, confirm)
        self.leader = None
        if self.leaving:
            self.follower.leave()
        if self._started:
            self.follower.start()

    async def _promote(self, epoch: int) -> None:
        def is_wanted() -> bool:
            return self.role is Role.PROMOTING and self.machine.epoch == epoch

        if not is_wanted():
            return  # another epoch began in the same turn, and the follower is needed again
        if self.follower is not None:
            await self.follower.stop()
        failure = await begin_epoch(self.replica, epoch, is_wanted)
        self.feed(core.Promoted(epoch) if failure is None else core.DiskFailed(failure))

    def _lead(self, epoch: int) -> None:
        replica = self.replica
        try:
            replica.meta.set_suspect(False)  # its data is the group's data now
        except OSError as error:
            self.feed(core.DiskFailed(f"the suspect mark could not be removed: {error}"))
            return
        replica.epoch = epoch
        self.leader = self._new_leader(epoch, self.confirm)
        self.follower = None
        self.draining = self.drained = False
        if self.machine.state is not None:
            self.leader.state_seen(self.machine.state)
        self.membership_changed()
        logger.info("ha.leads epoch=%d end=%d confirm=%d", epoch, replica.log.log_end, self.confirm)
        self.events.promoted(epoch)
        self.reports.changed()

    def _step_down(self, reason: str) -> None:
        leader = self.leader
        assert leader is not None
        logger.warning("ha.stepped_down epoch=%d reason=%s", self.machine.epoch, reason)
        self.replica.positions.save(leader.core.replicated, self.local_ok)
        self.proposals = leader.core.proposals
        leader.step_down(self._address_of_leader())
        self.events.stepped_down(reason)
        # Only now, when nothing is appended any more. The group has not confirmed what only an
        # asynchronous leader has: a cut may remove it.
        self._make_new_follower(leader.core.replicated)
        self.draining = False
        self.reports.changed()

    def _hold(self, reason: str) -> None:
        logger.error(
            "ha.hold reason=%s. Nothing was changed; an operator decides: cometmq ha "
            "status, then cometmq ha force-elect or cometmq ha reseed",
            reason,
        )
        if self.follower is not None:
            self.follower.set_leader("")
        self.reports.changed()

    def _exit(self, reason: str) -> None:
        logger.error("ha.disk_failed reason=%s", reason)
        try:
            self.replica.meta.set_suspect(True)
        except OSError as error:
            logger.error("ha.suspect.not_saved error=%s", error)
        self.events.disk_failed(reason)

    # --- plans for the next start -----------------------------------------------------------------

    def cut(self, to: int, epoch: int, reason: str, leader: str, *, accept_loss: bool) -> None:
        """Plan a cut of everything from `to` on, which is archived first."""
        self._before_reopening()
        self.plans.cut(to, epoch, reason, leader, accept_loss=accept_loss)

    def reseed(self, reason: str) -> None:
        """Plan to move all data aside and copy it again."""
        self._before_reopening()
        self.plans.reseed(reason)

    def _before_reopening(self) -> None:
        if self.follower is not None:
            self.follower.set_leader("")
        self.replica.positions.save(self.confirm, self.local_ok)

    def unreported_cuts(self) -> list[v1.CutDone]:
        return self.plans.unreported_cuts()

    def may_reseed(self) -> bool:
        """Return whether the group's state counts this replica neither in sync nor eligible."""
        state = self.machine.state
        if self.is_static or state is None:
            return False
        if self.follower is not None and self.follower.core.state is State.IN_SYNC:
            return False
        mine = self.replica.identity.broker_id
        return state.in_sync_ref(mine) is None and state.eligible_ref(mine) is None

    # --- calls of the follower side ---------------------------------------------------------------

    def promise(self, epoch: int) -> None:
        """Save the promise for a leader that accepted this follower: durable on return."""
        self.feed(core.HigherEpochSeen(epoch))

    def state_seen(self, state: GroupState) -> None:
        self.feed(core.StateSeen(state))

    def hold(self, reason: str) -> None:
        self.feed(core.HoldNeeded(reason))

    def leader_refused(self) -> None:
        self.reports.changed()

    def suspect_cleared(self) -> None:
        try:
            self.replica.meta.set_suspect(False)
        except OSError as error:
            self.feed(core.DiskFailed(f"the suspect mark could not be removed: {error}"))
            return
        logger.info("ha.suspect.cleared end=%d", self.replica.log.log_end)
        self.reports.changed()

    # --- departure --------------------------------------------------------------------------------

    async def leave(self, seconds: float, is_decided: Callable[[], bool]) -> bool:
        """Leave the in-sync set, and hand over first if this replica leads.

        Returns whether that is done; False after `seconds`, or while `is_decided` returns that no
        controller decides. A static leader cannot hand over. A follower ends its stream then.
        """
        deadline_ns = self.replica.steady_ns() + int(seconds * 1e9)
        self.leaving = True
        self.reports.changed()
        if self.follower is not None:
            self.follower.leave()
        while not self._has_left():
            is_over = self.replica.steady_ns() >= deadline_ns
            if is_over or not (self.is_static or is_decided()):
                return False
            await asyncio.sleep(_LEAVE_POLL_S)
        self._departed = True
        if self.follower is not None:
            await self._await_confirm(self.follower, deadline_ns)
        return True

    def _has_left(self) -> bool:
        if not self.is_static:
            return has_left(self.machine)
        return self.follower is None or self.follower.core.state is not State.IN_SYNC

    async def _await_confirm(self, side: FollowerSide, deadline_ns: int) -> None:
        """Wait until everything received is confirmed, then end the stream."""
        side.freeze()
        end_ns = min(deadline_ns, self.replica.steady_ns() + _CONFIRM_WAIT_NS)
        core = side.core
        while core.leader_alive and core.confirm < core.log_end:
            if self.replica.steady_ns() >= end_ns:
                break
            await asyncio.sleep(_LEAVE_POLL_S)
        side.set_leader("")

    # --- planned step-down ------------------------------------------------------------------------

    async def _drain_and_step_down(self, event: core.DirectiveArrived) -> None:
        complete = await self.drain(event.drain_ns / 1e9, event.next)
        self.feed(core.StepDownOrdered(0, event.detail or "ordered by the controller"))
        self.drained = complete
        self.reports.changed()

    async def drain(self, seconds: float, successor: Ref | None = None) -> bool:
        """Refuse writes and wait until the in-sync followers, or at least `successor`, have
        everything.

        Returns whether they have.
        """
        self.draining = True
        self.events.draining(True)
        await asyncio.sleep(0)  # appends of this turn are in the log now
        side = self.leader
        return side is None or await wait_drained(
            side, seconds, successor, lambda: self.leader is side
        )

    def end_drain(self) -> None:
        self.draining = False
        self.events.draining(False)

    def _spawn(self, coroutine: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("ha.role.failed", exc_info=task.exception())

    # --- sides ------------------------------------------------------------------------------------

    @property
    def confirm(self) -> int:
        if self.leader is not None:
            return self.leader.core.confirm
        assert self.follower is not None
        return self.follower.core.confirm

    @property
    def policy(self) -> Policy:
        """The meaning of an OK, from the group's state or, without one, the configuration.

        The configuration of a static master decides, because an operator may have changed it. A
        promoted slave takes the policy from the state: its own `brokerRole=SLAVE` states none.
        """
        config, state = self.replica.config, self.machine.state
        if state is not None and not (self.is_static and config.is_leader):
            return state.policy
        return Policy(config.is_sync, self.replica.sync_flush, config.min_in_sync_replicas)

    def _new_leader(self, epoch: int, confirm: int) -> LeaderSide:
        return make_leader(
            self.replica,
            self.events,
            self,
            self.policy,
            epoch=epoch,
            confirm=confirm,
            decides_alone=self.is_static,
            registers=self._registers,
            proposals=self.proposals,
        )

    def propose(self, proposal: ProposeIsr) -> None:
        """Send a proposal of the leader side to the controller."""
        self.reports.proposed(proposal)

    # --- state beside the log -------------------------------------------------------------------

    def state_beside(self, kind: str) -> bytes | None:
        """Return state of this kind to send to followers; None: there is none."""
        return self.live_set() if kind == STATE else self.events.state_beside(kind)

    def state_arrived(self, kind: str, payload: bytes) -> None:
        """Merge state of another replica."""
        if kind == STATE:
            self.live_set_arrived(payload)
        else:
            self.events.state_arrived(kind, payload)

    # --- the live in-sync set of a static group -------------------------------------------------

    def announce(self, addresses: Addresses) -> None:
        """Set the addresses of this replica; a static leader stores them in the group's state."""
        self._addresses = addresses
        self._store_live_set()

    def membership_changed(self) -> None:
        """Renew what depends on the members: the lease, and a static group's state."""
        self.refresh_lease()
        self._store_live_set()

    def registered_set(self) -> v1.InSyncSet | None:
        """Return the in-sync set that a static leader registers with the nameservers."""
        leader, meta = self.leader, self.replica.meta
        if not self.is_static or leader is None:
            return None
        followers = {uuid for _, uuid in leader.core.in_sync_followers()}
        return v1.InSyncSet(
            epoch=self.machine.epoch,
            leader_uuid=meta.replica_uuid,
            incarnation=meta.incarnation,
            revision=leader.core.revision,
            replica_uuids=sorted({meta.replica_uuid, *followers}),
        )

    def _store_live_set(self) -> None:
        """Static leader: store the live in-sync set, before anything is confirmed that a former
        member lacks."""
        leader, known, replica = self.leader, self.machine.state, self.replica
        if not self.is_static or leader is None or known is None:
            return
        uuid, addresses = replica.meta.replica_uuid, self._addresses
        if addresses == NO_ADDRESSES:  # it still starts; its broker id may be new
            stored = (member.addresses for member in known.members if member.replica_uuid == uuid)
            addresses = next(stored, NO_ADDRESSES)
        own = Member(replica.ref.broker_id, uuid, addresses)
        state = live_state(
            known,
            self.machine.epoch,
            replica.ref,
            own,
            leader.core.in_sync_followers(),
            policy=self.policy,
        )
        if state is known:
            return
        try:
            replica.save_state(state)
        except OSError as error:
            self.feed(core.DiskFailed(f"the in-sync set was not saved: {error}"))
            return
        self.machine.state = state
        in_sync = [str(ref) for ref in state.in_sync]
        logger.info("ha.in_sync.stored version=%d in_sync=%s", state.version, in_sync)

    def live_set(self) -> bytes | None:
        """Return the encoded state of a static group for its followers; None without one."""
        state = self.machine.state
        if not self.is_static or state is None:
            return None
        if self._encoded is None or self._encoded[0] is not state:
            self._encoded = state, frames.state_bytes(state)
        return self._encoded[1]

    def live_set_arrived(self, payload: bytes) -> None:
        """Adopt the state that the leader of a static group sent."""
        try:
            state = frames.state_of(payload)
        except DecodeError as error:
            logger.warning("ha.state.refused reason=%s", error)
            return
        if self.is_static and state is not None and state.leader is not None:
            self.feed(core.StateSeen(state))
