"""Times and durations of the command line: one grammar, read as it is printed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cometmq.cli.times import (
    duration,
    duration_ms,
    durations_ms,
    keep_utc,
    moment,
    time_ms,
    time_text,
)
from cometmq.operations.times import duration_text

NOW_MS = 1_795_000_000_123
# Years in which every zone has whole minutes and dates fit.
_MOMENTS = st.integers(0, 4_102_444_800_000)
_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}


@given(st.integers(0, 10**14))
def test_a_printed_duration_is_read_as_the_same(ms: int) -> None:
    assert duration_ms(duration_text(ms)) == ms


@given(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(list(_UNITS))), min_size=1))
def test_the_parts_of_a_duration_are_added(parts: list[tuple[int, str]]) -> None:
    text = "".join(f"{number}{unit}" for number, unit in parts)
    assert duration_ms(text) == sum(number * _UNITS[unit] for number, unit in parts)


@given(st.integers(0, 10**6), st.sampled_from(list(_UNITS)))
def test_a_number_alone_has_the_unit_of_the_option(number: int, unit: str) -> None:
    assert duration_ms(str(number), unit) == duration_ms(f"{number}{unit}")


@given(_MOMENTS, st.booleans())
def test_a_printed_time_is_read_as_the_same(ms: int, utc: bool) -> None:
    with click.Context(click.Command("x")) as ctx:
        keep_utc(ctx, click.Option(["--utc"]), utc)
        assert time_ms(time_text(ms or 1), NOW_MS) == (ms or 1)


@given(_MOMENTS, st.integers(-12 * 60, 14 * 60))
def test_a_zone_is_part_of_the_time(ms: int, minutes: int) -> None:
    zone = timezone(timedelta(minutes=minutes))
    text = datetime.fromtimestamp(ms / 1_000, zone).isoformat("T", "milliseconds")
    assert time_ms(text, NOW_MS) == ms


@given(_MOMENTS)
def test_a_number_is_milliseconds_since_1970(ms: int) -> None:
    assert time_ms(str(ms), NOW_MS) == ms


@given(st.integers(0, 10**11))
def test_a_duration_with_a_sign_is_relative_to_now(ms: int) -> None:
    assert time_ms(f"-{duration_text(ms)}", NOW_MS) == NOW_MS - ms
    assert time_ms(f"+{duration_text(ms)}", NOW_MS) == NOW_MS + ms
    assert time_ms("now", NOW_MS) == NOW_MS


@given(st.text(max_size=20))
@example("-")
@example("+x")
def test_other_text_is_refused_with_a_sentence(text: str) -> None:
    for what in ("time", "duration"):
        try:
            found = time_ms(text, NOW_MS) if what == "time" else duration_ms(text)
        except click.BadParameter as error:
            assert f"is not a {what} such as" in error.message
        else:
            assert found >= 0


def test_a_time_without_a_zone_is_local_or_with_the_option_utc() -> None:
    local = datetime(2026, 11, 22, 10, 0).astimezone()
    assert time_ms("2026-11-22T10:00", NOW_MS) == local.timestamp() * 1_000
    with click.Context(click.Command("x")) as ctx:
        keep_utc(ctx, click.Option(["--utc"]), True)
        there = datetime(2026, 11, 22, 10, 0, tzinfo=UTC)
        assert time_ms("2026-11-22 10:00", NOW_MS) == there.timestamp() * 1_000
        assert time_text(time_ms("2026-11-22", NOW_MS)) == "2026-11-22 00:00:00.000+00:00"
    assert time_text(0) == time_text(None) == "-"
    assert time_text(1 << 62) == str(1 << 62)


@pytest.mark.parametrize(
    ("text", "words"),
    [("50ms", "less than 100ms"), ("2m", "more than 60s"), ("soon", "is not a duration")],
)
def test_a_duration_outside_its_limits_is_refused(text: str, words: str) -> None:
    kind = duration("s", least="100ms", most="60s")
    with pytest.raises(click.BadParameter, match=words):
        kind(text)
    assert kind("0.5") == 500
    assert moment("1") == moment(1) == 1
    assert durations_ms("1s,500ms") == [1_000, 500]
