"""Handshake: the leader's answer to a follower's hello (accept, cut the diverged tail, or reject).

`RULES` decide from top to bottom whether the follower is admitted: the first rule that applies
rejects. Then the start offset follows from both epoch histories (docs/formats/ha.md, section 6.6
and rules R6, R9): the logs surely equal each other up to the smaller end of the newest epoch that
both contain. What the follower has above that is cut (`CutTo`), unless it was confirmed. Without
histories (an older protocol) only the ends are compared.

An accepted follower must still compare the CRC-32 of the last `VERIFY_BYTES` below the start offset
with the leader's, because equal ends prove nothing. It acknowledges and cuts nothing before that.
"""

from collections.abc import Callable, Mapping
from enum import Enum

from msgspec import Struct, field

from .epochs import EpochHistory

#: Bytes below the common end that both sides compare. Logs that diverged below the follower's end
#: continued with different messages, so its end is the place to compare.
VERIFY_BYTES = 1 << 20
#: At the end of a segment the last bytes may all be padding, which is equal in every log: compare
#: more than the largest record that may have needed the space.
VERIFY_BYTES_AT_SEGMENT_END = 8 << 20


class RejectCode(Enum):
    """Reject codes; the names are those of the protobuf enumeration."""

    WRONG_CLUSTER = "WRONG_CLUSTER"
    WRONG_GROUP = "WRONG_GROUP"
    ID_IN_USE = "ID_IN_USE"
    NOT_LEADER = "NOT_LEADER"
    STALE_EPOCH = "STALE_EPOCH"
    NEWER_EPOCH_SEEN = "NEWER_EPOCH_SEEN"
    SEGMENT_SIZE = "SEGMENT_SIZE"
    BELOW_LOG_START = "BELOW_LOG_START"
    DIVERGED = "DIVERGED"
    CUT_BELOW_CONFIRM = "CUT_BELOW_CONFIRM"


class FollowerFacts(Struct, frozen=True):
    """The content of a hello."""

    cluster: str
    group: str
    broker_id: int
    replica_uuid: str
    incarnation: int
    promised_epoch: int
    last_epoch: int  #: newest entry of the epoch history
    segment_size: int
    log_start: int
    log_end: int
    confirm: int = 0
    epochs: EpochHistory | None = None  #: None: no history, only whole logs are compared
    suspect: bool = False
    learner: bool = False
    from_last_segment: bool = False  #: an empty follower requests only the newest segment (R8)


class Holder(Struct, frozen=True):
    """The replica that currently uses a broker id on this leader."""

    replica_uuid: str
    incarnation: int


class LeaderFacts(Struct, frozen=True):
    is_leader: bool
    cluster: str
    group: str
    broker_id: int
    epoch: int
    segment_size: int
    log_start: int
    log_end: int
    holders: Mapping[int, Holder]  #: broker ids with a stream
    promised_epoch: int = 0
    epochs: EpochHistory | None = None  #: None as above
    is_sync: bool = True  #: False: the confirm offset limits reads and does not forbid cuts
    accept_loss: bool = False  #: a forced election: confirmed bytes may be cut
    #: Replica uuid by broker id, from the group's state.
    uuids: Mapping[int, str] = field(default_factory=dict)


class Accept(Struct, frozen=True):
    start_offset: int  #: offset of the first chunk
    #: [verify_from, verify_to) must be equal on both sides; empty for an empty log
    verify_from: int
    verify_to: int


class CutTo(Struct, frozen=True):
    """Cut everything from `cut` on before the next start, then send a new hello."""

    cut: int
    verify_from: int  #: [verify_from, verify_to) must be equal on both sides first
    verify_to: int


class Reject(Struct, frozen=True):
    code: RejectCode
    sentence: str


def _id_in_use(follower: FollowerFacts, leader: LeaderFacts) -> bool:
    if follower.broker_id == leader.broker_id:
        return True
    known = leader.uuids.get(follower.broker_id, "")
    if known and known != follower.replica_uuid:
        return True
    holder = leader.holders.get(follower.broker_id)
    if holder is None:
        return False
    # The same replica may replace its own stream, unless the stream is of a newer incarnation.
    return holder.replica_uuid != follower.replica_uuid or holder.incarnation > follower.incarnation


def _is_empty(follower: FollowerFacts) -> bool:
    return follower.log_end == follower.log_start


Rule = tuple[RejectCode, Callable[[FollowerFacts, LeaderFacts], bool], str]

RULES: tuple[Rule, ...] = (
    (
        RejectCode.WRONG_CLUSTER,
        lambda f, le: f.cluster != le.cluster,
        "the follower is of cluster {f.cluster}, this one is {le.cluster}: "
        "check brokerClusterName and haMasterAddress",
    ),
    (
        RejectCode.WRONG_GROUP,
        lambda f, le: f.group != le.group,
        "the follower is of group {f.group}, this one is {le.group}: "
        "check brokerName and haMasterAddress",
    ),
    (
        RejectCode.NOT_LEADER,
        lambda f, le: not le.is_leader,
        "broker {le.broker_id} of group {le.group} is a slave itself: check haMasterAddress",
    ),
    (
        RejectCode.ID_IN_USE,
        _id_in_use,
        "brokerId {f.broker_id} of group {f.group} belongs to another running replica: "
        "give each replica its own brokerId",
    ),
    (
        RejectCode.NEWER_EPOCH_SEEN,
        lambda f, le: max(f.promised_epoch, f.last_epoch) > le.epoch,
        "the follower has seen a leader of epoch {f.promised_epoch}, this one has {le.epoch}",
    ),
    (
        RejectCode.STALE_EPOCH,
        lambda f, le: le.promised_epoch > le.epoch,
        "epoch {le.promised_epoch} has begun, this leader's {le.epoch} is over",
    ),
    (
        RejectCode.SEGMENT_SIZE,
        lambda f, le: f.segment_size != le.segment_size,
        "mappedFileSizeCommitLog is {f.segment_size} on the follower and {le.segment_size} here: "
        "both must be equal",
    ),
)

_HOLDS_MORE = (
    "the follower's log ends at {f.log_end}, above the leader's {le.log_end}: it holds "
    "messages that the leader does not have"
)
_BELOW_LOG_START = (
    "the follower's log ends at {f.log_end} and can be continued from {start}, below the "
    "leader's first byte {le.log_start}: move its store directory aside and let it copy "
    "everything again"
)
_BELOW_CONFIRM = (
    "the follower would have to cut at {start}, below its confirm offset {f.confirm}: an "
    "operator decides which replica's log counts"
)


def decide(follower: FollowerFacts, leader: LeaderFacts) -> Accept | CutTo | Reject:
    for code, applies, sentence in RULES:
        if applies(follower, leader):
            return Reject(code, sentence.format(f=follower, le=leader))
    return _place(follower, leader)


def _place(follower: FollowerFacts, leader: LeaderFacts) -> Accept | CutTo | Reject:
    if _is_empty(follower):
        first = leader.log_start
        if follower.from_last_segment:
            first = max(first, leader.log_end - leader.log_end % leader.segment_size)
        if follower.log_end < first:
            return Accept(first, first, first)
    start = _common_end(follower, leader)
    loses_confirmed = start < min(follower.confirm, follower.log_end)
    refusal: tuple[RejectCode, str] | None = None
    if follower.last_epoch == leader.epoch and follower.log_end > leader.log_end:
        # Bytes of this epoch that its only leader lacks: the leader lost them, or they are foreign.
        refusal = RejectCode.DIVERGED, _HOLDS_MORE
    elif start > leader.log_end:
        has_histories = follower.epochs is not None and leader.epochs is not None
        code = RejectCode.BELOW_LOG_START if has_histories else RejectCode.DIVERGED
        refusal = code, _HOLDS_MORE
    elif start < leader.log_start:
        refusal = RejectCode.BELOW_LOG_START, _BELOW_LOG_START
    elif loses_confirmed and leader.is_sync and not leader.accept_loss:
        refusal = RejectCode.CUT_BELOW_CONFIRM, _BELOW_CONFIRM
    if refusal is not None:
        code, sentence = refusal
        return Reject(code, sentence.format(f=follower, le=leader, start=start))
    verify_from = _verify_from(follower, leader, start)
    if start < follower.log_end:
        return CutTo(start, verify_from, start)
    return Accept(start, verify_from, start)


def _common_end(follower: FollowerFacts, leader: LeaderFacts) -> int:
    """Return the end up to which the logs are equal by their histories, or the follower's end."""
    if _is_empty(follower) or follower.epochs is None or leader.epochs is None:
        return follower.log_end
    cut = follower.epochs.cut_against(leader.epochs, follower.log_end, leader.log_end)
    # Nothing in common: everything is cut, if the leader still has all of it.
    return follower.log_start if cut is None else max(cut, follower.log_start)


def _verify_from(follower: FollowerFacts, leader: LeaderFacts, verify_to: int) -> int:
    lowest = min(verify_to, max(follower.log_start, leader.log_start))
    at_segment_end = verify_to % leader.segment_size == 0
    size = VERIFY_BYTES_AT_SEGMENT_END if at_segment_end else VERIFY_BYTES
    return max(lowest, verify_to - size)
