"""The leader's answer to a follower's hello: follow me from here, or why not.

`RULES` is the whole decision, read from top to bottom: the first rule that applies refuses. The order
matters: who speaks is checked before what it holds (HA note, section 6.6 and rules R6, R9).

An accepted follower still has to compare the CRC-32 of the last `VERIFY_BYTES` below its own end with
the leader's: equal ends prove nothing (HA note, finding 3). It acknowledges nothing before that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

#: How much of the common log's tail both sides compare. Logs that parted below the follower's end
#: went on with different messages, so its end is where to look.
VERIFY_BYTES = 1 << 20
#: At the end of a segment the last bytes may all be padding, which is equal in every log: look
#: further back than the largest record that could have needed the room.
VERIFY_BYTES_AT_SEGMENT_END = 8 << 20


class RejectCode(Enum):
    """Names are those of the wire's enumeration."""

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


@dataclass(frozen=True, slots=True)
class FollowerFacts:
    """What a hello claims."""

    cluster: str
    group: str
    broker_id: int
    replica_uuid: str
    incarnation: int
    promised_epoch: int
    last_epoch: int  #: newest entry of its epoch history
    segment_size: int
    log_start: int
    log_end: int


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a broker id on this leader now."""

    replica_uuid: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class LeaderFacts:
    is_leader: bool
    cluster: str
    group: str
    broker_id: int
    epoch: int
    segment_size: int
    log_start: int
    log_end: int
    holders: Mapping[int, Holder]  #: broker ids with a stream


@dataclass(frozen=True, slots=True)
class Accept:
    start_offset: int  #: the first chunk starts here
    verify_from: (
        int  #: [verify_from, verify_to) must be equal on both sides; empty for an empty log
    )
    verify_to: int


@dataclass(frozen=True, slots=True)
class Reject:
    code: RejectCode
    sentence: str


def _id_in_use(follower: FollowerFacts, leader: LeaderFacts) -> bool:
    if follower.broker_id == leader.broker_id:
        return True
    holder = leader.holders.get(follower.broker_id)
    if holder is None:
        return False
    # The same replica may replace its own stream, unless an older life of it speaks.
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
        RejectCode.SEGMENT_SIZE,
        lambda f, le: f.segment_size != le.segment_size,
        "mappedFileSizeCommitLog is {f.segment_size} on the follower and {le.segment_size} here: "
        "both must be equal",
    ),
    (
        RejectCode.DIVERGED,
        lambda f, le: f.log_end > le.log_end,
        "the follower's log ends at {f.log_end}, above the leader's {le.log_end}: it holds "
        "messages that the leader does not have",
    ),
    (
        RejectCode.BELOW_LOG_START,
        lambda f, le: f.log_end < le.log_start and not _is_empty(f),
        "the follower's log ends at {f.log_end}, below the leader's first byte {le.log_start}: "
        "move its store directory aside and let it copy everything again",
    ),
)


def decide(follower: FollowerFacts, leader: LeaderFacts) -> Accept | Reject:
    for code, applies, sentence in RULES:
        if applies(follower, leader):
            return Reject(code, sentence.format(f=follower, le=leader))
    if follower.log_end < leader.log_start:  # empty: everything the leader still has
        return Accept(leader.log_start, leader.log_start, leader.log_start)
    verify_to = follower.log_end
    lowest = min(verify_to, max(follower.log_start, leader.log_start))
    at_segment_end = verify_to % leader.segment_size == 0
    size = VERIFY_BYTES_AT_SEGMENT_END if at_segment_end else VERIFY_BYTES
    return Accept(verify_to, max(lowest, verify_to - size), verify_to)
