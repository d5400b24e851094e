"""The leader's answer to a hello: the rules from top to bottom."""

import pytest
from msgspec.structs import replace

from cometmq.ha.core.epochs import EpochHistory, EpochStart
from cometmq.ha.core.hello import (
    RULES,
    VERIFY_BYTES,
    VERIFY_BYTES_AT_SEGMENT_END,
    Accept,
    CutTo,
    FollowerFacts,
    Holder,
    LeaderFacts,
    Reject,
    RejectCode,
    decide,
)

SEGMENT = 1 << 30
FOLLOWER = FollowerFacts(
    cluster="c",
    group="g",
    broker_id=1,
    replica_uuid="u1",
    incarnation=3,
    promised_epoch=1,
    last_epoch=1,
    segment_size=SEGMENT,
    log_start=0,
    log_end=5_000_000,
)
LEADER = LeaderFacts(
    is_leader=True,
    cluster="c",
    group="g",
    broker_id=0,
    epoch=1,
    segment_size=SEGMENT,
    log_start=0,
    log_end=9_000_000,
    holders={},
)

REFUSALS = [
    (RejectCode.WRONG_CLUSTER, {"cluster": "other"}, {}),
    (RejectCode.WRONG_GROUP, {"group": "other"}, {}),
    (RejectCode.NOT_LEADER, {}, {"is_leader": False}),
    (RejectCode.ID_IN_USE, {"broker_id": 0}, {}),
    (RejectCode.ID_IN_USE, {}, {"holders": {1: Holder("another", 1)}}),
    (RejectCode.ID_IN_USE, {}, {"holders": {1: Holder("u1", 4)}}),
    (RejectCode.NEWER_EPOCH_SEEN, {"promised_epoch": 2}, {}),
    (RejectCode.NEWER_EPOCH_SEEN, {"last_epoch": 2}, {}),
    (RejectCode.SEGMENT_SIZE, {"segment_size": 1 << 20}, {}),
    (RejectCode.STALE_EPOCH, {}, {"promised_epoch": 2}),
    (RejectCode.ID_IN_USE, {}, {"uuids": {1: "another"}}),
    (RejectCode.DIVERGED, {"log_end": 9_000_001}, {}),
    (RejectCode.BELOW_LOG_START, {}, {"log_start": 5_000_001}),
]
#: Rejections because of the logs, not of the identity.
PLACES = {RejectCode.DIVERGED, RejectCode.BELOW_LOG_START}


@pytest.mark.parametrize(("code", "follower", "leader"), REFUSALS)
def test_each_rule_rejects_with_its_code(
    code: RejectCode, follower: dict[str, object], leader: dict[str, object]
) -> None:
    verdict = decide(replace(FOLLOWER, **follower), replace(LEADER, **leader))
    assert isinstance(verdict, Reject)
    assert verdict.code is code
    assert "{" not in verdict.sentence


def test_every_rule_is_tested() -> None:
    assert {code for code, _, _ in RULES} == {code for code, _, _ in REFUSALS} - PLACES


def test_the_tail_below_the_followers_end_is_compared() -> None:
    verdict = decide(FOLLOWER, LEADER)
    assert verdict == Accept(5_000_000, 5_000_000 - VERIFY_BYTES, 5_000_000)


def test_a_short_log_is_compared_whole() -> None:
    assert decide(replace(FOLLOWER, log_end=700), LEADER) == Accept(700, 0, 700)


def test_only_bytes_that_both_hold_are_compared() -> None:
    verdict = decide(FOLLOWER, replace(LEADER, log_start=4_999_000))
    assert verdict == Accept(5_000_000, 4_999_000, 5_000_000)


def test_more_bytes_are_compared_at_a_segments_end() -> None:
    leader = replace(LEADER, segment_size=1 << 24, log_end=1 << 25)
    follower = replace(FOLLOWER, segment_size=1 << 24, log_end=1 << 24)
    expected = Accept(1 << 24, (1 << 24) - VERIFY_BYTES_AT_SEGMENT_END, 1 << 24)
    assert decide(follower, leader) == expected


def test_an_empty_follower_starts_at_the_oldest_byte() -> None:
    empty = replace(FOLLOWER, log_end=0)
    assert decide(empty, replace(LEADER, log_start=4096)) == Accept(4096, 4096, 4096)
    assert decide(empty, LEADER) == Accept(0, 0, 0)


def test_equal_ends_are_accepted() -> None:
    assert isinstance(decide(replace(FOLLOWER, log_end=9_000_000), LEADER), Accept)


def test_a_restarted_replica_replaces_its_own_stream() -> None:
    verdict = decide(FOLLOWER, replace(LEADER, holders={1: Holder("u1", 2)}))
    assert isinstance(verdict, Accept)


def epochs(*pairs: tuple[int, int]) -> EpochHistory:
    return EpochHistory(EpochStart(epoch, start) for epoch, start in pairs)


LEADER_3 = replace(
    LEADER,
    epoch=3,
    promised_epoch=3,
    epochs=epochs((1, 0), (2, 2_000_000), (3, 6_000_000)),
)


def test_a_follower_with_its_own_epoch_cuts_where_the_logs_diverge() -> None:
    former_leader = replace(FOLLOWER, epochs=epochs((1, 0)))
    assert decide(former_leader, LEADER_3) == CutTo(2_000_000, 2_000_000 - VERIFY_BYTES, 2_000_000)


def test_a_follower_that_is_only_behind_continues_at_its_end() -> None:
    behind = replace(FOLLOWER, epochs=epochs((1, 0), (2, 2_000_000)), last_epoch=2)
    assert decide(behind, LEADER_3) == Accept(5_000_000, 5_000_000 - VERIFY_BYTES, 5_000_000)


def test_a_follower_with_more_bytes_than_its_leader_cuts_the_rest() -> None:
    longer = replace(FOLLOWER, epochs=epochs((1, 0)), log_end=9_500_000)
    next_leader = replace(LEADER, epoch=2, epochs=epochs((1, 0), (2, 9_000_000)))
    assert decide(longer, next_leader) == CutTo(9_000_000, 9_000_000 - VERIFY_BYTES, 9_000_000)


def test_confirmed_bytes_are_cut_only_with_accept_loss() -> None:
    former_leader = replace(FOLLOWER, epochs=epochs((1, 0)), confirm=2_000_001)
    verdict = decide(former_leader, LEADER_3)
    assert isinstance(verdict, Reject)
    assert verdict.code is RejectCode.CUT_BELOW_CONFIRM
    assert isinstance(decide(former_leader, replace(LEADER_3, accept_loss=True)), CutTo)
    # In an asynchronous group the confirm offset only limits reads.
    assert isinstance(decide(former_leader, replace(LEADER_3, is_sync=False)), CutTo)


def test_without_a_common_epoch_everything_is_cut_if_the_leader_has_it() -> None:
    stranger = replace(FOLLOWER, epochs=epochs((2, 0)), log_start=0)
    assert decide(stranger, LEADER_3) == CutTo(0, 0, 0)
    verdict = decide(stranger, replace(LEADER_3, log_start=4096))
    assert isinstance(verdict, Reject)
    assert verdict.code is RejectCode.BELOW_LOG_START


def test_a_cut_below_the_followers_own_start_cuts_everything() -> None:
    partial = replace(FOLLOWER, epochs=epochs((1, 0)), log_start=3_000_000)
    assert decide(partial, LEADER_3) == CutTo(3_000_000, 3_000_000, 3_000_000)


def test_a_follower_whose_first_byte_is_above_the_leaders_end_must_reseed() -> None:
    partial = replace(FOLLOWER, epochs=epochs((4, 0)), log_start=9_000_001, log_end=9_100_000)
    verdict = decide(partial, replace(LEADER_3, epoch=4, promised_epoch=4))
    assert isinstance(verdict, Reject)
    assert verdict.code is RejectCode.BELOW_LOG_START


def test_a_replica_named_by_the_state_keeps_its_broker_id() -> None:
    assert isinstance(decide(FOLLOWER, replace(LEADER, uuids={1: "u1", 2: "u2"})), Accept)


def test_bytes_of_the_leaders_own_epoch_that_it_lacks_are_not_cut() -> None:
    longer = replace(FOLLOWER, epochs=epochs((1, 0)), last_epoch=1, log_end=9_500_000)
    verdict = decide(longer, replace(LEADER, epochs=epochs((1, 0))))
    assert isinstance(verdict, Reject)
    assert verdict.code is RejectCode.DIVERGED
