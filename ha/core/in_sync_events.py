"""What happens to a leader's in-sync set (events), and what it wants done (effects); see `in_sync.py`.

Events are plain slotted values: two of them are made for every acknowledgement.
"""

from dataclasses import dataclass

from .group_state import GroupState, Ref


@dataclass(frozen=True, slots=True)
class Limits:
    """How one group counts; fixed while the process lives."""

    is_sync: bool  #: False: the confirm offset is the written end and members are only watched
    counts_flushed: bool  #: True in SYNC_FLUSH groups
    min_in_sync: int  #: the leader included
    lag_limit_ns: int  #: not caught up for this long: out of the set
    join_lag_bytes: int  #: written end this close to the leader's: may join
    dead_after_ns: int  #: no frame for this long: the stream is closed
    decides_alone: bool = True  #: False: a controller decides who is in sync, we propose
    proposal_retry_ns: int = 1_000_000_000


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
    learner: bool = False  #: never counts
    suspect: bool = False  #: it may have lost what an earlier life acknowledged


@dataclass(slots=True)
class Acked:
    session: int
    written_end: int
    flushed_end: int
    sent_end: int  #: end of what was sent on this stream: no honest acknowledgement is larger
    echo_ns: int = 0  #: time stamp of the newest of our frames that it had read; 0: it says none


@dataclass(slots=True)
class SessionClosed:
    session: int


@dataclass(slots=True)
class StateSeen:
    """The group's state, from wherever: a directive, the answer to a proposal, our own disk. Older ones than
    the newest and those of another epoch change nothing. Not for a group that decides alone."""

    state: GroupState


@dataclass(slots=True)
class IsrAnswered:
    """A controller answered the proposal `seq`, or could not be asked (`state` None)."""

    seq: int
    accepted: bool
    state: GroupState | None


@dataclass(slots=True)
class Tick:
    pass


Event = Appended | Flushed | SessionOpened | Acked | SessionClosed | StateSeen | IsrAnswered | Tick

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


@dataclass(frozen=True, slots=True)
class ProposeIsr:
    """Ask the controller for this set, as AlterIsr with our epoch; `IsrAnswered` follows, or nothing does."""

    seq: int
    version: int
    members: tuple[Ref, ...]
    confirm: int


Effect = ConfirmMoved | MemberJoined | MemberLeft | CloseSession | ProposeIsr
