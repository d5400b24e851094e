"""The rules of retention as a table, and what must hold whatever is asked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cometmq.store.config.store_config import StoreConfig
from cometmq.store.retention.rules import (
    UNKNOWN,
    Pressure,
    Reason,
    Rules,
    SegmentFacts,
    Situation,
    decide,
    pressure_of,
    used_percent,
    writes_stop,
)

HOUR = 3_600_000
NOW = 1_700_000_000_000
OLD = NOW - 72 * HOUR
RULES = Rules.of(StoreConfig())
#: At 04:30, with room on the disk, everything flushed and dispatched.
QUIET = Situation(NOW, 4, Pressure.NONE, safe_end=1 << 40)


def segment(index: int, modified_ms: int = OLD, **facts: Any) -> SegmentFacts:
    return SegmentFacts(index * 100, index * 100 + 100, modified_ms, **facts)


def reason(facts: SegmentFacts, situation: Situation = QUIET, rules: Rules = RULES) -> Reason:
    """Of one segment that is not the last."""
    return decide([facts, segment(99)], situation, rules)[0].reason


CASES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], Reason]] = [
    # what, segment, situation, rules, why
    ("expired in its hour", {}, {}, {}, Reason.EXPIRED),
    ("expired to the millisecond", {"modified_ms": OLD + 1}, {}, {}, Reason.YOUNG),
    ("another hour", {}, {"hour": 5}, {}, Reason.HOUR),
    ("one of several hours", {}, {"hour": 16}, {"hours": frozenset((4, 16))}, Reason.EXPIRED),
    ("above 75 %: any hour", {}, {"hour": 5, "pressure": Pressure.ANY_HOUR}, {}, Reason.EXPIRED),
    (
        "above 75 %: but not the young",
        {"modified_ms": NOW},
        {"pressure": Pressure.ANY_HOUR},
        {},
        Reason.YOUNG,
    ),
    (
        "above 85 %: the young, too",
        {"modified_ms": NOW},
        {"hour": 5, "pressure": Pressure.FORCED},
        {},
        Reason.FORCED,
    ),
    (
        "above 90 %: the same",
        {"modified_ms": NOW},
        {"hour": 5, "pressure": Pressure.STOP},
        {},
        Reason.FORCED,
    ),
    (
        "not with cleanFileForciblyEnable=false",
        {"modified_ms": NOW},
        {"pressure": Pressure.STOP},
        {"forcibly": False},
        Reason.YOUNG,
    ),
    (
        "but at any hour",
        {},
        {"hour": 5, "pressure": Pressure.STOP},
        {"forcibly": False},
        Reason.EXPIRED,
    ),
    ("not flushed or dispatched", {}, {"safe_end": 99}, {}, Reason.UNSAFE),
    (
        "which no pressure changes",
        {},
        {"safe_end": 99, "pressure": Pressure.STOP},
        {},
        Reason.UNSAFE,
    ),
    ("not archived, the gate is off", {}, {"archive_watermark": 99}, {}, Reason.EXPIRED),
    ("not archived", {}, {"archive_watermark": 99}, {"archive_gate": True}, Reason.ARCHIVE),
    ("archived", {}, {"archive_watermark": 100}, {"archive_gate": True}, Reason.EXPIRED),
    (
        "not archived, above 75 %",
        {},
        {"archive_watermark": 99, "pressure": Pressure.ANY_HOUR},
        {"archive_gate": True},
        Reason.ARCHIVE,
    ),
    ("a message waits in it", {}, {"waiting_from": 99}, {}, Reason.WAITS),
    ("none waits in it", {}, {"waiting_from": 100}, {}, Reason.EXPIRED),
    (
        "a message waits in it, above 75 %",
        {},
        {"waiting_from": 0, "pressure": Pressure.ANY_HOUR},
        {},
        Reason.WAITS,
    ),
    (
        "a message waits in it, above 85 %",
        {},
        {"waiting_from": 0, "pressure": Pressure.FORCED},
        {},
        Reason.EXPIRED,
    ),
    ("a follower needs it", {}, {"replica_end": 99}, {}, Reason.REPLICA),
    ("a follower has it", {}, {"replica_end": 100}, {}, Reason.EXPIRED),
    (
        "a follower needs it, above 85 %",
        {},
        {"replica_end": 0, "pressure": Pressure.FORCED},
        {},
        Reason.EXPIRED,
    ),
    ("a reader holds it", {"held_ms": 0}, {}, {}, Reason.HELD),
    (
        "a reader holds it, above 90 %",
        {"held_ms": 119_999},
        {"pressure": Pressure.STOP},
        {},
        Reason.HELD,
    ),
    ("a reader holds it for too long", {"held_ms": 120_000}, {}, {}, Reason.EXPIRED),
]


@pytest.mark.parametrize(
    ("facts", "situation", "rules", "expected"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_one_segment(
    facts: dict[str, Any], situation: dict[str, Any], rules: dict[str, Any], expected: Reason
) -> None:
    found = reason(
        replace(segment(0), **facts), replace(QUIET, **situation), replace(RULES, **rules)
    )
    assert found is expected


def test_overridden_reasons_are_named() -> None:
    situation = replace(QUIET, pressure=Pressure.FORCED, archive_watermark=0, replica_end=50)
    rules = replace(RULES, archive_gate=True)
    verdict = decide([segment(0), segment(1)], situation, rules)[0]
    assert verdict.delete
    assert verdict.overridden == (Reason.ARCHIVE, Reason.REPLICA)


def test_the_last_segment_stays_and_deletion_is_in_order() -> None:
    row = [segment(0), segment(1, held_ms=1), segment(2), segment(3, NOW), segment(4)]
    verdicts = decide(row, QUIET, RULES)
    assert [verdict.reason for verdict in verdicts] == [
        Reason.EXPIRED,
        Reason.HELD,
        Reason.BEHIND,
        Reason.YOUNG,
        Reason.LAST,
    ]
    assert "at 100, which stays" in verdicts[2].sentence
    assert decide(row[:1], replace(QUIET, pressure=Pressure.STOP), RULES)[0].reason is Reason.LAST
    assert decide([], QUIET, RULES) == []


def test_a_round_deletes_no_more_than_its_batch() -> None:
    row = [segment(index) for index in range(30)]
    verdicts = decide(row, QUIET, RULES)
    assert [verdict.delete for verdict in verdicts] == [True] * 10 + [False] * 20
    assert {verdict.reason for verdict in verdicts[10:-1]} <= {Reason.BATCH, Reason.BEHIND}
    head = decide(row[:11], QUIET, RULES, whole=False)
    assert [verdict.delete for verdict in head] == [True] * 10 + [False]


@pytest.mark.parametrize("pressure", [Pressure.ANY_HOUR, Pressure.FORCED, Pressure.STOP])
def test_under_disk_pressure_a_round_deletes_one_segment(pressure: Pressure) -> None:
    row = [segment(index) for index in range(5)]
    verdicts = decide(row, replace(QUIET, pressure=pressure), RULES)
    assert [verdict.delete for verdict in verdicts] == [True, False, False, False, False]
    assert verdicts[1].sentence == "it may go in a later round: the disk use is measured after each"


def test_sentences_name_the_deletion_time() -> None:
    young = decide([segment(0, NOW - 71 * HOUR - 57 * 60_000), segment(1)], QUIET, RULES)[0]
    assert young.sentence == (
        "it is younger than fileReservedTime (72 h): 3 min are left; "
        "then it is deleted in the hour 04 (deleteWhen)"
    )
    waits = decide([segment(0), segment(1)], replace(QUIET, hour=23), RULES)[0]
    assert waits.sentence == (
        "it is expired, and is deleted in the hour 04 (deleteWhen); the hour is 23 now"
    )


@pytest.mark.parametrize(
    ("log", "queues", "expected"),
    [
        ([10], 10, Pressure.NONE),
        ([75], 75, Pressure.NONE),
        ([76], 0, Pressure.ANY_HOUR),
        ([0], 76, Pressure.ANY_HOUR),
        ([85], 85, Pressure.ANY_HOUR),
        ([86], 0, Pressure.FORCED),
        ([90], 90, Pressure.FORCED),
        ([91], 0, Pressure.STOP),
        ([0], 91, Pressure.STOP),
        ([99, 20], 10, Pressure.NONE),  # the next segment goes where there is room
        ([99, 80], 10, Pressure.ANY_HOUR),
        ([UNKNOWN], 10, Pressure.ANY_HOUR),
        ([], 10, Pressure.ANY_HOUR),
        ([10], UNKNOWN, Pressure.ANY_HOUR),
    ],
)
def test_pressure(log: list[int], queues: int, expected: Pressure) -> None:
    assert pressure_of(RULES, log, queues) is expected


def test_ratios_are_clamped_as_rocketmq_does() -> None:
    low = Rules.of(
        StoreConfig(
            disk_max_used_space_ratio=1,
            disk_space_clean_forcibly_ratio=1,
            disk_space_warning_level_ratio=1,
        )
    )
    assert (low.max_used, low.forced, low.warning) == (10, 30, 35)
    high = Rules.of(
        StoreConfig(
            disk_max_used_space_ratio=99,
            disk_space_clean_forcibly_ratio=99,
            disk_space_warning_level_ratio=99,
        )
    )
    assert (high.max_used, high.forced, high.warning) == (95, 85, 90)


def test_writing_stops_at_the_warning_level_and_resumes_at_the_forced_one() -> None:
    stopped = False
    seen = []
    for percent in (89, 90, 91, 95, 90, 86, 85, 88, 90, 91):
        stopped = writes_stop(pressure_of(RULES, [percent], 0), stopped)
        seen.append(stopped)
    assert seen == [False, False, True, True, True, True, False, False, False, True]


def test_use_is_rounded_up_and_leaves_out_what_is_reserved_for_root() -> None:
    assert used_percent(1000, 500, 500) == 50
    assert used_percent(1000, 499, 499) == 51
    assert used_percent(1000, 150, 100) == 90  # 850 of 950
    assert used_percent(1000, 0, 0) == 100
    assert used_percent(0, 0, 0) == UNKNOWN


facts_lists = st.lists(
    st.tuples(
        st.integers(NOW - 100 * HOUR, NOW + HOUR),
        st.one_of(st.none(), st.integers(0, 200_000)),
    ),
    max_size=25,
)
situations = st.builds(
    Situation,
    now_ms=st.just(NOW),
    hour=st.integers(0, 23),
    pressure=st.sampled_from(Pressure),
    safe_end=st.integers(0, 2600),
    archive_watermark=st.integers(0, 2600),
    replica_end=st.one_of(st.none(), st.integers(0, 2600)),
)
rule_sets = st.builds(
    Rules,
    reserved_ms=st.integers(0, 100).map(lambda hours: hours * HOUR),
    hours=st.frozensets(st.integers(0, 23), min_size=1),
    max_used=st.just(75),
    forced=st.just(85),
    warning=st.just(90),
    forcibly=st.booleans(),
    batch_max=st.integers(1, 12),
    hold_max_ms=st.integers(0, 150_000),
    archive_gate=st.booleans(),
)


@given(facts_lists, situations, rule_sets)
def test_decide_handles_arbitrary_input(
    facts: list[tuple[int, int | None]], situation: Situation, rules: Rules
) -> None:
    row = [segment(index, modified, held_ms=held) for index, (modified, held) in enumerate(facts)]
    verdicts = decide(row, situation, rules)
    assert [verdict.segment for verdict in verdicts] == row
    gone = [verdict for verdict in verdicts if verdict.delete]
    assert gone == verdicts[: len(gone)], "only from the front"
    assert len(gone) <= (rules.batch_max if situation.pressure is Pressure.NONE else 1)
    assert not row or not verdicts[-1].delete
    forced = rules.forcibly and situation.pressure >= Pressure.FORCED
    for verdict in gone:
        facts_of = verdict.segment
        assert facts_of.end <= situation.safe_end
        assert forced or facts_of.modified_ms + rules.reserved_ms <= NOW
        assert forced or not rules.archive_gate or facts_of.end <= situation.archive_watermark
        assert forced or situation.replica_end is None or facts_of.end <= situation.replica_end
        assert facts_of.held_ms is None or facts_of.held_ms >= rules.hold_max_ms
        assert verdict.reason in (Reason.EXPIRED, Reason.FORCED)
        assert bool(verdict.overridden) <= forced
    assert all(verdict.sentence for verdict in verdicts)
    # One more fact of a segment behind never changes what is decided about the ones in front.
    shorter = decide(row[:-1], situation, rules, whole=False)
    assert [verdict.delete for verdict in shorter] == [v.delete for v in verdicts[:-1]]
