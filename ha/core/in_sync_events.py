"""Events and effects of the leader's in-sync set (`in_sync.py`).

Events are plain slotted values, because every acknowledgement creates two.
"""

from msgspec import Struct

from .group_state import GroupState, Ref


class Limits(Struct, frozen=True):
    """Limits of one group; fixed for an incarnation of the leader."""

    is_sync: bool  #: False: the confirm offset is the written end and membership is only observed
    counts_flushed: bool  #: True in SYNC_FLUSH groups
    min_in_sync: int  #: the leader included
    lag_limit_ns: int  #: not caught up for this long: removed from the set
    join_lag_bytes: int  #: written end this close to the leader's: may join
    dead_after_ns: int  #: no frame for this long: the stream is closed
    decides_alone: bool = True  #: False: a controller decides membership and the leader proposes
    proposal_retry_ns: int = 1_000_000_000
    #: A leader that decides alone waits until nameservers have taken its set (`SetRegistered`).
    registers: bool = False


# --- events ---------------------------------------------------------------------------------------


class Appended(Struct):
    log_end: int


class Flushed(Struct):
    flushed_end: int


class SessionOpened(Struct):
    """A follower's hello was accepted.

    Its ends are claims: they can lower its position. Only acknowledgements, which follow its check
    of the log's end, can raise it.
    """

    session: int
    broker_id: int
    replica_uuid: str
    incarnation: int
    written_end: int
    flushed_end: int
    learner: bool = False  #: never counts
    suspect: bool = False  #: it may have lost what an earlier incarnation acknowledged


class Acked(Struct):
    session: int
    written_end: int
    flushed_end: int
    sent_end: int  #: end of what was sent on this stream: upper limit of a valid acknowledgement
    #: time stamp of the newest frame of this leader that it had read; 0: not reported
    echo_ns: int = 0
    leaving: bool = False  #: the follower stops


class SessionClosed(Struct):
    session: int


class StateSeen(Struct):
    """The group's state from any source: a directive, the answer to a proposal, the disk.

    States that are older than the newest or of another epoch are ignored. Not for a group that
    decides alone.
    """

    state: GroupState


class IsrAnswered(Struct):
    """A controller answered the proposal `seq`, or was unreachable (`state` None)."""

    seq: int
    accepted: bool
    state: GroupState | None


class SetRegistered(Struct):
    """A majority of the nameservers has this revision of the set, or a later one."""

    revision: int


class Tick(Struct):
    pass


Event = (
    Appended
    | Flushed
    | SessionOpened
    | Acked
    | SessionClosed
    | StateSeen
    | IsrAnswered
    | SetRegistered
    | Tick
)

# --- effects --------------------------------------------------------------------------------------


class ConfirmMoved(Struct, frozen=True):
    """Only in synchronous groups: in an asynchronous group the confirm offset is the log's end."""

    confirm: int


class MemberJoined(Struct, frozen=True):
    broker_id: int


class MemberLeft(Struct, frozen=True):
    broker_id: int
    reason: str


class CloseSession(Struct, frozen=True):
    session: int
    reason: str


class ProposeIsr(Struct, frozen=True):
    """Propose this set to the controller as AlterIsr of the own epoch; `IsrAnswered` may never
    follow."""

    seq: int
    version: int
    members: tuple[Ref, ...]
    confirm: int


Effect = ConfirmMoved | MemberJoined | MemberLeft | CloseSession | ProposeIsr
