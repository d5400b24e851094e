"""A simulated nameserver: drives `GroupController` over a store that is a file, or a register
shared by three.

The right to decide (`active`) is in a register too, with a time to live: the holder renews it and
counts from its request; others take over when it has not changed for longer than that, or when a
nameserver that stopped cleanly has released it.
"""

import pickle
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cometmq.ha.core.cas_register import Outcome
from cometmq.ha.core.controller import (
    events as heard,
)
from cometmq.ha.core.group_state import GroupState

from .register import Register
from .scheduler import MS, Clock
from .settings import BEAT_MS, LEASE_MS, jitter

if TYPE_CHECKING:
    from cometmq.tests.sim.replica.node import Node

    from .world import World

ACTIVE_TTL_MS = 500


class Nameserver:
    def __init__(self, world: "World", number: int, rng: random.Random) -> None:
        self.world = world
        self.name = f"n{number}"
        self.number = number
        self.rng = rng
        self.clock = Clock(world.scheduler, rng.randrange(1, 50_000) * MS)
        self.alive = False
        self.life = 0
        self.paused_until = 0
        self.disk: dict[str, Any] = {"file": None, "cells": {}}
        self.limits = heard.Limits(LEASE_MS * MS, BEAT_MS * MS)

    # --- start and stop ---------------------------------------------------------------------------

    def start(self) -> None:
        if self.alive:
            return
        self.alive = True
        self.life += 1
        self.sessions: dict[int, tuple[Node, int]] = {}
        self.asked: dict[int, tuple[Node, int, int]] = {}
        self.core = self.world.parts.controller("c", "g", self.limits)
        self.is_alone = self.world.settings.nameservers == 1
        self.register = Register(self)
        self._active_seen: tuple[bytes, int] = (b"", self.now())
        self._active_until = 0
        self._asking = False
        self._was_released = False  #: the right was free when this nameserver took it
        self.say("starts")
        until_ns = heard.FOREVER_NS if self.is_alone else 0
        self.feed(heard.Started(None, self.is_alone, until_ns))
        self._tick()
        if not self.is_alone:
            self._claim()

    def crash(self) -> None:
        if self.alive:
            self.say("is killed")
            self.alive = False

    def stop(self) -> None:
        """Release the right to decide, then end."""
        if not self.alive or self.is_alone or not self.core.active:
            self.crash()
            return
        self.say("stops")
        self._asking = True  # it does not renew
        self._active_until = 0
        self.feed(heard.ActiveChanged(False))

        def change(current: bytes) -> bytes | None:
            return b"" if current.split(b"/")[0].decode() == self.name else None

        self.register.change("active", change, lambda _outcome, _value: self.crash())

    def now(self) -> int:
        return self.clock.now()

    def say(self, text: str, *values: object) -> None:
        self.world.say(self.name, text, *values)

    def later(self, delay_ns: int, action: Callable[..., None], *arguments: Any) -> None:
        self.world.scheduler.after(delay_ns, self._if_alive, self.life, action, arguments)

    def _if_alive(self, life: int, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if life != self.life or not self.alive:
            return
        scheduler = self.world.scheduler
        if scheduler.now < self.paused_until:
            scheduler.at(self.paused_until, self._if_alive, life, action, arguments)
            return
        action(*arguments)

    def _tick(self) -> None:
        self.later(jitter(self.rng, 50), self._tick)
        if self.core.active and not self.is_alone and self.now() >= self._active_until:
            self.say("decides no longer")
            self.feed(heard.ActiveChanged(False))
        self.feed(heard.Tick(wall_ms=self.world.scheduler.now // MS))

    # --- activity ---------------------------------------------------------------------------------

    def _claim(self) -> None:
        """Take or renew the right to decide."""
        self.later(jitter(self.rng, 120), self._claim)
        if self._asking:
            return
        asked_at = self.now()
        seen, since = self._active_seen
        may_take = asked_at - since > (ACTIVE_TTL_MS + ACTIVE_TTL_MS // 10) * MS
        self._asking = True

        def change(current: bytes) -> bytes | None:
            holder = current.split(b"/")[0].decode()
            if holder != self.name:
                self._was_released = not holder
            if holder in ("", self.name) or (may_take and current == seen):
                return f"{self.name}/{self.life}/{asked_at}".encode()
            return None

        def done(outcome: Outcome, value: bytes) -> None:
            self._asking = False
            if outcome is not Outcome.TAKEN:
                return
            if value != self._active_seen[0]:
                self._active_seen = (value, self.now())
            if value == f"{self.name}/{self.life}/{asked_at}".encode():
                self._active_until = asked_at + ACTIVE_TTL_MS * MS
                if self.core.active:
                    self.feed(heard.ClaimRenewed(self._active_until))
                elif self.now() < self._active_until:
                    self.say("decides")
                    are_over = not self._was_released
                    self.feed(heard.ActiveChanged(True, self._active_until, are_over))

        self.register.change("active", change, done)

    # --- requests ---------------------------------------------------------------------------------

    def heartbeat(self, session: int, node: "Node", life: int, heartbeat: heard.Heartbeat) -> None:
        self._if_alive(self.life, self._on_heartbeat, (session, node, life, heartbeat))

    def _on_heartbeat(
        self, session: int, node: "Node", life: int, heartbeat: heard.Heartbeat
    ) -> None:
        self.sessions[session] = (node, life)
        self.feed(heard.HeartbeatArrived(session, heartbeat))

    def proposal(self, node: "Node", life: int, proposal: heard.AlterIsr) -> None:
        self._if_alive(self.life, self._on_proposal, (node, life, proposal))

    def _on_proposal(self, node: "Node", life: int, proposal: heard.AlterIsr) -> None:
        self.asked[proposal.request] = (node, life, proposal.proposal_seq)
        self.feed(proposal)

    def exited(self, node: "Node", incarnation: int) -> None:
        if self.alive:
            self.feed(heard.ProcessExited(node.broker_id, node.uuid, incarnation))

    # --- effects ----------------------------------------------------------------------------------

    def feed(self, event: heard.Event) -> None:
        for effect in self.core.on_event(event, self.now()):
            match effect:
                case heard.ReadState():
                    self._read()
                case heard.CompareAndSet():
                    self._compare_and_set(effect)
                case heard.Direct():
                    self._send(effect.session, "directive", effect)
                case heard.Refuse():
                    self._send(effect.session, "refused", effect.reason)
                case heard.ProposalAnswer():
                    self._answer(effect)
                case heard.StateChanged():
                    if self.world.oracle.committed(effect.new):
                        self.say("v%d: %s", effect.new.version, effect.why)
                        self.world.oracle.steps_aside += "quorum" in effect.why
                case heard.OperationAnswer():
                    self.say("operator: %s %s", effect.outcome.value, effect.message)
                case heard.LogEvent():
                    self.say("%s %s", effect.event, effect.detail)

    def _send(self, session: int, method: str, content: object) -> None:
        if session not in self.sessions:
            return
        node, life = self.sessions[session]

        def arrive() -> None:
            if node.alive and node.life == life:
                node.deliver(getattr(node.link, method), self.name, session, content)

        self.world.network.datagram((self.name, node.name), arrive)

    def _answer(self, effect: heard.ProposalAnswer) -> None:
        if effect.request not in self.asked:
            return
        node, life, seq = self.asked[effect.request]

        def arrive() -> None:
            if node.alive and node.life == life:
                node.deliver(node.link.answered, seq, effect)

        self.world.network.datagram((self.name, node.name), arrive)

    # --- the store --------------------------------------------------------------------------------

    def _read(self) -> None:
        def done(outcome: Outcome, value: bytes) -> None:
            if outcome is Outcome.TAKEN:
                state = pickle.loads(value) if value else GroupState("c", "g")
                self.feed(heard.StateRead(state))
            else:
                self.feed(heard.StateRead(None))

        self.register.change("group", lambda _current: None, done)

    def _compare_and_set(self, effect: heard.CompareAndSet) -> None:
        wanted = pickle.dumps(effect.state)

        def change(current: bytes) -> bytes | None:
            version = pickle.loads(current).version if current else 0
            return wanted if version == effect.expected_version else None

        def done(outcome: Outcome, value: bytes) -> None:
            if outcome is not Outcome.TAKEN:
                self.feed(heard.CasDone(effect.ticket, False, None))
                return
            state = pickle.loads(value) if value else GroupState("c", "g")
            accepted = value == wanted
            self.feed(heard.CasDone(effect.ticket, accepted, state))

        self.register.change("group", change, done)
