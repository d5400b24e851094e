"""What the leader believes of its followers: who is in sync, and the confirm offset.

Promise (HA note, rules R1 and R2, invariant I5): the replicated end never goes back, never passes the
leader's own end, and never passes what a member of the in-sync set has acknowledged, both counted at
the group's flush level (flushed ends in SYNC_FLUSH, written ends otherwise). In a synchronous group
it is the confirm offset; in an asynchronous one the confirm offset is the leader's written end, and
membership is only watched.

A member moves through four states, each change in `_MOVES`:

    GONE      no stream, and not counted
    CATCHUP   a stream, and not counted
    JOINING   near enough and moving: the replicated end already waits for it, but it does not count as in sync.
              Without this state a follower under load would chase an end that moves every turn.
    IN_SYNC   counted. Losing the stream does not end this state: only `lag_limit_ns` without having
              caught up does. So whatever waits when a follower dies times out as "unknown" first
              (design, section 4), and a short interruption changes nothing.

While fewer than `min_in_sync` replicas are in sync the replicated end stands still: nothing may be
confirmed that minInSyncReplicas forbids.

The state here is derived: a restarted leader rebuilds it from its followers' first acknowledgements.
"""

from dataclasses import dataclass, field
from enum import Enum

#: How long a joining follower may hold the replicated end back: below the time-out of a send (3 s),
#: so that a follower which stalls while it joins costs latency and never an answer.
JOIN_HOLD_NS = 1_000_000_000
#: Ticks further apart than this mean that the leader itself slept (a stopped process, a busy loop):
#: nobody could be heard in that time, so it is not held against the followers.
TICK_GAP_MAX_NS = 500_000_000


class MemberState(Enum):
    GONE = "gone"
    CATCHUP = "catchup"
    JOINING = "joining"
    IN_SYNC = "in_sync"


_MOVES: frozenset[tuple[MemberState, MemberState]] = frozenset(
    {
        (MemberState.GONE, MemberState.CATCHUP),  # a stream opened
        (MemberState.CATCHUP, MemberState.GONE),  # the stream ended
        (MemberState.CATCHUP, MemberState.JOINING),  # within the join lag
        (MemberState.JOINING, MemberState.CATCHUP),  # did not arrive in time
        (MemberState.JOINING, MemberState.GONE),  # the stream ended
        (MemberState.JOINING, MemberState.IN_SYNC),  # reached the replicated end
        (MemberState.IN_SYNC, MemberState.CATCHUP),  # behind for too long, or came back shorter
        (MemberState.IN_SYNC, MemberState.GONE),  # gone for too long
    }
)


@dataclass(frozen=True, slots=True)
class Limits:
    """How one group counts; fixed while the process lives."""

    is_sync: bool  #: False: the confirm offset is the written end and members are only watched
    counts_flushed: bool  #: True in SYNC_FLUSH groups
    min_in_sync: int  #: the leader included
    lag_limit_ns: int  #: not caught up for this long: out of the set
    join_lag_bytes: int  #: written end this close to the leader's: may join
    dead_after_ns: int  #: no frame for this long: the stream is closed


# --- events ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Appended:
    log_end: int


@dataclass(slots=True)
class Flushed:
    flushed_end: int


@dataclass(slots=True)
class SessionOpened:
    """A follower's hello was accepted. Its ends are claims: they can lower what it is counted with,
    and only acknowledgements, which follow its check of the log's tail, can raise it."""

    session: int
    broker_id: int
    replica_uuid: str
    incarnation: int
    written_end: int
    flushed_end: int


@dataclass(slots=True)
class Acked:
    session: int
    written_end: int
    flushed_end: int
    sent_end: int  #: end of what was sent on this stream: no honest acknowledgement is larger


@dataclass(slots=True)
class SessionClosed:
    session: int


@dataclass(slots=True)
class Tick:
    pass


Event = Appended | Flushed | SessionOpened | Acked | SessionClosed | Tick

# --- effects --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfirmMoved:
    """Only in synchronous groups: in an asynchronous one the confirm offset is the log's end."""

    confirm: int


@dataclass(frozen=True, slots=True)
class MemberJoined:
    broker_id: int


@dataclass(frozen=True, slots=True)
class MemberLeft:
    broker_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class CloseSession:
    session: int
    reason: str


Effect = ConfirmMoved | MemberJoined | MemberLeft | CloseSession


@dataclass(slots=True)
class Member:
    """One follower, by broker id. Rows are never removed: there is one per configured replica."""

    broker_id: int
    replica_uuid: str
    incarnation: int
    state: MemberState = MemberState.GONE
    session: int = 0  #: 0 = no stream
    written_end: int = 0  #: end of the last whole message it holds, as acknowledged
    flushed_end: int = 0  #: <= written_end
    verified: bool = False  #: it has acknowledged on this stream, so its tail equals ours
    heard_ns: int = 0  #: last frame on this stream
    caught_up_ns: int = 0  #: latest time at which it held everything the leader had at that time
    mark_end: int = 0  #: leader's end at `mark_ns`: reaching it moves `caught_up_ns` there
    mark_ns: int = 0
    joining_since_ns: int = 0
    no_join_before_ns: int = 0  #: pause after a join that did not arrive


@dataclass(slots=True)
class InSyncSet:
    limits: Limits
    log_end: int
    flushed_end: int
    replicated: int = 0  #: start value: the confirm offset of an earlier life of this leader
    members: dict[int, Member] = field(default_factory=dict)
    sessions: dict[int, Member] = field(default_factory=dict)
    in_sync_count: int = 1  #: the leader included
    refusal: str | None = None  #: why a write must be refused now, or None
    tick_ns: int = 0  #: time of the last tick; 0 = none yet

    def __post_init__(self) -> None:
        self.flushed_end = min(self.flushed_end, self.log_end)
        self.replicated = min(self.replicated, self._own_end())
        self._count_members()
        self._advance([])

    @property
    def confirm(self) -> int:
        """Everything below is what this group promises to have; readers may go up to here."""
        return self.replicated if self.limits.is_sync else self.log_end

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
        if self.in_sync_count < self.limits.min_in_sync:
            return
        reached = self._own_end()
        for member in self.members.values():
            if member.state in (MemberState.IN_SYNC, MemberState.JOINING):
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
        if member.session:
            effects.append(CloseSession(member.session, "replaced by a newer stream"))
            del self.sessions[member.session]
        if member.replica_uuid != event.replica_uuid:
            member.written_end = member.flushed_end = 0  # another disk: its past counts for nothing
        member.replica_uuid = event.replica_uuid
        member.incarnation = event.incarnation
        member.written_end = min(member.written_end, event.written_end)
        member.flushed_end = min(member.flushed_end, event.flushed_end, member.written_end)
        member.session = event.session
        member.verified = False
        member.heard_ns = now_ns
        member.mark_end, member.mark_ns = self._own_end(), now_ns
        self.sessions[event.session] = member
        if member.state is MemberState.IN_SYNC and self.position(member) < self.replicated:
            # It no longer holds what it once acknowledged (a lost page cache, a new disk).
            self._leave(member, "came back with less than it had acknowledged", effects)
        elif member.state is not MemberState.IN_SYNC:
            self._move(member, MemberState.CATCHUP)

    def _on_closed(self, event: SessionClosed) -> None:
        member = self.sessions.pop(event.session, None)
        if member is None:
            return  # replaced before: the newer stream goes on
        member.session = 0
        member.verified = False
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
        member.verified = True
        member.heard_ns = now_ns
        # A first acknowledgement below the claims of the hello is as bad as a short hello.
        member.written_end, member.flushed_end = written, flushed
        position, own_end = self.position(member), self._own_end()
        if position >= own_end:
            member.caught_up_ns = now_ns
            member.mark_end, member.mark_ns = own_end, now_ns
        elif position >= member.mark_end:
            member.caught_up_ns = member.mark_ns
            member.mark_end, member.mark_ns = own_end, now_ns
        if member.state is MemberState.IN_SYNC:
            if position < self.replicated:
                self._leave(member, "acknowledged less than before", effects)
        else:
            self._try_join(member, now_ns, effects)

    def _reject(self, member: Member, reason: str, effects: list[Effect]) -> None:
        effects.append(CloseSession(member.session, reason))

    # --- membership -------------------------------------------------------------------------------

    def _try_join(self, member: Member, now_ns: int, effects: list[Effect]) -> None:
        if member.state is MemberState.CATCHUP:
            # Near in bytes, and moving: one that stands still just below the end (a stuck disk)
            # would only hold everyone up.
            if self.log_end - member.written_end > self.limits.join_lag_bytes:
                return
            if now_ns - member.caught_up_ns > JOIN_HOLD_NS or now_ns < member.no_join_before_ns:
                return
            self._move(member, MemberState.JOINING)
            member.joining_since_ns = now_ns
        if self.position(member) >= self.replicated:
            member.caught_up_ns = now_ns
            self._move(member, MemberState.IN_SYNC)
            effects.append(MemberJoined(member.broker_id))

    def _on_tick(self, now_ns: int, effects: list[Effect]) -> None:
        slept_ns = now_ns - self.tick_ns if self.tick_ns else 0
        self.tick_ns = now_ns
        for member in self.members.values():
            if slept_ns > TICK_GAP_MAX_NS:
                member.heard_ns = min(now_ns, member.heard_ns + slept_ns)
                member.caught_up_ns = min(now_ns, member.caught_up_ns + slept_ns)
                member.mark_ns = min(now_ns, member.mark_ns + slept_ns)
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

    def _leave(self, member: Member, reason: str, effects: list[Effect]) -> None:
        self._move(member, MemberState.CATCHUP if member.session else MemberState.GONE)
        effects.append(MemberLeft(member.broker_id, reason))

    def _move(self, member: Member, state: MemberState) -> None:
        if member.state is state:
            return
        assert (member.state, state) in _MOVES, (member, state)
        member.state = state
        self._count_members()

    def _count_members(self) -> None:
        self.in_sync_count = 1 + sum(
            member.state is MemberState.IN_SYNC for member in self.members.values()
        )
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
            if member.state is MemberState.IN_SYNC:
                assert self.replicated <= self.position(member), (self.replicated, member)
        in_sync = [m for m in self.members.values() if m.state is MemberState.IN_SYNC]
        assert self.in_sync_count == 1 + len(in_sync)
        assert (self.refusal is None) == (
            not self.limits.is_sync or self.in_sync_count >= self.limits.min_in_sync
        )
