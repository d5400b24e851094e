"""The leader's answer to a hello: the table from top to bottom."""

from dataclasses import replace

import pytest

from cometmq.ha.core.hello import (
    RULES,
    VERIFY_BYTES,
    VERIFY_BYTES_AT_SEGMENT_END,
    Accept,
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
    (RejectCode.DIVERGED, {"log_end": 9_000_001}, {}),
    (RejectCode.BELOW_LOG_START, {}, {"log_start": 5_000_001}),
]


@pytest.mark.parametrize(("code", "follower", "leader"), REFUSALS)
def test_refusals(code: RejectCode, follower: dict[str, object], leader: dict[str, object]) -> None:
    verdict = decide(replace(FOLLOWER, **follower), replace(LEADER, **leader))  # type: ignore[arg-type]
    assert isinstance(verdict, Reject)
    assert verdict.code is code
    assert "{" not in verdict.sentence


def test_every_rule_is_tested() -> None:
    assert {code for code, _, _ in RULES} == {code for code, _, _ in REFUSALS}


def test_the_tail_below_the_followers_end_is_compared() -> None:
    verdict = decide(FOLLOWER, LEADER)
    assert verdict == Accept(5_000_000, 5_000_000 - VERIFY_BYTES, 5_000_000)


def test_a_short_log_is_compared_whole() -> None:
    assert decide(replace(FOLLOWER, log_end=700), LEADER) == Accept(700, 0, 700)


def test_only_bytes_that_both_hold_are_compared() -> None:
    verdict = decide(FOLLOWER, replace(LEADER, log_start=4_999_000))
    assert verdict == Accept(5_000_000, 4_999_000, 5_000_000)


def test_padding_at_a_segments_end_is_not_proof_enough() -> None:
    leader = replace(LEADER, segment_size=1 << 24, log_end=1 << 25)
    follower = replace(FOLLOWER, segment_size=1 << 24, log_end=1 << 24)
    expected = Accept(1 << 24, (1 << 24) - VERIFY_BYTES_AT_SEGMENT_END, 1 << 24)
    assert decide(follower, leader) == expected


def test_an_empty_follower_starts_at_the_oldest_byte() -> None:
    empty = replace(FOLLOWER, log_end=0)
    assert decide(empty, replace(LEADER, log_start=4096)) == Accept(4096, 4096, 4096)
    assert decide(empty, LEADER) == Accept(0, 0, 0)


def test_equal_ends_are_fine() -> None:
    assert isinstance(decide(replace(FOLLOWER, log_end=9_000_000), LEADER), Accept)


def test_a_restarted_replica_replaces_its_own_stream() -> None:
    verdict = decide(FOLLOWER, replace(LEADER, holders={1: Holder("u1", 2)}))
    assert isinstance(verdict, Accept)
