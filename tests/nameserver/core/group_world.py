"""A small world around two group controllers: one store, brokers that follow directives, explicit
time.

Brokers are modelled by what the controller sees of them: a log end, an epoch, a role. A byte is
confirmed when every incarnation in the effective in-sync set has it, as a real leader counts; so
"confirmed and not in the elected leader's log" is a loss. Every compare-and-set is checked before
it is applied.
"""

import random
from dataclasses import dataclass, field

from cometmq.ha.core.controller.events import (
    ActiveChanged,
    AlterIsr,
    CasDone,
    CompareAndSet,
    Direct,
    Effect,
    Event,
    Heartbeat,
    HeartbeatArrived,
    Limits,
    OperationAnswer,
    Order,
    ProcessExited,
    ProposalAnswer,
    ReadState,
    RefusalCode,
    Refuse,
    SessionClosed,
    Started,
    StateRead,
    Tick,
)
from cometmq.ha.core.controller.group_controller import GroupController
from cometmq.ha.core.group_state import Addresses, GroupState, Policy, Ref

MS = 1_000_000
LIMITS = Limits(lease_ns=600 * MS, heartbeat_ns=100 * MS)


@dataclass
class Broker:
    """One replica; the content of its disk survives `crash`."""

    broker_id: int
    uuid: str
    incarnation: int = 1
    up: bool = True
    log: list[tuple[int, int]] = field(default_factory=list)  #: (epoch, number), one per unit
    confirm: int = 0
    promised: int = 0
    known: GroupState | None = None
    suspect: bool = False
    leads: bool = False
    stepping: Ref | None = None
    seq: int = 0
    proposal_seq: int = 0
    proposed: frozenset[Ref] = frozenset()
    lease_until_ns: int = -1
    heard_epoch: int = 0
    heard_ns: int = -1
    drained: bool = False
    links: set[int] = field(default_factory=lambda: {0, 1})  #: reachable controllers

    @property
    def ref(self) -> Ref:
        return Ref(self.broker_id, self.incarnation)

    @property
    def last_epoch(self) -> int:
        return self.log[-1][0] if self.log else 0

    def heartbeat(self, now_ns: int, policy: Policy) -> Heartbeat:
        self.seq += 1
        age = now_ns - self.heard_ns if self.heard_ns >= 0 else -1
        return Heartbeat(
            self.broker_id,
            self.uuid,
            self.incarnation,
            seq=self.seq,
            sent_ns=now_ns,
            leads=self.leads,
            addresses=Addresses(f"b{self.broker_id}:{self.incarnation}"),
            promised_epoch=self.promised,
            last_epoch=self.last_epoch,
            log_end=len(self.log),
            flushed_end=len(self.log),
            confirm=self.confirm,
            suspect=self.suspect,
            heard_epoch=self.heard_epoch,
            heard_age_ns=age,
            known=self.known,
            policy=policy,
            log_is_empty=not self.log,
            drained=self.drained,
        )


class World:
    """Drives everything from one seed."""

    def __init__(self, seed: int, replicas: int = 3, policy: Policy | None = None) -> None:
        self.rng = random.Random(seed)
        self.policy = policy or Policy(sync=True, min_in_sync=1)
        self.now_ns = 1_000_000 * MS
        self.store = GroupState("c", "g")
        self.history: list[GroupState] = []
        self.brokers = [Broker(i, f"disk{i}") for i in range(replicas)]
        self.controllers: list[GroupController] = []
        self.writes: list[tuple[int, CompareAndSet]] = []  #: in flight to the store
        self.refused_finally: set[tuple[int, int, int]] = set()
        self.confirmed: list[tuple[int, int]] = []
        self.number = 0
        self.answers: list[OperationAnswer] = []
        self.proposals: list[tuple[int, AlterIsr]] = []
        self.requests: dict[int, AlterIsr] = {}
        self.forced = False
        for index in range(2):
            self.controllers.append(GroupController("c", "g", LIMITS))
            self.tell(index, Started(None, active=index == 0))

    # --- controllers ------------------------------------------------------------------------------

    def tell(self, index: int, event: Event) -> None:
        for effect in self.controllers[index].on_event(event, self.now_ns):
            self._do(index, effect)

    def _do(self, index: int, effect: Effect) -> None:
        match effect:
            case CompareAndSet():
                effect.state.validate()
                assert sum(1 for i, _ in self.writes if i == index) == 0, "two changes at once"
                self.writes.append((index, effect))
            case ReadState():
                self.tell(index, StateRead(self.store))
            case Direct():
                self._obey(effect)
            case ProposalAnswer():
                self._proposal_answered(effect)
            case OperationAnswer():
                self.answers.append(effect)
            case Refuse():
                assert effect.code is RefusalCode.STALE, effect

    def finish_write(self, *, lost: float = 0.0) -> None:
        if not self.writes:
            return
        index, write = self.writes.pop(self.rng.randrange(len(self.writes)))
        fate = self.rng.random()
        if fate < lost / 2:
            self.tell(index, CasDone(write.ticket, False, None))
            return
        ok = write.expected_version == self.store.version
        if ok:
            self._check(self.store, write.state)
            self.store = write.state
            self.history.append(write.state)
        if fate < lost:
            self.tell(index, CasDone(write.ticket, False, None))
            return
        self.tell(index, CasDone(write.ticket, ok, self.store))

    def _check(self, old: GroupState, new: GroupState) -> None:
        if not old.is_new:
            new.assert_follows(old)
        if new.epoch > old.epoch and not old.is_new:
            leader = new.leader
            assert leader is not None
            broker = self.brokers[leader.broker_id]
            if not self.forced:
                same_life = broker.up and broker.incarnation == leader.incarnation
                assert not (broker.suspect and same_life)
                seats = {ref.broker_id for ref in (*old.in_sync, *old.eligible)}
                assert leader.broker_id in seats, (old, new)
                if same_life and new.policy.sync:
                    missing = set(self.confirmed) - set(broker.log)
                    assert not missing, f"elected {leader} lacks {sorted(missing)[:3]}"

    # --- brokers ----------------------------------------------------------------------------------

    def _obey(self, order: Direct) -> None:
        broker = self.brokers[order.broker_id]
        state = order.state
        if not broker.up or state.is_new:
            return
        if broker.known is None or state.version > broker.known.version:
            broker.known = state
            broker.proposed = frozenset()
        if order.lease_for_seq:
            assert state.leader is not None and state.leader.broker_id == broker.broker_id
            assert order.active
        if order.order is Order.PROMOTE:
            self._promote(broker, state)
        elif order.order is Order.STEP_DOWN:
            if broker.leads:
                broker.leads = False
                broker.drained = order.next is not None and self._copy_to(broker, order.next)
        elif order.order is Order.FOLLOW and state.epoch >= broker.promised:
            broker.promised = max(broker.promised, state.epoch)
            broker.leads = False

    def _promote(self, broker: Broker, state: GroupState) -> None:
        if state.leader != broker.ref or state.epoch <= broker.promised:
            return
        broker.promised = state.epoch
        broker.leads = True
        broker.suspect = False
        broker.drained = False
        self.number += 1
        broker.log.append((state.epoch, self.number))

    def _copy_to(self, leader: Broker, target: Ref) -> bool:
        other = self.brokers[target.broker_id]
        return self.replicate(leader, other)

    def session(self, broker: Broker, index: int) -> int:
        return 1 + index * 1000 + broker.broker_id * 100 + broker.incarnation

    def replicate(self, leader: Broker, follower: Broker) -> bool:
        """Let the follower take over the leader's log (cut, then copy), completely."""
        if not (leader.up and follower.up) or leader is follower:
            return False
        if leader.last_epoch < follower.promised or not leader.log:
            return False
        follower.promised = leader.last_epoch
        follower.leads = False
        follower.log = list(leader.log)
        if len(follower.log) >= leader.confirm:
            follower.suspect = False
        follower.heard_epoch = leader.last_epoch
        follower.heard_ns = self.now_ns
        return True

    def write(self, leader: Broker) -> None:
        """Append a message, and update the leader's confirm offset."""
        if not leader.leads or not leader.up or leader.promised != leader.last_epoch:
            return
        self.number += 1
        leader.log.append((leader.last_epoch, self.number))
        self.confirm(leader)

    def confirm(self, leader: Broker) -> None:
        known = leader.known
        if known is None or known.leader != leader.ref or not leader.leads:
            return
        if known.epoch != leader.last_epoch or len(known.in_sync) < known.policy.min_in_sync:
            return
        end = len(leader.log)
        for ref in {*known.in_sync, *leader.proposed}:
            peer = self.brokers[ref.broker_id]
            same = peer.incarnation == ref.incarnation and peer.up
            if ref != leader.ref and (not same or peer.promised != leader.last_epoch):
                return
            common = 0
            for mine, theirs in zip(leader.log, peer.log, strict=False):
                if mine != theirs:
                    break
                common += 1
            end = min(end, common)
        if end > leader.confirm:
            leader.confirm = end
            if known.policy.sync:
                self.confirmed = list(dict.fromkeys([*self.confirmed, *leader.log[:end]]))

    def propose(self, leader: Broker, index: int) -> None:
        known = leader.known
        if not (leader.up and leader.leads and known is not None and known.leader == leader.ref):
            return
        # As the real leader: it removes only disconnected members, and adds only those with all
        # data.
        members = {leader.ref}
        for peer in self.brokers:
            if peer is leader:
                continue
            ref = known.in_sync_ref(peer.broker_id)
            joined = (
                peer.up
                and peer.promised == leader.last_epoch
                and peer.log == leader.log[: len(peer.log)]
                and len(peer.log) >= leader.confirm
                and peer.last_epoch == leader.last_epoch
            )
            if joined:
                members.add(peer.ref)
            elif ref is not None and peer.up and ref == peer.ref and self.rng.random() < 0.5:
                members.add(ref)
        leader.proposal_seq = max(leader.proposal_seq, known.last_proposal_seq) + 1
        leader.proposed |= frozenset(members)
        request = AlterIsr(
            self.rng.randrange(1 << 40),
            leader.ref,
            known.epoch,
            known.version,
            leader.proposal_seq,
            tuple(sorted(members)),
            leader.confirm,
        )
        self.requests[request.request] = request
        self.proposals.append((index, request))

    def _proposal_answered(self, answer: ProposalAnswer) -> None:
        request = self.requests[answer.request]
        key = (request.epoch, request.state_version, request.proposal_seq)
        if answer.accepted:
            assert answer.decided
            assert key not in self.refused_finally, "a late copy of a refused proposal was accepted"
        elif answer.decided:
            self.refused_finally.add(key)
            moved = answer.state.version > request.state_version
            assert moved or answer.state.leader != request.leader

    def exited(self, broker: Broker) -> None:
        for index in broker.links:
            self.tell(index, ProcessExited(broker.broker_id, broker.uuid, broker.incarnation))

    def crash(self, broker: Broker, *, power: bool) -> None:
        broker.up = False
        broker.leads = False
        if power and len(broker.log) > 0:
            keep = self.rng.randrange(len(broker.log) + 1)
            broker.log = broker.log[:keep]
            broker.suspect = True
            broker.confirm = min(broker.confirm, keep)

    def restart(self, broker: Broker) -> None:
        broker.up = True
        broker.incarnation += 1
        broker.seq = 0
        broker.heard_ns = -1
        broker.proposed = frozenset()
        broker.drained = False

    def heartbeat(self, broker: Broker, index: int) -> None:
        if broker.up and index in broker.links:
            session = self.session(broker, index)
            heartbeat = broker.heartbeat(self.now_ns, self.policy)
            self.tell(index, HeartbeatArrived(session, heartbeat))

    def calm(self, rounds: int = 60) -> None:
        """End all faults: everything is reachable."""
        self.tell(1, ActiveChanged(False))
        self.tell(0, ActiveChanged(True))
        for broker in self.brokers:
            broker.links = {0, 1}
            if not broker.up:
                self.restart(broker)
        for _ in range(rounds):
            self.now_ns += 50 * MS
            for index in (0, 1):
                self.tell(index, Tick(wall_ms=5))
            while self.writes:
                self.finish_write()
            for broker in self.brokers:
                for index in (0, 1):
                    self.heartbeat(broker, index)
            while self.writes:
                self.finish_write()
            for leader in self.brokers:
                if leader.leads:
                    for follower in self.brokers:
                        self.replicate(leader, follower)
                    self.confirm(leader)
                    self.propose(leader, 0)
            while self.proposals:
                index, request = self.proposals.pop()
                self.tell(index, request)
                while self.writes:
                    self.finish_write()


def close(world: World, broker: Broker, index: int) -> None:
    """Break the session's stream."""
    world.tell(index, SessionClosed(world.session(broker, index)))
