"""The simulated replica's sessions with its controllers, as in `ha/role/controller_link.py`."""

from typing import TYPE_CHECKING

from cometmq.ha.core import (
    in_sync,
    role_machine,
)
from cometmq.ha.core.controller import (
    events as heard,
)
from cometmq.ha.core.group_state import GroupState, Policy
from cometmq.ha.core.role_machine import Role
from cometmq.tests.sim.scheduler import MS
from cometmq.tests.sim.settings import BEAT_MS

if TYPE_CHECKING:
    from cometmq.tests.sim.replica.node import Node

_ORDERS = {order.name: order for order in role_machine.Order}


class Link:
    def __init__(self, node: "Node") -> None:
        self.node = node
        self._seq = 0
        self._sent: dict[int, int] = {}
        self._sessions: dict[str, int] = {}
        self._answered_ns: dict[str, int] = {}
        self._hurried = False
        self.active = ""  #: the nameserver that last reported itself active
        for nameserver in node.world.nameservers:
            self._open(nameserver.name)
        self._beat_timer()

    def _open(self, name: str) -> None:
        self._sessions[name] = self.node.world.new_number()
        self._answered_ns[name] = self.node.now()

    def _beat_timer(self) -> None:
        self.node.timer(BEAT_MS, self._beat_timer)
        for name in sorted(self._sessions):
            if self.node.now() - self._answered_ns[name] > 4 * BEAT_MS * MS:
                self._open(name)
        self._heartbeat()

    def reconnect_now(self) -> None:
        if not self._hurried:
            self._hurried = True
            self.node.later(MS, self._heartbeat)

    def tick(self) -> None:
        pass

    def _heartbeat(self) -> None:
        self._hurried = False
        node = self.node
        self._seq += 1
        now = node.now()
        self._sent[self._seq] = now
        self._sent.pop(self._seq - 64, None)
        follower = node.follower
        age = now - follower.heard_ns if follower.heard_ns and node.leader is None else -1
        settings = node.settings
        heartbeat = heard.Heartbeat(
            broker_id=node.broker_id,
            replica_uuid=node.uuid,
            incarnation=node.ref.incarnation,
            seq=self._seq,
            sent_ns=now,
            leads=node.machine.role is Role.LEADER or node.machine.may_resume,
            promised_epoch=node.promised,
            last_epoch=node.history.last_epoch,
            log_end=node.log_end,
            flushed_end=node.flushed_end,
            confirm=node.confirm,
            suspect=node.suspect,
            heard_epoch=follower.core.epoch if age >= 0 else 0,
            heard_age_ns=age,
            known=node.machine.state,
            policy=Policy(settings.is_sync, settings.sync_flush, settings.min_in_sync),
            log_is_empty=node.log_end == 0,
            drained=node.handover.drained,
            no_room=node.handover.no_room,
            leaving=node.departure.leaving,
            leader_refused=follower.refused and node.leader is None,
            lacks_quorum=node.leader is not None and node.leader.core.lacks_quorum,
        )
        for nameserver in node.world.nameservers:
            session = self._sessions[nameserver.name]
            node.world.network.datagram(
                (node.name, nameserver.name),
                nameserver.heartbeat,
                session,
                node,
                node.life,
                heartbeat,
            )

    # --- returned frames --------------------------------------------------------------------------

    def directive(self, name: str, session: int, event: heard.Direct) -> None:
        node = self.node
        if self._sessions.get(name) != session:
            return
        self._answered_ns[name] = node.now()
        if event.active:
            self.active = name
            if event.lease_for_seq and event.lease_for_seq in self._sent:
                sent_ns = self._sent[event.lease_for_seq]
                node.feed(role_machine.LeaseRenewed(sent_ns, event.lease_ms * MS))
        state: GroupState | None = event.state if event.state.version else None
        order = _ORDERS[event.order.name] if event.active else role_machine.Order.NONE
        dead = event.old_leader_is_dead and event.active
        if order is role_machine.Order.STEP_DOWN and node.leader is not None:
            node.feed(role_machine.DirectiveArrived(state))
            node.handover.begin(event)
            return
        wait_ns = event.wait_ms * MS
        node.feed(role_machine.DirectiveArrived(state, order, dead, event.detail, wait_ns))

    def refused(self, name: str, session: int, reason: str) -> None:
        if self._sessions.get(name) == session:
            self.node.say("is refused by %s: %s", name, reason)
            self._open(name)

    # --- proposals --------------------------------------------------------------------------------

    def propose(self, effect: in_sync.ProposeIsr) -> None:
        node, world = self.node, self.node.world
        proposal = heard.AlterIsr(
            request=world.new_number(),
            leader=node.ref,
            epoch=node.machine.epoch,
            state_version=effect.version,
            proposal_seq=effect.seq,
            members=effect.members,
            confirm=effect.confirm,
        )
        for nameserver in world.nameservers:
            world.network.datagram(
                (node.name, nameserver.name), nameserver.proposal, node, node.life, proposal
            )

    def answered(self, seq: int, answer: heard.ProposalAnswer) -> None:
        node = self.node
        if not answer.decided:
            return
        if answer.state.version:
            node.feed(role_machine.StateSeen(answer.state))
        if node.leader is not None:
            node.leader.feed(in_sync.IsrAnswered(seq, answer.accepted, answer.state))
            if node.leader is not None:
                node.leader.refresh_lease()
