"""Member: one follower as its leader sees it, a row of the in-sync set (`in_sync.py`)."""

from enum import Enum

from msgspec import Struct

from .group_state import Ref
from .in_sync_events import Acked, SessionOpened


class MemberState(Enum):
    GONE = "gone"
    CATCHUP = "catchup"
    JOINING = "joining"
    IN_SYNC = "in_sync"


MOVES: frozenset[tuple[MemberState, MemberState]] = frozenset(
    {
        (MemberState.GONE, MemberState.CATCHUP),  # a stream opened
        (MemberState.CATCHUP, MemberState.GONE),  # the stream ended
        (MemberState.CATCHUP, MemberState.JOINING),  # within the join lag
        (MemberState.JOINING, MemberState.CATCHUP),  # did not arrive in time
        (MemberState.JOINING, MemberState.GONE),  # the stream ended
        (MemberState.JOINING, MemberState.IN_SYNC),  # reached the replicated end
        (MemberState.IN_SYNC, MemberState.CATCHUP),  # behind for too long, or came back shorter
        (MemberState.IN_SYNC, MemberState.GONE),  # disconnected for too long
        (MemberState.GONE, MemberState.IN_SYNC),  # the group's state names it
        (MemberState.CATCHUP, MemberState.IN_SYNC),  # the same
    }
)


class Member(Struct, eq=False):
    """One follower, by broker id. Rows are never removed: there is one per configured replica."""

    broker_id: int
    replica_uuid: str  #: empty: named by the state, no hello yet
    incarnation: int
    state: MemberState = MemberState.GONE
    session: int = 0  #: 0 = no stream
    written_end: int = 0  #: end of the last whole message it holds, as acknowledged
    flushed_end: int = 0  #: <= written_end
    #: acknowledged on this stream, so the end of its log equals the leader's
    verified: bool = False
    learner: bool = False
    heard_ns: int = 0  #: last frame on this stream
    echo_ns: int = 0  #: newest time stamp of the leader that this incarnation had read
    opened_ns: int = 0  #: of this stream
    caught_up_ns: int = 0  #: latest time at which it held everything the leader had at that time
    mark_end: int = 0  #: leader's end at `mark_ns`: reaching it moves `caught_up_ns` there
    mark_ns: int = 0
    joining_since_ns: int = 0
    no_join_before_ns: int = 0  #: pause after a join that did not arrive
    earlier_written_end: int = 0  #: what its earlier incarnations had acknowledged
    earlier_flushed_end: int = 0
    leaving: bool = False  #: announced on this stream that it stops
    suspect: bool = False  #: this incarnation may lack what earlier ones acknowledged
    #: this incarnation has acknowledged all of that, and everything replicated
    returned: bool = False
    removal_reason: str = ""  #: why the leader proposes to remove it

    @property
    def ref(self) -> Ref:
        return Ref(self.broker_id, self.incarnation)

    def open(self, event: SessionOpened, own_end: int, now_ns: int) -> None:
        """Handle an accepted hello: its claims lower the position and never raise it."""
        if self.replica_uuid not in ("", event.replica_uuid):
            # another disk: earlier acknowledgements do not count
            self.written_end = self.flushed_end = 0
        if event.incarnation != self.incarnation:
            self._end_incarnation()
        if event.written_end < self.written_end or event.flushed_end < self.flushed_end:
            self.returned = False
        self.suspect = self.suspect or event.suspect
        self.replica_uuid = event.replica_uuid
        self.incarnation = event.incarnation
        self.learner = event.learner
        self.written_end = min(self.written_end, event.written_end)
        self.flushed_end = min(self.flushed_end, event.flushed_end, self.written_end)
        self.session = event.session
        self.verified = self.leaving = False
        self.heard_ns = self.opened_ns = now_ns
        self.mark_end, self.mark_ns = own_end, now_ns

    def ack(self, event: Acked, now_ns: int) -> None:
        self.verified = True
        self.leaving = self.leaving or event.leaving
        self.heard_ns = now_ns
        if self.opened_ns <= event.echo_ns <= now_ns:  # else of another leader's clock
            self.echo_ns = max(self.echo_ns, event.echo_ns)
        # A first acknowledgement below the claims of the hello is treated like a short hello.
        self.written_end, self.flushed_end = event.written_end, event.flushed_end

    def measure(self, position: int, own_end: int, now_ns: int) -> None:
        """Update the last time at which it held everything that the leader had at that time."""
        if position >= own_end:
            self.caught_up_ns = now_ns
            self.mark_end, self.mark_ns = own_end, now_ns
        elif position >= self.mark_end:
            self.caught_up_ns = self.mark_ns
            self.mark_end, self.mark_ns = own_end, now_ns

    def start_incarnation(self, incarnation: int) -> None:
        """Switch to a newer incarnation that has not connected yet: earlier positions do not
        count."""
        self._end_incarnation()
        self.incarnation = incarnation
        self.written_end = self.flushed_end = self.session = 0
        self.verified = False

    def _end_incarnation(self) -> None:
        self.earlier_written_end = max(self.earlier_written_end, self.written_end)
        self.earlier_flushed_end = max(self.earlier_flushed_end, self.flushed_end)
        self.echo_ns = 0
        self.suspect = self.returned = False

    def acknowledged_before(self, counts_flushed: bool) -> int:
        """Return what earlier incarnations acknowledged, at the group's flush level."""
        return self.earlier_flushed_end if counts_flushed else self.earlier_written_end

    def fills(self, seat: Ref, replica_uuid: str) -> bool:
        """Return whether this incarnation stands in for `seat`, an earlier one of the same disk.

        `replica_uuid` is the disk that the group's state names. The earlier incarnation has ended,
        because a disk has one process, and everything it acknowledged is here. So every assumption
        of an election about the seat holds for this incarnation, until the state names it or a
        later one.
        """
        is_later = seat.broker_id == self.broker_id and seat.incarnation < self.incarnation
        is_same_disk = bool(replica_uuid) and replica_uuid == self.replica_uuid
        return is_later and is_same_disk and self.returned and not (self.suspect or self.learner)

    def extend_timeouts(self, slept_ns: int, now_ns: int) -> None:
        """Extend the timeouts by the time in which the leader itself was suspended."""
        self.heard_ns = min(now_ns, self.heard_ns + slept_ns)
        self.caught_up_ns = min(now_ns, self.caught_up_ns + slept_ns)
        self.mark_ns = min(now_ns, self.mark_ns + slept_ns)
