"""What the leader believes of its followers: who is in sync, and the confirm offset.

Promise (HA note, rules R1 and R2, invariant I5): the replicated end never goes back, never passes the
leader's own end, and never passes what a member of the in-sync set has acknowledged, both counted at
the group's flush level (flushed ends in SYNC_FLUSH, written ends otherwise). In a synchronous group
it is the confirm offset; in an asynchronous one the confirm offset is the leader's written end, and
membership is only watched.

A member moves through four states, each change in `member.MOVES`:

    GONE      no stream, and not counted
    CATCHUP   a stream, and not counted
    JOINING   near enough and moving: the replicated end already waits for it, but it does not count as in sync.
              Without this state a follower under load would chase an end that moves every turn.
    IN_SYNC   counted. Losing the stream does not end this state: only `lag_limit_ns` without having
              caught up does. So whatever waits when a follower dies times out as "unknown" first
              (design, section 4), and a short interruption changes nothing.

While fewer than `min_in_sync` replicas are in sync the replicated end stands still: nothing may be
confirmed that minInSyncReplicas forbids.

**Who decides.** A static leader decides alone (`Limits.decides_alone`): the moves above are the truth. Otherwise
the group's state is (`StateSeen`), IN_SYNC means that it names exactly this life, and a move into or out of it
is asked for (`ProposeIsr`). Whoever is in the state or in an undecided proposal counts; a life that the state names and that has
acknowledged nothing to *this* leader stops the replicated end, unless a later life of it that has all of it fills
its seat (`Member.fills`). See `pending_isr.py`.

The state here is derived: a restarted leader rebuilds it from its followers' first acknowledgements.
"""

from dataclasses import dataclass, field

from .group_state import Ref
from .in_sync_events import (
    Acked,
    Appended,
    CloseSession,
    ConfirmMoved,
    Effect,
    Event,
    Flushed,
    IsrAnswered,
    Limits,
    MemberJoined,
    MemberLeft,
    ProposeIsr,
    SessionClosed,
    SessionOpened,
    StateSeen,
    Tick,
)
from .member import MOVES, Member, MemberState
from .pending_isr import Proposals

__all__ = [
    "JOIN_HOLD_NS",
    "TICK_GAP_MAX_NS",
    "Acked",
    "Appended",
    "CloseSession",
    "ConfirmMoved",
    "Effect",
    "Event",
    "Flushed",
    "InSyncSet",
    "IsrAnswered",
    "Limits",
    "Member",
    "MemberJoined",
    "MemberLeft",
    "MemberState",
    "ProposeIsr",
    "SessionClosed",
    "SessionOpened",
    "StateSeen",
    "Tick",
]

#: How long a joining follower may hold the replicated end back: below the time-out of a send (3 s),
#: so that a follower which stalls while it joins costs latency and never an answer.
JOIN_HOLD_NS = 1_000_000_000
#: Ticks further apart than this mean that the leader itself slept (a stopped process, a busy loop):
#: nobody could be heard in that time, so it is not held against the followers.
TICK_GAP_MAX_NS = 500_000_000


@dataclass(slots=True)
class InSyncSet:
    limits: Limits
    log_end: int
    flushed_end: int
    replicated: int = 0  #: start value: the confirm offset of an earlier life of this leader
    me: Ref | None = None  #: this life; needed unless the leader decides alone
    epoch: int = 1  #: that we lead
    epoch_start: int = 0  #: of that epoch: who joins holds everything below
    members: dict[int, Member] = field(default_factory=dict)
    sessions: dict[int, Member] = field(default_factory=dict)
    #: The leader included; 0: a controller decides and no state was seen yet.
    in_sync_count: int = 1
    refusal: str | None = None  #: why a write must be refused now, or None
    tick_ns: int = 0  #: time of the last tick; 0 = none yet
    proposals: Proposals | None = None  #: given: of an earlier time in which we led this epoch
    _counting: list[Member] = field(default_factory=list)  #: they bound the replicated end
    _seated: list[Member] = field(default_factory=list)  #: who could be elected beside us
    _blocked: bool = False  #: a life counts of which we know no position

    def __post_init__(self) -> None:
        if not self.limits.decides_alone and self.proposals is None:
            assert self.me is not None
            self.proposals = Proposals(self.me, self.epoch, self.limits.proposal_retry_ns)
        self.flushed_end = min(self.flushed_end, self.log_end)
        self.replicated = min(self.replicated, self._own_end())
        self._count_members()
        self._advance([])

    @property
    def confirm(self) -> int:
        """Everything below is what this group promises to have; readers may go up to here."""
        return self.replicated if self.limits.is_sync else self.log_end

    @property
    def is_alone(self) -> bool:
        """Nobody else could be elected. Never True before a state was seen."""
        return self.proposals is None or self.proposals.is_alone

    @property
    def oldest_echo_ns(self) -> int | None:
        """The oldest of the newest echoes of all others who count; None: no other does, or one never echoed, or
        somebody who does not count is eligible and could be elected without any of them."""
        if self._blocked or (self.proposals is not None and self.proposals.has_eligible):
            return None
        return min((member.echo_ns for member in self._seated), default=0) or None

    def on_event(self, event: Event, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case Acked():
                self._on_acked(event, now_ns, effects)
            case Appended():
                assert event.log_end >= self.log_end, (event.log_end, self.log_end)
                self.log_end = event.log_end
            case Flushed():
                # The flusher may report bytes of a record that is not whole yet.
                self.flushed_end = max(self.flushed_end, min(event.flushed_end, self.log_end))
            case SessionOpened():
                self._on_opened(event, now_ns, effects)
            case SessionClosed():
                self._on_closed(event)
            case StateSeen():
                self._on_state(event, now_ns, effects)
            case IsrAnswered():
                if event.state is not None:
                    self._on_state(StateSeen(event.state), now_ns, effects)
            case Tick():
                self._on_tick(now_ns, effects)
        self._advance(effects)
        return effects

    # --- positions --------------------------------------------------------------------------------

    def _own_end(self) -> int:
        return self.flushed_end if self.limits.counts_flushed else self.log_end

    def position(self, member: Member) -> int:
        """The end up to which `member` counts, at the group's flush level."""
        return member.flushed_end if self.limits.counts_flushed else member.written_end

    def _advance(self, effects: list[Effect]) -> None:
        if self._blocked or self.in_sync_count < self.limits.min_in_sync:
            return
        reached = self._own_end()
        for member in self._counting:
            reached = min(reached, self.position(member))
        if reached > self.replicated:
            self.replicated = reached
            if self.limits.is_sync:
                effects.append(ConfirmMoved(reached))

    # --- streams ----------------------------------------------------------------------------------

    def _on_opened(self, event: SessionOpened, now_ns: int, effects: list[Effect]) -> None:
        member = self.members.get(event.broker_id)
        if member is None:
            member = Member(event.broker_id, event.replica_uuid, event.incarnation)
            self.members[event.broker_id] = member
        if event.incarnation < member.incarnation and self.proposals is not None:
            effects.append(CloseSession(event.session, "a newer life of it is known"))
            return
        if member.session:
            effects.append(CloseSession(member.session, "replaced by a newer stream"))
            del self.sessions[member.session]
        member.open(event, self._own_end(), now_ns)
        self.sessions[event.session] = member
        if self.proposals is not None:
            self._follow_state(self.proposals, now_ns, effects)
        if member.state is MemberState.IN_SYNC:
            if self.position(member) < self.replicated and self.limits.decides_alone:
                # It no longer holds what it once acknowledged (a lost page cache, a new disk).
                self._leave(member, "came back with less than it had acknowledged", effects)
        else:
            self._move(member, MemberState.CATCHUP)
        self._propose(now_ns, effects)

    def _on_closed(self, event: SessionClosed) -> None:
        member = self.sessions.pop(event.session, None)
        if member is None:
            return  # replaced before: the newer stream goes on
        member.session = 0
        member.verified = False
        self._leave_stream(member)

    def _leave_stream(self, member: Member) -> None:
        if member.state is not MemberState.IN_SYNC:
            self._move(member, MemberState.GONE)

    def _on_acked(self, event: Acked, now_ns: int, effects: list[Effect]) -> None:
        member = self.sessions.get(event.session)
        if member is None:
            return
        written, flushed = event.written_end, event.flushed_end
        if not flushed <= written <= event.sent_end:
            self._reject(member, f"acknowledged {written} of {event.sent_end} sent", effects)
            return
        if member.verified and (written < member.written_end or flushed < member.flushed_end):
            self._reject(member, f"acknowledgement went back to {written}", effects)
            return
        member.ack(event, now_ns)
        position = self.position(member)
        member.measure(position, self._own_end(), now_ns)
        if member.state is not MemberState.IN_SYNC:
            self._notice_return(member)
            self._try_join(member, now_ns, effects)
        elif self.limits.decides_alone and position < self.replicated:
            self._leave(member, "acknowledged less than before", effects)
        elif member.unwanted and now_ns - member.caught_up_ns < self.limits.lag_limit_ns:
            member.unwanted = ""
            self._propose(now_ns, effects)

    def _reject(self, member: Member, reason: str, effects: list[Effect]) -> None:
        effects.append(CloseSession(member.session, reason))

    # --- membership -------------------------------------------------------------------------------

    def _try_join(self, member: Member, now_ns: int, effects: list[Effect]) -> None:
        if member.learner:
            return
        if member.state is MemberState.CATCHUP:
            # Near in bytes, and moving: one that stands still just below the end (a stuck disk)
            # would only hold everyone up.
            if self.log_end - member.written_end > self.limits.join_lag_bytes:
                return
            if now_ns - member.caught_up_ns > JOIN_HOLD_NS or now_ns < member.no_join_before_ns:
                return
            self._move(member, MemberState.JOINING)
            member.joining_since_ns = now_ns
        if not self._has_arrived(member):
            return
        member.caught_up_ns = now_ns
        if self.limits.decides_alone:
            self._move(member, MemberState.IN_SYNC)
            effects.append(MemberJoined(member.broker_id))
        else:
            self._propose(now_ns, effects)

    def _has_arrived(self, member: Member) -> bool:
        """It holds everything that is confirmed and everything of former epochs (R2)."""
        needed = max(self.replicated, self.epoch_start)
        return member.verified and self.position(member) >= needed

    def _notice_return(self, member: Member) -> None:
        """A later life of somebody whom the state names may have reached what was acknowledged before."""
        if self._blocked and not member.returned and self._has_arrived(member):
            member.returned = self.position(member) >= member.owed(self.limits.counts_flushed)
            self._count_members()

    def _on_tick(self, now_ns: int, effects: list[Effect]) -> None:
        slept_ns = now_ns - self.tick_ns if self.tick_ns else 0
        self.tick_ns = now_ns
        for member in self.members.values():
            if slept_ns > TICK_GAP_MAX_NS:
                member.forgive(slept_ns, now_ns)
            if member.session and now_ns - member.heard_ns >= self.limits.dead_after_ns:
                effects.append(CloseSession(member.session, "no frame for too long"))
            if member.state is MemberState.JOINING:
                if now_ns - member.joining_since_ns >= JOIN_HOLD_NS:
                    self._move(member, MemberState.CATCHUP)
                    member.no_join_before_ns = now_ns + JOIN_HOLD_NS
            elif member.state is MemberState.IN_SYNC:
                behind_ns = now_ns - member.caught_up_ns
                if behind_ns >= self.limits.lag_limit_ns:
                    cause = "behind" if member.session else "gone"
                    self._leave(member, f"{cause} for {behind_ns // 1_000_000} ms", effects)
        self._propose(now_ns, effects)

    def _leave(self, member: Member, reason: str, effects: list[Effect]) -> None:
        """Out of the set, or the wish to be rid of it: until that is decided it counts."""
        if not self.limits.decides_alone:
            member.unwanted = member.unwanted or reason
            return
        self._move(member, MemberState.CATCHUP if member.session else MemberState.GONE)
        effects.append(MemberLeft(member.broker_id, reason))

    def _move(self, member: Member, state: MemberState) -> None:
        if member.state is state:
            return
        assert (member.state, state) in MOVES, (member, state)
        member.state = state
        self._count_members()

    # --- a controller decides ---------------------------------------------------------------------

    def _on_state(self, event: StateSeen, now_ns: int, effects: list[Effect]) -> None:
        if self.proposals is not None and self.proposals.state_seen(event.state):
            self._follow_state(self.proposals, now_ns, effects)
            self._propose(now_ns, effects)

    def _follow_state(self, proposals: Proposals, now_ns: int, effects: list[Effect]) -> None:
        """IN_SYNC is exactly whom the state names."""
        for ref in sorted(proposals.committed - {proposals.me}):
            member = self.members.get(ref.broker_id)
            if member is None:
                member = self.members[ref.broker_id] = Member(ref.broker_id, "", ref.incarnation)
            elif member.incarnation < ref.incarnation:
                if member.session:
                    effects.append(CloseSession(member.session, "a newer life of it registered"))
                    del self.sessions[member.session]
                member.live_anew(ref.incarnation)
                self._leave_stream(member)
            if member.ref == ref and member.state is not MemberState.IN_SYNC:
                member.caught_up_ns = now_ns
                member.unwanted = ""
                self._move(member, MemberState.IN_SYNC)
                effects.append(MemberJoined(member.broker_id))
        for member in self.members.values():
            if member.state is MemberState.IN_SYNC and member.ref not in proposals.committed:
                reason, member.unwanted = member.unwanted or "the group's state says so", ""
                self._move(member, MemberState.CATCHUP if member.session else MemberState.GONE)
                effects.append(MemberLeft(member.broker_id, reason))
        self._count_members()

    def _propose(self, now_ns: int, effects: list[Effect]) -> None:
        proposals = self.proposals
        if proposals is None or not proposals.version:
            return
        wanted = [proposals.me]
        for member in self.members.values():
            is_joining = member.state is MemberState.JOINING and self._has_arrived(member)
            if is_joining or (member.state is MemberState.IN_SYNC and not member.unwanted):
                wanted.append(member.ref)
        proposal = proposals.propose(wanted, now_ns)
        if proposal is not None:
            self._count_members()
            effects.append(
                ProposeIsr(proposal.seq, proposal.version, proposal.members, self.replicated)
            )

    def _count_members(self) -> None:
        states = (MemberState.IN_SYNC, MemberState.JOINING)
        self._counting = [m for m in self.members.values() if m.state in states]
        proposals = self.proposals
        if proposals is None:
            self._seated = [m for m in self._counting if m.state is MemberState.IN_SYNC]
            self.in_sync_count = 1 + len(self._seated)
        else:
            self.in_sync_count = len(proposals.committed)
            seated, is_whole = proposals.seated(self.members)
            self._blocked, self._seated = not is_whole, seated
            self._counting += [member for member in seated if member not in self._counting]
        self.refusal = None
        if self.limits.is_sync and self.in_sync_count < self.limits.min_in_sync:
            self.refusal = (
                f"{self.in_sync_count} of {self.limits.min_in_sync} required replicas are in sync: "
                "start or repair a slave, or lower minInSyncReplicas"
            )

    # --- invariants -------------------------------------------------------------------------------

    def validate(self) -> None:
        """Assert every invariant; tests and simulations call it after each event."""
        assert 0 <= self.flushed_end <= self.log_end, (self.flushed_end, self.log_end)
        assert self.replicated <= self._own_end(), (self.replicated, self._own_end())
        for member in self.members.values():
            assert member.flushed_end <= member.written_end, member
            assert (member.session != 0) == (self.sessions.get(member.session) is member), member
            if member.state in (MemberState.CATCHUP, MemberState.JOINING):
                assert member.session, member
            if member.state is MemberState.GONE:
                assert not member.session, member
            if member.state is MemberState.IN_SYNC and self.limits.decides_alone:
                assert self.replicated <= self.position(member), (self.replicated, member)
        in_sync = [m for m in self.members.values() if m.state is MemberState.IN_SYNC]
        if self.proposals is None:
            assert self.in_sync_count == 1 + len(in_sync)
        else:
            self.proposals.validate()
            assert {m.ref for m in in_sync} <= self.proposals.committed, (in_sync, self.proposals)
        assert (self.refusal is None) == (
            not self.limits.is_sync or self.in_sync_count >= self.limits.min_in_sync
        )
