"""A simulated replica: the shell around the product's cores, from a start to the next crash.

It does what `ha/role/role_driver.py`, `ha/stream/leader.py` and `ha/stream/follower.py` do on real
disks and streams, in the same order, and the oracle checks it after each event. Each start is a new
incarnation: events for an earlier one are lost. A crash can happen between any two effects.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cometmq.ha.core import (
    follower_events,
    hello,
    role_machine,
)
from cometmq.ha.core.epochs import EpochStart
from cometmq.ha.core.group_state import GroupState, Ref
from cometmq.ha.core.leader_resume import LeaderResume
from cometmq.ha.core.pending_isr import Proposals
from cometmq.ha.core.role_machine import Role
from cometmq.tests.sim.disk import Disk
from cometmq.tests.sim.replica import recovery
from cometmq.tests.sim.replica.departure import Departure
from cometmq.tests.sim.replica.follower_shell import FollowerShell
from cometmq.tests.sim.replica.handover import Handover
from cometmq.tests.sim.replica.leader_shell import LeaderShell
from cometmq.tests.sim.replica.link import Link
from cometmq.tests.sim.replica.records import MESSAGE
from cometmq.tests.sim.replica.stream import Stream
from cometmq.tests.sim.scheduler import MS, Clock
from cometmq.tests.sim.settings import LEASE_MS, TICK_MS, jitter

if TYPE_CHECKING:
    from cometmq.tests.sim.world import World


class ProcessDiedError(Exception):
    """A crash was due at this step."""


class Node:
    def __init__(self, world: "World", broker_id: int, rng: random.Random) -> None:
        self.world = world
        self.settings = world.settings
        self.broker_id = broker_id
        self.name = f"b{broker_id}"
        self.uuid = f"u{broker_id}"
        self.rng = rng
        self.disk = Disk()
        self.clock = Clock(world.scheduler, rng.randrange(1, 50_000) * MS)
        self.alive = False
        self.machine_up = True
        self.life = 0
        self.paused_until = 0
        self.boot_id = 1
        self.steps_to_death = 0  #: 0: none is due
        self.dies_without_power = False
        self.touched = False  #: something that the oracle checks may have changed
        self.streams: list[Stream] = []
        self.logical_end: int | None = None  #: end of the log in this incarnation's memory

    # --- start and crash --------------------------------------------------------------------------

    def start(self) -> None:
        if self.alive:
            return
        self.alive = self.machine_up = True
        self.life += 1
        try:
            self._start()
        except ProcessDiedError:
            self.crash(self.dies_without_power)

    def _start(self) -> None:
        files = self.disk.files
        files["incarnation"] = files.get("incarnation", 0) + 1
        self.ref = Ref(self.broker_id, files["incarnation"])
        self.world.scrub(self)
        recovery.run_plan(self)
        recovered = recovery.recover(self)
        self.log_end = self.received_end = recovered.log_end
        self.messages = recovered.messages
        self.flushed_end = min(self.disk.flushed, self.log_end)
        self.flushing = False
        self.promised: int = files.get("promised", 0)
        self.suspect: bool = files.get("suspect", False)
        self.history = recovered.history
        self.confirm_hint = min(self.disk.hints.get("confirm", 0), self.log_end)
        parts = self.world.parts
        lease = parts.lease(LEASE_MS * MS)
        state: GroupState | None = files.get("state")
        self.machine = parts.role_machine(self.ref, lease, self.promised, state)
        if state is not None and state.leader is not None:
            # an earlier incarnation may have received a frame just now
            self.machine.heard_ns = self.now()
            if state.leader.broker_id == self.broker_id:
                self.machine.former = (self.broker_id, state.epoch)
                self.machine.led_epoch = self.history.last_written(self.log_end)
        self.leader: LeaderShell | None = None
        self.kept_proposals: Proposals | None = None
        self.returning = LeaderResume(2 * LEASE_MS * MS)
        self.follower: FollowerShell = FollowerShell(self, self.confirm_hint)
        self.handover = Handover(self)
        self.departure = Departure(self)
        self.link = Link(self)
        self.say("starts end=%d epochs=%s suspect=%s", self.log_end, self.history, self.suspect)
        self.flush_soon()
        self.timer(TICK_MS, self._tick)
        self.timer(200, self._flush_timer)
        if state is not None:
            self.feed(role_machine.StateSeen(state))
        self.world.oracle.started(self)

    def crash(self, without_power: bool) -> None:
        """End the process; without power, the machine's memory is lost too."""
        if not self.alive:
            return
        self.say("%s", "LOSES POWER" if without_power else "is killed")
        self.world.oracle.crashed(self)
        self.alive = False
        self.steps_to_death = self.paused_until = 0
        if without_power:
            self.machine_up = False
            self.disk.lose_power(self.rng)
            self.boot_id += 1
            self.world.oracle.lost_power(self)
        else:
            for stream in self.streams:  # the machine resets them
                if stream.follower is self:
                    stream.end_by_follower()
                else:
                    stream.end_by_leader(False)
        self.streams.clear()

    def reopen(self, plan: dict[str, Any]) -> None:
        """Write the plan, stop, and start again with it."""
        self.disk.files["pending"] = plan
        self.step()
        self.say("ends this life for %s", plan)
        self.alive = False
        for stream in self.streams:
            if stream.follower is self:
                stream.end_by_follower()
            else:
                stream.end_by_leader(False)
        self.streams.clear()
        self.world.oracle.crashed(self)
        self.world.scheduler.after(jitter(self.rng, 30), self.start)

    def step(self) -> None:
        """A point between two effects, at which a crash may happen."""
        if self.steps_to_death:
            self.steps_to_death -= 1
            if not self.steps_to_death:
                raise ProcessDiedError

    # --- time and events --------------------------------------------------------------------------

    def now(self) -> int:
        return self.clock.now()

    def say(self, text: str, *values: object) -> None:
        self.world.say(self.name, text, *values)

    def timer(self, milliseconds: float, action: Callable[[], None]) -> None:
        self.world.scheduler.after(
            jitter(self.rng, milliseconds), self._if_alive, self.life, action, ()
        )

    def later(self, delay_ns: int, action: Callable[..., None], *arguments: Any) -> None:
        self.world.scheduler.after(delay_ns, self._if_alive, self.life, action, arguments)

    def deliver(self, action: Callable[..., None], *arguments: Any) -> None:
        self._if_alive(self.life, action, arguments)

    def _if_alive(self, life: int, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if life != self.life or not self.alive:
            return
        scheduler = self.world.scheduler
        if scheduler.now < self.paused_until:  # stopped: everything waits for it
            scheduler.at(self.paused_until, self._if_alive, life, action, arguments)
            return
        self.touched = True
        try:
            action(*arguments)
        except ProcessDiedError:
            self.crash(self.dies_without_power)

    def _tick(self) -> None:
        self.timer(TICK_MS, self._tick)
        if self.leader is not None:
            self.leader.tick()
        else:
            self.follower.tick()
        self.feed(role_machine.Tick())
        self.link.tick()

    # --- the log ----------------------------------------------------------------------------------

    @property
    def confirm(self) -> int:
        return self.follower.core.confirm if self.leader is None else self.leader.core.confirm

    def append_own(self, record: bytes, kind: int) -> None:
        self.disk.write(self.log_end, record)
        self.log_end += len(record)
        self.received_end = self.log_end
        self.messages += kind == MESSAGE
        self.step()

    def append_raw(self, offset: int, data: bytes) -> None:
        self.disk.write(offset, data)
        self.received_end = offset + len(data)
        whole = recovery.whole_end(self.disk.live, self.log_end, self.received_end)
        self.log_end = whole.log_end
        self.messages += whole.messages
        self.step()

    def flush_soon(self) -> None:
        """One flush at a time; what arrives meanwhile is in the next one."""
        if self.flushing or self.flushed_end >= self.log_end or not self._flushes_now():
            return
        self._begin_flush()

    def _flushes_now(self) -> bool:
        return self.settings.sync_flush or self.machine.role is Role.PROMOTING

    def _begin_flush(self) -> None:
        self.flushing = True
        self.later(self.disk_time_ns(), self._flushed, self.log_end)

    def disk_time_ns(self) -> int:
        return jitter(self.rng, 2) * self.disk.latency_factor

    def _flushed(self, end: int) -> None:
        self.flushing = False
        self.disk.flush(end)
        self.flushed_end = max(self.flushed_end, min(end, self.log_end))
        if self.leader is not None:
            self.leader.flushed()
        else:
            self.follower.flushed()
        if self.promoting_epoch and self.flushed_end >= self.log_end:
            self._promoted()
        self.flush_soon()

    def _flush_timer(self) -> None:
        self.timer(200, self._flush_timer)
        self.disk.keep_hint("confirm", self.confirm)
        if not self.flushing and self.flushed_end < self.log_end:
            self._begin_flush()

    # --- roles ------------------------------------------------------------------------------------

    promoting_epoch = 0

    def feed(self, event: role_machine.Event) -> None:
        for effect in self.machine.on_event(event, self.now()):
            self.step()
            self._execute(effect)

    def _execute(self, effect: role_machine.Effect) -> None:
        match effect:
            case role_machine.SavePromise():
                self.later(self.disk_time_ns(), self._save_promise, effect.epoch)
            case role_machine.SaveState():
                self._save_state(effect.state)
            case role_machine.Promote():
                self._promote(effect.epoch)
            case role_machine.Lead():
                self._lead(effect.epoch)
            case role_machine.StepDown():
                self._step_down(effect.reason)
            case role_machine.Follow():
                self.say("follows %s in epoch %d", effect.leader, effect.epoch)
                self.follower.set_leader(effect.leader)
            case role_machine.Hold():
                self.say("holds: %s", effect.reason)
                self.follower.set_leader(None)
            case role_machine.Reseed():
                self.reseed(effect.reason)
            case role_machine.Exit():
                self.disk.files["suspect"] = True
                raise ProcessDiedError
            case role_machine.RoleMoved():
                self.say("is %s: %s", effect.role.value, effect.reason)
                self.link.reconnect_now()

    def save_promise(self, epoch: int) -> None:
        """Write durably, immediately."""
        if epoch > self.promised:
            self.disk.files["promised"] = self.promised = epoch
            self.step()

    def _save_promise(self, epoch: int) -> None:
        self.save_promise(epoch)
        self.follower.feed(follower_events.Promised(epoch))
        self.feed(role_machine.PromiseSaved(epoch))
        self.link.reconnect_now()

    def _save_state(self, state: GroupState) -> None:
        self.disk.files["state"] = state
        self.step()
        if self.leader is not None:
            self.leader.state_seen(state)

    def _promote(self, epoch: int) -> None:
        self.follower.set_leader(None)
        self.promoting_epoch = epoch
        # A partly received record is dropped.
        self.disk.shrink_tail(self.log_end)
        self.received_end = self.log_end
        if self.flushed_end >= self.log_end:
            self._promoted()
        else:
            self.flush_soon()

    def _promoted(self) -> None:
        epoch, self.promoting_epoch = self.promoting_epoch, 0
        if self.machine.role is not Role.PROMOTING or self.machine.epoch != epoch:
            return
        if self.history.last_epoch < epoch:
            self.assign(epoch, self.log_end)
        self.feed(role_machine.Promoted(epoch))

    def assign(self, epoch: int, start: int) -> None:
        self.history.assign(epoch, start)
        self.save_history()

    def save_history(self) -> None:
        self.disk.files["epochs"] = tuple(self.history.entries)
        self.step()

    def _lead(self, epoch: int) -> None:
        self.set_suspect(False)
        self.world.scrub(self)
        start: EpochStart = self.history.entries[-1]
        confirm = self.confirm
        self.leader = LeaderShell(self, epoch, start.start, confirm)
        self.world.oracle.leads(self)
        if self.machine.state is not None:
            self.leader.state_seen(self.machine.state)
        self.leader.refresh_lease()
        if self.leader is not None:
            self.leader.begin_epoch()
        self.link.reconnect_now()

    def _step_down(self, reason: str) -> None:
        leader, self.leader = self.leader, None
        assert leader is not None
        self.say("steps down: %s", reason)
        leader.step_down()
        self.kept_proposals = leader.core.proposals
        self.follower = FollowerShell(self, leader.core.replicated)
        self.link.reconnect_now()

    def set_suspect(self, suspect: bool) -> None:
        if self.suspect is not suspect:
            self.suspect = suspect
            self.disk.files["suspect"] = suspect
            self.say("suspect: %s", suspect)
            self.step()

    # --- plans for the next start -----------------------------------------------------------------

    def cut(self, to: int, epoch: int, accept_loss: bool) -> None:
        self.disk.keep_hint("confirm", self.confirm)
        self.reopen({"kind": "cut", "to": to, "epoch": epoch, "accept_loss": accept_loss})

    def reseed(self, reason: str) -> None:
        self.reopen({"kind": "reseed", "reason": reason})

    # --- streams ----------------------------------------------------------------------------------

    def on_stream(self, stream: Stream, kind: str, content: tuple[Any, ...]) -> None:
        """Handle the hello of a follower."""
        leader = self.leader
        if kind == "hello":
            self.streams.append(stream)
            if leader is None:
                leader = self._leader_again(content[0])
            if leader is None:
                state = self.machine.state
                stream.to_follower("refused", "NOT_LEADER", "no leader", state)
            else:
                leader.greet(stream, *content)
        elif leader is not None and kind == "ack":
            leader.ack(stream.number, *content)
        elif leader is not None and kind == "nack":
            leader.close(stream.number, "the follower complained")
        elif kind == "ended":
            stream.leader_open = False
            if stream in self.streams:
                self.streams.remove(stream)
            if leader is not None:
                leader.ended(stream.number)

    def _leader_again(self, facts: hello.FollowerFacts) -> LeaderShell | None:
        if self.returning.hello_received(facts, self.machine, self.kept_proposals, self.now()):
            self.feed(role_machine.FollowersReturned())
        return self.leader

    def on_leader_frame(self, stream: Stream, kind: str, content: tuple[Any, ...]) -> None:
        self.follower.frame(stream, kind, content)
