"""The leader's side of a simulated replica: drives `InSyncSet` and `hello.decide`.

It mirrors `ha/stream/leader.py` and `ha/stream/sender.py`. One object for each time that the
replica leads. Sessions read the log on the simulated disk; a chunk never crosses an epoch's
boundary and carries its label.
"""

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.ha.core import (
    hello,
    in_sync,
    role_machine,
)
from cometmq.ha.core.group_state import GroupState
from cometmq.tests.sim.replica.records import EPOCH_START, MESSAGE, build
from cometmq.tests.sim.replica.stream import Stream
from cometmq.tests.sim.settings import (
    CHUNK_BYTES,
    DEAD_AFTER_NS,
    HA_BEAT_NS,
    LAG_LIMIT_NS,
    PROPOSAL_RETRY_NS,
    SEGMENT_BYTES,
    SEND_TIMEOUT_NS,
    WINDOW_BYTES,
)

if TYPE_CHECKING:
    from cometmq.tests.sim.replica.node import Node


@dataclass(slots=True)
class Session:
    number: int
    broker_id: int
    stream: Stream
    sent_end: int
    received_end: int
    written_ns: int
    confirm_sent: int = -1
    request_heartbeat: bool = True


@dataclass(slots=True)
class Waiting:
    """A write that was appended and not answered yet."""

    identity: int
    end: int
    due_ns: int


class LeaderShell:
    def __init__(self, node: "Node", epoch: int, epoch_start: int, confirm: int) -> None:
        self.node = node
        self.epoch = epoch
        settings = node.settings
        assert node.machine.state is not None
        limits = in_sync.Limits(
            is_sync=settings.is_sync,
            counts_flushed=settings.sync_flush,
            min_in_sync=node.machine.state.policy.min_in_sync,
            lag_limit_ns=LAG_LIMIT_NS,
            join_lag_bytes=CHUNK_BYTES,
            dead_after_ns=DEAD_AFTER_NS,
            decides_alone=False,
            proposal_retry_ns=PROPOSAL_RETRY_NS,
        )
        kept = node.kept_proposals
        if kept is None or (kept.me, kept.epoch) != (node.ref, epoch):
            kept = node.world.parts.proposals(node.ref, epoch, PROPOSAL_RETRY_NS)
        self.core = node.world.parts.in_sync(
            limits,
            node.log_end,
            node.flushed_end,
            confirm,
            me=node.ref,
            epoch=epoch,
            epoch_start=epoch_start,
            proposals=kept,
        )
        self.sessions: dict[int, Session] = {}
        self.waiting: list[Waiting] = []
        node.handover.over()

    # --- events -----------------------------------------------------------------------------------

    def feed(self, event: in_sync.Event) -> None:
        node = self.node
        effects = self.core.on_event(event, node.now())
        if any(isinstance(effect, in_sync.ConfirmMoved) for effect in effects):
            node.world.oracle.confirm_moved(node, self)
        for effect in effects:
            node.step()
            match effect:
                case in_sync.ConfirmMoved():
                    self._answer_writes()
                    for session in self.sessions.values():
                        if session.sent_end >= node.log_end:
                            session.request_heartbeat = True
                            self.pump(session)
                case in_sync.MemberJoined() | in_sync.MemberLeft():
                    node.say("member %s", effect)
                    self.refresh_lease()
                    for session in self.sessions.values():
                        if session.broker_id == effect.broker_id:
                            session.request_heartbeat = True
                            self.pump(session)
                case in_sync.CloseSession():
                    self.close(effect.session, effect.reason)
                case in_sync.ProposeIsr():
                    node.say("proposes %s", effect)
                    # before the controller can receive it, even if a crash follows
                    self.refresh_lease()
                    node.link.propose(effect)
        node.touched = True

    def refresh_lease(self) -> None:
        core = self.core
        self.node.feed(role_machine.PeerEcho(core.oldest_echo_ns, core.is_alone))

    def tick(self) -> None:
        node = self.node
        now = node.now()
        self.feed(in_sync.Tick())
        for session in list(self.sessions.values()):
            if session.confirm_sent != self.core.confirm or now - session.written_ns >= HA_BEAT_NS:
                session.request_heartbeat = True
                self.pump(session)
        overdue = [w for w in self.waiting if now >= w.due_ns]
        if overdue:
            self.waiting = [w for w in self.waiting if now < w.due_ns]
        self.refresh_lease()

    def state_seen(self, state: GroupState) -> None:
        self.feed(in_sync.StateSeen(state))
        self.refresh_lease()

    # --- writes -----------------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        self._append(EPOCH_START, self.epoch, 8)

    def write(self, identity: int, body_bytes: int) -> bool:
        """Append one message of a client; returns False if it was refused."""
        node = self.node
        now = node.now()
        if not node.machine.may_write(now):
            self.refresh_lease()
        if not node.machine.may_write(now) or self.core.refusal is not None:
            return False
        if not node.handover.takes_writes:
            return False
        self._append(MESSAGE, identity, body_bytes)
        if node.leader is self:
            self.waiting.append(Waiting(identity, node.log_end, now + SEND_TIMEOUT_NS))
            self._answer_writes()
        return True

    def _append(self, kind: int, identity: int, body_bytes: int) -> None:
        node = self.node
        node.append_own(build(kind, identity, node.messages, body_bytes), kind)
        self.feed(in_sync.Appended(node.log_end))
        node.flush_soon()
        for session in list(self.sessions.values()):
            self.pump(session)

    def _answer_writes(self) -> None:
        """Answer OK to every write that is confirmed (R1)."""
        node, settings = self.node, self.node.settings
        if not self.waiting:
            return
        if not node.machine.may_write(node.now()):
            return
        reached = self.core.confirm
        if settings.sync_flush:
            reached = min(reached, node.flushed_end)
        while self.waiting and self.waiting[0].end <= reached:
            if self.core.refusal is not None:
                return
            node.world.oracle.answered_ok(node, self, self.waiting.pop(0))

    def flushed(self) -> None:
        self.feed(in_sync.Flushed(self.node.flushed_end))
        self._answer_writes()

    # --- streams ----------------------------------------------------------------------------------

    def greet(self, stream: Stream, facts: hello.FollowerFacts, flushed_end: int) -> None:
        node = self.node
        verdict = node.world.parts.decide(facts, self._facts())
        state = node.machine.state
        if isinstance(verdict, hello.Reject):
            node.say("refuses %d: %s", facts.broker_id, verdict.sentence)
            stream.to_follower("refused", verdict.code.value, verdict.sentence, state)
            if verdict.code is hello.RejectCode.NEWER_EPOCH_SEEN:
                newer = max(facts.promised_epoch, facts.last_epoch)
                node.feed(role_machine.HigherEpochSeen(newer))
            return
        crc = zlib.crc32(node.disk.live[verdict.verify_from : verdict.verify_to])
        verify = (verdict.verify_from, verdict.verify_to, crc)
        if isinstance(verdict, hello.CutTo):
            stream.to_follower("cut", self.epoch, verdict.cut, verify, self.core.confirm, state)
            return
        start = verdict.start_offset
        session = Session(stream.number, facts.broker_id, stream, start, start, node.now())
        self.sessions[stream.number] = session
        self.feed(
            in_sync.SessionOpened(
                stream.number,
                facts.broker_id,
                facts.replica_uuid,
                facts.incarnation,
                facts.log_end,
                flushed_end,
                facts.learner,
                facts.suspect,
            )
        )
        if stream.number in self.sessions:
            stream.to_follower("accepted", self.epoch, start, verify, self.core.confirm, state)
            self.pump(session)

    def _facts(self) -> hello.LeaderFacts:
        node = self.node
        state = node.machine.state
        members = self.core.members
        holders = {
            s.broker_id: hello.Holder(
                members[s.broker_id].replica_uuid, members[s.broker_id].incarnation
            )
            for s in self.sessions.values()
        }
        return hello.LeaderFacts(
            is_leader=True,
            cluster="c",
            group="g",
            broker_id=node.broker_id,
            epoch=self.epoch,
            segment_size=SEGMENT_BYTES,
            log_start=0,
            log_end=node.log_end,
            holders=holders,
            promised_epoch=node.promised,
            epochs=node.history,
            is_sync=node.settings.is_sync,
            accept_loss=state is not None and state.accept_loss,
        )

    def pump(self, session: Session) -> None:
        """Send the available bytes."""
        node, core = self.node, self.core
        while session.number in self.sessions:
            if session.request_heartbeat:
                session.request_heartbeat = False
                self._written(session)
                member = core.members[session.broker_id]
                counted = member.state is in_sync.MemberState.IN_SYNC
                stamp = node.now()
                session.stream.to_follower(
                    "beat", self.epoch, node.log_end, core.confirm, counted, stamp
                )
                continue
            under_way = session.sent_end - session.received_end
            if session.sent_end >= node.log_end or under_way + CHUNK_BYTES > WINDOW_BYTES:
                return
            self._send_chunk(session)

    def _send_chunk(self, session: Session) -> None:
        node = self.node
        start = session.sent_end
        end = min(node.log_end, start + CHUNK_BYTES)
        boundary = node.history.next_start(start)
        if boundary is not None:
            end = min(end, boundary)
        label = node.history.epoch_at(start)
        data = bytes(node.disk.live[start:end])
        session.sent_end = end
        self._written(session)
        crc = zlib.crc32(data)
        data = node.world.faults.on_the_wire(data)
        frame = (label.epoch, label.start, start, data, crc, self.core.confirm, node.now())
        session.stream.to_follower("chunk", *frame)

    def _written(self, session: Session) -> None:
        session.written_ns = self.node.now()
        session.confirm_sent = self.core.confirm

    def ack(self, number: int, ends: tuple[int, int, int], echo_ns: int, leaving: bool) -> None:
        written, flushed, received = ends
        session = self.sessions.get(number)
        if session is None:
            return
        session.received_end = received
        self.feed(in_sync.Acked(number, written, flushed, session.sent_end, echo_ns, leaving))
        if number in self.sessions:
            self.pump(session)

    def close(self, number: int, reason: str) -> None:
        """End a stream from this side."""
        session = self.sessions.get(number)
        if session is not None:
            session.stream.end_by_leader(False, reason)
            self.ended(number)

    def ended(self, number: int) -> None:
        if self.sessions.pop(number, None) is not None:
            self.feed(in_sync.SessionClosed(number))

    def step_down(self) -> None:
        """Answer waiting writes "unknown"; later frames do not count."""
        self.waiting.clear()
        for session in list(self.sessions.values()):
            session.stream.end_by_leader(True, "steps down")
        self.sessions.clear()
