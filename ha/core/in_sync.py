"""In-sync set: the leader's view of its followers, and the confirm offset (pure).

Guarantee (docs/formats/ha.md, rules R1 and R2, invariant I5): the replicated end never decreases
and never exceeds the leader's own end or the acknowledged end of any in-sync member, all at the
group's flush level (flushed ends in SYNC_FLUSH, written ends otherwise). In a synchronous group it
is the confirm offset; in an asynchronous group the confirm offset is the leader's written end, and
membership is only observed.

A member has four states; `member.MOVES` lists the moves:

    GONE      no stream, not counted
    CATCHUP   a stream, not counted
    JOINING   close to the end and moving: the replicated end already waits for it, but it does not
              count as in sync. Without this state a follower under load would never reach the
              moving end.
    IN_SYNC   counted. A lost stream does not end this state: only `lag_limit_ns` without catching
              up does. So sends that wait for a failed follower time out with an unknown result
              first, and a short interruption changes nothing.

While fewer than `min_in_sync` replicas are in sync the replicated end stands still.

A static leader decides alone (`Limits.decides_alone`), but a promotion knows only the set that the
nameservers have. So with `Limits.registers` a member that left still bounds the replicated end, at
the end that it had acknowledged, until they have taken the set without it (`SetRegistered`), and
the end stands still until they have taken the first set of this incarnation. Otherwise the group's
state decides (`StateSeen`): IN_SYNC means that the state names exactly this incarnation, and the
leader proposes every change (`ProposeIsr`). Members of the state and of undecided proposals count.
An incarnation that the state names and that has not acknowledged anything to *this* leader stops
the replicated end, unless a later incarnation with all of its data takes its seat (`Member.fills`).
See `pending_isr.py`.

The state is derived: a restarted leader rebuilds it from its followers' first acknowledgements.
"""

from msgspec import Struct, field

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
    SetRegistered,
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
    "SetRegistered",
    "StateSeen",
    "Tick",
]

#: How long a joining follower may hold the replicated end back: below the timeout of a send (3 s),
#: so that a follower that stalls while it joins costs latency and never an answer.
JOIN_HOLD_NS = 1_000_000_000
#: Ticks further apart than this mean that the leader was suspended (a stopped process, a blocked
#: loop): followers are not blamed for that silence.
TICK_GAP_MAX_NS = 500_000_000


class InSyncSet(Struct):
    limits: Limits
    log_end: int
    flushed_end: int
    replicated: int = 0  #: start value: the confirm offset of an earlier incarnation of this leader
    me: Ref | None = None  #: this incarnation; required unless the leader decides alone
    epoch: int = 1  #: that this replica leads
    epoch_start: int = 0  #: of that epoch: a joining member holds everything below
    members: dict[int, Member] = field(default_factory=dict)
    sessions: dict[int, Member] = field(default_factory=dict)
    #: Including the leader; 0: a controller decides and no state has arrived yet.
    in_sync_count: int = 1
    refusal: str | None = None  #: why writes must be refused now, or None
    tick_ns: int = 0  #: time of the last tick; 0: none yet
    revision: int = 1  #: of the set of a leader that decides alone: +1 with every change
    registered: int = 0  #: newest revision that the nameservers have taken; 0: none yet
    #: initial value: from an earlier time as leader of this epoch
    proposals: Proposals | None = None
    _counting: list[Member] = field(default_factory=list)  #: members that bound the replicated end
    _seat_holders: list[Member] = field(
        default_factory=list
    )  #: other members that could be elected
    _blocked: bool = False  #: a counted incarnation has no known position
    #: By uuid, members that the nameservers still list: revision without it, acknowledged end.
    _listed: dict[str, tuple[int, int]] = field(default_factory=dict)

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
        """The end that this group guarantees to keep; readers may read up to it."""
        return self.replicated if self.limits.is_sync else self.log_end

    def in_sync_followers(self) -> list[tuple[Ref, str]]:
        """Return the followers that are in sync, with their replica uuids."""
        members = self.members.values()
        return [(m.ref, m.replica_uuid) for m in members if m.state is MemberState.IN_SYNC]

    @property
    def awaits_nameservers(self) -> bool:
        """Whether the replicated end waits until the nameservers have taken the set."""
        return self.limits.registers and (not self.registered or bool(self._listed))

    @property
    def is_alone(self) -> bool:
        """Whether no other replica can be elected. False until a state has arrived."""
        return self.proposals is None or self.proposals.is_alone

    @property
    def oldest_echo_ns(self) -> int | None:
        """The oldest of the newest echoes of all other counted members.

        None: no other member counts, one never echoed, or a replica that does not count is
        eligible.
        """
        if self._blocked or (self.proposals is not None and self.proposals.has_eligible):
            return None
        return min((member.echo_ns for member in self._seat_holders), default=0) or None

    @property
    def lacks_quorum(self) -> bool:
        """Whether fewer in-sync replicas than the minimum are connected, this one included."""
        if not self.limits.is_sync:
            return False
        connected = sum(
            member.state is MemberState.IN_SYNC and member.verified
            for member in self.members.values()
        )
        return 1 + connected < self.limits.min_in_sync

    def on_event(self, event: Event, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case Acked():
                self._on_acked(event, now_ns, effects)
            case Appended():
                assert event.log_end >= self.log_end, (event.log_end, self.log_end)
                self.log_end = event.log_end
            case Flushed():
                # The flusher may report bytes of an incomplete record.
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
            case SetRegistered():
                self._on_registered(event.revision)
            case Tick():
                self._on_tick(now_ns, effects)
        self._advance(effects)
        return effects

    # --- positions --------------------------------------------------------------------------------

    def _own_end(self) -> int:
        return self.flushed_end if self.limits.counts_flushed else self.log_end

    def position(self, member: Member) -> int:
        """Return the acknowledged end of `member` at the group's flush level."""
        return member.flushed_end if self.limits.counts_flushed else member.written_end

    def _advance(self, effects: list[Effect]) -> None:
        if self._blocked or self.in_sync_count < self.limits.min_in_sync:
            return
        if self.limits.registers and not self.registered:
            return
        reached = min((end for _, end in self._listed.values()), default=self._own_end())
        reached = min(reached, self._own_end())
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
            effects.append(CloseSession(event.session, "a newer incarnation of it is known"))
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
                # It lost data that it acknowledged (page cache, new disk).
                self._leave(member, "returned with less than it had acknowledged", effects)
        else:
            self._move(member, MemberState.CATCHUP)
        self._propose(now_ns, effects)

    def _on_closed(self, event: SessionClosed) -> None:
        member = self.sessions.pop(event.session, None)
        if member is None:
            return  # already replaced by a newer stream
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
            self._check_return(member)
            self._try_join(member, now_ns, effects)
        elif self.limits.decides_alone and position < self.replicated:
            self._leave(member, "acknowledged less than before", effects)
        elif self.limits.decides_alone and member.leaving:
            self._leave(member, "is stopping", effects)
        elif member.removal_reason and now_ns - member.caught_up_ns < self.limits.lag_limit_ns:
            member.removal_reason = ""
            self._propose(now_ns, effects)

    def _reject(self, member: Member, reason: str, effects: list[Effect]) -> None:
        effects.append(CloseSession(member.session, reason))

    # --- membership -------------------------------------------------------------------------------

    def _try_join(self, member: Member, now_ns: int, effects: list[Effect]) -> None:
        if member.learner or member.leaving:
            return
        if member.state is MemberState.CATCHUP:
            # Close to the end and moving: a follower that stalls just below the end (a stuck disk)
            # would only delay all sends.
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
            self.revision += 1
            self._listed.pop(member.replica_uuid, None)
            effects.append(MemberJoined(member.broker_id))
        else:
            self._propose(now_ns, effects)

    def _has_arrived(self, member: Member) -> bool:
        """Return whether it holds everything confirmed and everything of former epochs (R2)."""
        needed = max(self.replicated, self.epoch_start)
        return member.verified and self.position(member) >= needed

    def _check_return(self, member: Member) -> None:
        """Check whether a later incarnation of a named member reached the acknowledged end of the
        earlier."""
        if self._blocked and not member.returned and self._has_arrived(member):
            member.returned = self.position(member) >= member.acknowledged_before(
                self.limits.counts_flushed
            )
            self._count_members()

    def _on_tick(self, now_ns: int, effects: list[Effect]) -> None:
        slept_ns = now_ns - self.tick_ns if self.tick_ns else 0
        self.tick_ns = now_ns
        for member in self.members.values():
            if slept_ns > TICK_GAP_MAX_NS:
                member.extend_timeouts(slept_ns, now_ns)
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
        """Remove a member, or mark it for removal: it counts until the controller decides."""
        if not self.limits.decides_alone:
            member.removal_reason = member.removal_reason or reason
            return
        self._move(member, MemberState.CATCHUP if member.session else MemberState.GONE)
        self.revision += 1
        if self.limits.registers:
            self._listed[member.replica_uuid] = (self.revision, self.position(member))
        effects.append(MemberLeft(member.broker_id, reason))

    def _on_registered(self, revision: int) -> None:
        """Release the members that no nameserver of the majority lists any more."""
        self.registered = max(self.registered, revision)
        for uuid, (without, _) in list(self._listed.items()):
            if without <= self.registered:
                del self._listed[uuid]

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
        """Set IN_SYNC for exactly the incarnations that the state names."""
        for ref in sorted(proposals.committed - {proposals.me}):
            member = self.members.get(ref.broker_id)
            if member is None:
                member = self.members[ref.broker_id] = Member(ref.broker_id, "", ref.incarnation)
            elif member.incarnation < ref.incarnation:
                if member.session:
                    effects.append(
                        CloseSession(member.session, "a newer incarnation of it registered")
                    )
                    del self.sessions[member.session]
                member.start_incarnation(ref.incarnation)
                self._leave_stream(member)
            if member.ref == ref and member.state is not MemberState.IN_SYNC:
                member.caught_up_ns = now_ns
                member.removal_reason = ""
                self._move(member, MemberState.IN_SYNC)
                effects.append(MemberJoined(member.broker_id))
        for member in self.members.values():
            if member.state is MemberState.IN_SYNC and member.ref not in proposals.committed:
                reason, member.removal_reason = (
                    member.removal_reason or "removed by the group's state",
                    "",
                )
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
            if is_joining or (member.state is MemberState.IN_SYNC and not member.removal_reason):
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
            self._seat_holders = [m for m in self._counting if m.state is MemberState.IN_SYNC]
            self.in_sync_count = 1 + len(self._seat_holders)
        else:
            self.in_sync_count = len(proposals.committed)
            seat_holders, is_whole = proposals.seat_holders(self.members)
            self._blocked, self._seat_holders = not is_whole, seat_holders
            self._counting += [member for member in seat_holders if member not in self._counting]
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
