"""What properties ask for, where a timer waits, and the delay levels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.store.config.delay_levels import (
    DelayOffsets,
    due_ms,
    parse_levels,
    queue_of,
)
from cometmq.store.config.store_config import StoreConfig
from cometmq.store.format.json_file import unseal
from cometmq.store.format.properties import DELAY_LEVELS_MS
from cometmq.store.timer.rules import (
    ANY_MARK,
    NO_MARK,
    Request,
    TimerSlot,
    Verdict,
    cancellation,
    congested,
    delete_key,
    is_cancelled,
    recall_key,
    requested,
    rounded,
    slot_for,
)

CONFIG = StoreConfig()
NOW_MS = 1_700_000_000_400
WINDOW_MS = 172_800_000


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, Request(Verdict.ORDINARY)),
        ({"DELAY": "0"}, Request(Verdict.ORDINARY)),
        ({"DELAY": "-1"}, Request(Verdict.ORDINARY)),
        ({"DELAY": "x"}, Request(Verdict.ORDINARY)),
        ({"DELAY": "3", "TIMER_DELAY_MS": "x"}, Request(Verdict.LEVEL)),
        ({"TIMER_DELAY_SEC": "3"}, Request(Verdict.TIMER, 1_700_000_003_000)),
        ({"TIMER_DELAY_MS": "600"}, Request(Verdict.TIMER, 1_700_000_000_000)),
        ({"TIMER_DELAY_MS": "601"}, Request(Verdict.TIMER, 1_700_000_001_000)),
        ({"TIMER_DELIVER_MS": "1700000005000"}, Request(Verdict.TIMER, 1_700_000_004_000)),
        (
            {"TIMER_DELIVER_MS": "1", "TIMER_DELAY_MS": "5000", "TIMER_DELAY_SEC": "9"},
            Request(Verdict.TIMER, 1_700_000_009_000),
        ),
        ({"TIMER_DELIVER_MS": str(NOW_MS)}, Request(Verdict.ORDINARY)),
        ({"TIMER_DELAY_SEC": "-5"}, Request(Verdict.ORDINARY)),
        ({"TIMER_DELAY_SEC": "259200"}, Request(Verdict.TIMER, 1_700_259_200_000)),
    ],
)
def test_what_properties_ask_for(properties: dict[str, str], expected: Request) -> None:
    assert requested(properties, NOW_MS, CONFIG) == expected


@pytest.mark.parametrize(
    ("properties", "verdict", "word"),
    [
        ({"TIMER_DELAY_SEC": "soon"}, Verdict.ILLEGAL, "number"),
        ({"TIMER_DELAY_MS": " 5"}, Verdict.ILLEGAL, "number"),
        ({"TIMER_DELAY_MS": "9" * 30}, Verdict.ILLEGAL, "number"),
        ({"TIMER_DELAY_SEC": "259201"}, Verdict.ILLEGAL, "timerMaxDelaySec"),
        ({"TIMER_DELIVER_MS": "1", "TIMER_DEL_UNIQKEY": "k"}, Verdict.ILLEGAL, "due"),
    ],
)
def test_what_is_refused(properties: dict[str, str], verdict: Verdict, word: str) -> None:
    found = requested(properties, NOW_MS, CONFIG)
    assert found.verdict is verdict
    assert word in found.reason


def test_without_the_wheel_timers_are_refused() -> None:
    config = replace(CONFIG, timer_wheel_enable=False)
    assert requested({"TIMER_DELAY_SEC": "1"}, NOW_MS, config).verdict is Verdict.NOT_ENABLED
    assert requested({"DELAY": "1"}, NOW_MS, config).verdict is Verdict.LEVEL


@given(
    st.dictionaries(st.sampled_from(["DELAY", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"]), st.text())
)
def test_no_properties_crash_the_verdict(properties: dict[str, str]) -> None:
    found = requested(properties, NOW_MS, CONFIG)
    assert bool(found.out_ms) == (found.verdict is Verdict.TIMER)


@given(st.integers(1, 1 << 50), st.sampled_from([100, 1000, 7]))
def test_rounding_never_delivers_early(deliver: int, precision: int) -> None:
    out_ms = rounded(deliver, precision)
    assert out_ms % precision == 0
    assert out_ms < deliver <= out_ms + precision


@given(st.integers(0, 4 * WINDOW_MS // 1000), st.integers(0, 10_000))
def test_a_timer_waits_at_its_time_or_rolls_there(seconds: int, start: int) -> None:
    write_ms, out_ms = start * 1000, (start + seconds) * 1000
    rolls = 0
    while True:
        where = slot_for(out_ms, write_ms, CONFIG)
        assert where is not None
        assert write_ms <= where.slot_ms <= out_ms
        assert where.rolled == (out_ms - write_ms >= WINDOW_MS)
        if not where.rolled:
            assert where.slot_ms == out_ms
            break
        # What is left after a roll is worth the way.
        assert out_ms - where.slot_ms >= WINDOW_MS // 2 or where.slot_ms - write_ms == WINDOW_MS
        write_ms = where.slot_ms
        rolls += 1
    assert rolls <= 4


def test_the_limits_of_rolling() -> None:
    assert slot_for(0, 1000, CONFIG) is None
    assert slot_for(1000, 1000, CONFIG) == TimerSlot(1000, False)
    assert slot_for(WINDOW_MS - 1000, 0, CONFIG) == TimerSlot(WINDOW_MS - 1000, False)
    assert slot_for(WINDOW_MS, 0, CONFIG) == TimerSlot(WINDOW_MS // 2, True)
    assert slot_for(WINDOW_MS + WINDOW_MS // 3 - 1000, 0, CONFIG) == TimerSlot(WINDOW_MS // 2, True)
    assert slot_for(WINDOW_MS + WINDOW_MS // 3, 0, CONFIG) == TimerSlot(WINDOW_MS, True)


@pytest.mark.parametrize("hours", [0, 1, 24, 48, 64, 72, 1000])
def test_no_message_waits_longer_than_retention_leaves_its_record(hours: int) -> None:
    config = replace(CONFIG, file_reserved_time=hours)
    for seconds in range(60, config.timer_max_delay_sec, 977):
        where = slot_for(seconds * 1000, 0, config)
        assert where is not None
        assert where.slot_ms <= max(hours, 1) * 3_600_000 * 3 // 4
        assert where.slot_ms <= WINDOW_MS


def test_congestion_refuses_more_the_fuller_a_slot_is() -> None:
    assert not congested(100, 100, 0.0)
    assert congested(200, 100, 0.999)
    assert congested(150, 100, 0.49)
    assert not congested(150, 100, 0.5)


def test_cancellations_name_a_key_with_or_without_its_topic() -> None:
    assert delete_key("K") == "K"
    assert delete_key("K", "T") == "T+K"
    assert not is_cancelled(frozenset({"K"}), "K", "T")
    for mark in (ANY_MARK, NO_MARK):
        assert is_cancelled({cancellation("K", "T", mark), "V+U+K"}, "K", "T")
        assert is_cancelled({cancellation("T+K", "T", mark)}, "K", "T")
        others = {cancellation("K", "U", mark), cancellation("T+K", "U", mark)}
        assert not is_cancelled(others, "K", "T")
    assert is_cancelled(frozenset({"T+K"}), "K", "T")
    assert not is_cancelled(frozenset({"U+K", "L"}), "K", "T")


def test_a_cancellation_names_the_message_of_its_topic_and_mark() -> None:
    marked = [recall_key("K", mark) for mark in (0, 5, 6)]

    def named(key: str, mark: int, topic: str = "T") -> list[bool]:
        names = {cancellation(key, "T", mark)}
        return [is_cancelled(names, each, topic) for each in marked]

    assert named("K", 5) == named("T+K", 5) == [False, True, False]
    assert named("K", NO_MARK) == [True, False, False]
    assert named("K", ANY_MARK) == named("T+K", ANY_MARK) == [True, True, True]  # Apache's
    for mark in (5, NO_MARK, ANY_MARK):
        assert not any(named("K", mark, "U") + named("L", mark))
    assert cancellation("K", "", ANY_MARK) == "K"


@pytest.mark.parametrize(
    "change",
    [
        {"timer_precision_ms": 0},
        {"timer_max_delay_sec": 0},
        {"timer_roll_window_slot": 604_800},
        {"mapped_file_size_timer_log": 67},
        {"timer_congest_num_each_slot": -1},
    ],
)
def test_settings_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"[tT]imer"):
        replace(CONFIG, **change)


def test_the_levels() -> None:
    text = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    assert parse_levels(text) == DELAY_LEVELS_MS
    assert parse_levels(" 2d\t3h ") == (172_800_000, 10_800_000)
    for wrong in ("", "5", "5x", "s", "-1s", "1.5s"):
        with pytest.raises(ValueError, match="messageDelayLevel"):
            parse_levels(wrong)
    assert [queue_of(level) for level in (1, 18, 19)] == [0, 17, 17]
    assert due_ms(NOW_MS, 3) == NOW_MS + 10_000


def test_offsets_of_levels_stay_within_their_queues(tmp_path: Path) -> None:
    path = tmp_path / "config" / "delayOffset.json"
    offsets = DelayOffsets(path, lambda: 5)
    offsets.load()
    assert offsets.offset(1, 7, 9) == 7
    offsets.set(1, 8)
    offsets.set(18, 3)
    assert offsets.offset(1, 7, 9) == 8
    assert offsets.offset(1, 0, 4) == 4
    offsets.save()
    assert unseal(path.read_text()) == (
        '{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":5\n\t},\n'
        '\t"offsetTable":{\n\t\t1:8,\n\t\t18:3\n\t}\n}'
    )
    path.write_text('{"offsetTable":{"1":2,40:6},"more":[1]}')
    again = DelayOffsets(path, lambda: 5)
    again.load()
    assert again.offset(1, 0, 9) == 2
    again.set(2, 1)
    again.save()
    assert "40:6" in path.read_text()
    assert '"more":[1]' in path.read_text()
