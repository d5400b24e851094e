"""Leader side: feeds the in-sync set and runs one session for each follower.

It drives `core/in_sync.py`: it turns frames and the log's growth into events and executes the
effects. Membership and the confirm offset are decided there, `sender.py` sends. Everything runs on
the broker's event loop; an invalid frame ends only its own stream.
"""

import logging
from typing import Protocol

from ...proto import v1
from ..config import MAX_FOLLOWERS
from ..core import hello, in_sync
from ..core.group_state import GroupState
from ..events import ReplicationEvents
from ..members import MemberStatus
from ..state.replica import Replica
from . import frames
from .incoming import IncomingStream
from .sender import Session

logger = logging.getLogger(__name__)


class LeaderContext(Protocol):
    """The part of the role driver that the leader side calls."""

    def propose(self, proposal: in_sync.ProposeIsr) -> None:
        """Send a proposal to the controller."""

    def membership_changed(self) -> None:
        """The permission to write (R4) may have changed."""

    def state_arrived(self, kind: str, payload: bytes) -> None:
        """Merge state that a follower kept while it had no leader."""


class LeaderSide:
    def __init__(
        self,
        replica: Replica,
        core: in_sync.InSyncSet,
        events: ReplicationEvents,
        owner: LeaderContext,
    ) -> None:
        self.replica = replica
        self.core = core
        self.events = events
        self._owner = owner
        self._sessions: dict[int, Session] = {}
        self._next_number = 1
        self._meta: dict[str, tuple[int, bytes]] = {}  #: newest payload of each kind
        self._nacks: dict[int, str] = {}  #: last NACK of each follower, to log it once
        self._heartbeat_ns = replica.config.ha_beat_interval_ms * 1_000_000
        self._leading = True

    # --- events from the engine -------------------------------------------------------------------

    @property
    def confirm(self) -> int:
        return self.core.confirm

    def appended(self) -> bool:
        """Send new bytes of the log; returns whether the confirm offset moved."""
        effects = self.core.on_event(in_sync.Appended(self.replica.log.log_end), 0)
        for session in self._sessions.values():
            session.wake()
        return bool(effects)  # an append has no other effect

    def flushed(self) -> None:
        self._run(self.core.on_event(in_sync.Flushed(self.replica.log.flushed_offset), 0))

    def tick(self, now_ns: int) -> None:
        self._run(self.core.on_event(in_sync.Tick(), now_ns))
        confirm = self.core.confirm
        for session in self._sessions.values():
            if session.confirm_sent != confirm or now_ns - session.written_ns >= self._heartbeat_ns:
                session.request_heartbeat()

    def set_registered(self, revision: int) -> None:
        """A majority of the nameservers has this revision of the in-sync set."""
        self._run(self.core.on_event(in_sync.SetRegistered(revision), 0))

    def send_meta(self, kind: str, version: int, payload: bytes) -> None:
        """Send changed state beside the log; a follower that joins later gets it first."""
        self._meta[kind] = (version, payload)
        for session in self._sessions.values():
            session.send_meta(kind, version, payload)

    def send_goodbye(self) -> None:
        frame = frames.bye(v1.SHUTDOWN)
        for session in self._sessions.values():
            session.send_goodbye(frame)

    def step_down(self, hint_leader: str) -> None:
        """Ignore everything that still arrives on the streams."""
        self._leading = False
        frame = frames.bye(v1.STEPDOWN, hint_leader)
        for session in self._sessions.values():
            session.send_goodbye(frame, at_once=True)

    def state_seen(self, state: GroupState) -> None:
        """Adopt a group state, which names the in-sync members unless this leader decides alone."""
        self._run(self.core.on_event(in_sync.StateSeen(state), self.replica.steady_ns()))
        self._owner.membership_changed()

    def proposal_answered(self, seq: int, state: GroupState | None, *, accepted: bool) -> None:
        event = in_sync.IsrAnswered(seq, accepted, state)
        self._run(self.core.on_event(event, self.replica.steady_ns()))
        self._owner.membership_changed()

    # --- calls of sessions ------------------------------------------------------------------------

    def is_in_sync(self, broker_id: int) -> bool:
        member = self.core.members.get(broker_id)
        return member is not None and member.state is in_sync.MemberState.IN_SYNC

    def on_ack(
        self, session: Session, written_end: int, flushed_end: int, echo_ns: int, *, leaving: bool
    ) -> None:
        event = in_sync.Acked(
            session.number, written_end, flushed_end, session.sent_end, echo_ns, leaving
        )
        self._run(self.core.on_event(event, self.replica.steady_ns()))

    def on_meta(self, kind: int, payload: bytes) -> None:
        """Merge state that a follower kept while it had no leader."""
        self._owner.state_arrived(frames.kind_name(kind), payload)

    def on_cut_done(self, session: Session, done: v1.CutDone) -> None:
        logger.warning(
            "ha.follower.cut broker_id=%d epoch=%d start=%d end=%d messages=%d archive=%s",
            session.broker_id,
            done.epoch,
            done.archived.start,
            done.archived.end,
            done.archived.messages,
            done.archived.file_id,
        )

    def on_nack(self, session: Session, nack: v1.Nack) -> None:
        self.replica.counts[frames.nack_name(nack.code)] += 1
        if self._nacks.get(session.broker_id) == nack.detail:
            return
        self._nacks[session.broker_id] = nack.detail
        logger.warning(
            "ha.follower.nack broker_id=%d code=%s offset=%d detail=%s",
            session.broker_id,
            frames.nack_name(nack.code),
            nack.offset,
            nack.detail,
        )

    def _run(self, effects: list[in_sync.Effect]) -> None:
        if not self._leading:
            return
        for effect in effects:
            match effect:
                case in_sync.ProposeIsr():
                    logger.info(
                        "ha.isr.proposed seq=%d version=%d members=%s",
                        effect.seq,
                        effect.version,
                        [str(ref) for ref in effect.members],
                    )
                    self._owner.membership_changed()
                    self._owner.propose(effect)
                case in_sync.ConfirmMoved():
                    self._send_confirm()  # first, so that it is sent before the answers
                    self.events.confirm_moved()
                case in_sync.MemberJoined():
                    logger.info("ha.member.joined broker_id=%d", effect.broker_id)
                    self.replica.counts["member_joined"] += 1
                    self._nacks.pop(effect.broker_id, None)
                    self._send_heartbeat_to(effect.broker_id)
                    self._owner.membership_changed()
                    self.events.members_changed()
                case in_sync.MemberLeft():
                    logger.warning(
                        "ha.member.left broker_id=%d reason=%s in_sync=%d",
                        effect.broker_id,
                        effect.reason,
                        self.core.in_sync_count,
                    )
                    self.replica.counts["member_left"] += 1
                    self._owner.membership_changed()
                    self.events.members_changed()
                    self._send_heartbeat_to(effect.broker_id)
                case in_sync.CloseSession():
                    closing = self._sessions.get(effect.session)
                    if closing is not None:
                        closing.close(effect.reason)

    def _send_confirm(self) -> None:
        """Send the confirm offset before an OK: a follower that serves alone later must show the
        message.

        If more bytes wait to be sent, the next chunk carries it.
        """
        log_end = self.replica.log.log_end
        for session in self._sessions.values():
            if session.sent_end >= log_end:
                session.request_heartbeat()

    def _send_heartbeat_to(self, broker_id: int) -> None:
        for session in self._sessions.values():
            if session.broker_id == broker_id:
                session.request_heartbeat()

    # --- streams ----------------------------------------------------------------------------------

    def holders(self) -> dict[int, hello.Holder]:
        """Return the connected broker ids with the replica on each stream."""
        members = self.core.members
        return {
            session.broker_id: hello.Holder(
                members[session.broker_id].replica_uuid, members[session.broker_id].incarnation
            )
            for session in self._sessions.values()
        }

    def has_free_slot(self, broker_id: int) -> bool:
        members = self.core.members
        return broker_id in members or len(members) < MAX_FOLLOWERS

    async def serve(
        self, stream: IncomingStream, greeting: v1.Hello, verdict: hello.Accept
    ) -> None:
        """Run the stream of an accepted follower until it ends."""
        session = self._open(stream, greeting, verdict)
        try:
            for kind, (version, payload) in self._meta.items():
                session.send_meta(kind, version, payload)
            await stream.write(self.reply(verdict))
            await session.run()
        finally:
            del self._sessions[session.number]
            event = in_sync.SessionClosed(session.number)
            self._run(self.core.on_event(event, self.replica.steady_ns()))
            logger.info(
                "ha.session.closed broker_id=%d reason=%s", greeting.broker_id, session.reason
            )

    def _open(self, stream: IncomingStream, greeting: v1.Hello, verdict: hello.Accept) -> Session:
        number, self._next_number = self._next_number, self._next_number + 1
        session = Session(self, stream, number, greeting.broker_id, verdict.start_offset)
        stream.receiver = self._sessions[number] = session
        event = in_sync.SessionOpened(
            number,
            greeting.broker_id,
            greeting.replica_uuid,
            greeting.incarnation,
            greeting.log_end,
            greeting.flushed_end,
            greeting.learner,
            greeting.suspect,
        )
        self._run(self.core.on_event(event, self.replica.steady_ns()))
        self._owner.membership_changed()  # an in-sync follower may have a new incarnation
        logger.info(
            "ha.session.opened broker_id=%d peer=%s start=%d end=%d",
            greeting.broker_id,
            stream.peer,
            verdict.start_offset,
            self.replica.log.log_end,
        )
        return session

    def reply(self, verdict: hello.Accept | hello.CutTo) -> bytes:
        """Return the accepting reply from `start_offset`, or the order to cut."""
        replica = self.replica
        crc = replica.log.log_crc(verdict.verify_from, verdict.verify_to)
        cut = verdict.cut if isinstance(verdict, hello.CutTo) else 0
        start = verdict.cut if isinstance(verdict, hello.CutTo) else verdict.start_offset
        reply = v1.HelloReply(
            epoch=replica.epoch,
            leader_id=replica.identity.broker_id,
            leader_uuid=replica.meta.replica_uuid,
            accept=True,
            cut_to=cut,
            start_offset=start,
            epochs=frames.epoch_points(replica.history),
            confirm=self.core.confirm,
            log_start=replica.log.log_start,
            verify=v1.RangeCheck(start=verdict.verify_from, end=verdict.verify_to, crc32=crc),
            group_state=frames.state_bytes(replica.state),
            accept_loss=not self.core.limits.is_sync
            or (replica.state is not None and replica.state.accept_loss),
        )
        return v1.LeaderFrame(hello_reply=reply).SerializeToString()

    # --- statistics -------------------------------------------------------------------------------

    def members(self, now_ns: int) -> list[MemberStatus]:
        log_end = self.replica.log.log_end
        rows = []
        for member in sorted(self.core.members.values(), key=lambda row: row.broker_id):
            lag_bytes = max(0, log_end - member.written_end)
            caught_up = lag_bytes == 0 and member.session != 0
            rows.append(
                MemberStatus(
                    broker_id=member.broker_id,
                    replica_uuid=member.replica_uuid,
                    incarnation=member.incarnation,
                    role="follower",
                    state=member.state.value,
                    connected=member.session != 0,
                    in_sync=member.state is in_sync.MemberState.IN_SYNC,
                    log_end=member.written_end,
                    flushed_end=member.flushed_end,
                    lag_bytes=lag_bytes,
                    behind_ms=0 if caught_up else (now_ns - member.caught_up_ns) // 1_000_000,
                )
            )
        return rows
