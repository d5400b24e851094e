"""Token buckets bound a rate in every period; subjects of quotas are parsed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.auth.quota import TokenBucket, parse_subject

SECOND = 1_000_000_000
RATES = st.integers(1, 1_000_000)
#: Nanoseconds since the call before, and what the call takes.
CALLS = st.lists(st.tuples(st.integers(0, 2 * SECOND), st.integers(1, 2_000_000)), max_size=40)


@given(RATES, CALLS)
def test_a_bucket_bounds_what_passes_in_every_period(
    rate: int, calls: list[tuple[int, int]]
) -> None:
    bucket = TokenBucket(rate, 0)
    now_ns = 0
    passed: list[tuple[int, int]] = []
    for after_ns, count in calls:
        now_ns += after_ns
        if bucket.admits(now_ns):
            bucket.take(count)
            passed.append((now_ns, count))
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            period_ns = passed[last][0] - passed[first][0]
            # The last request may be larger than what is left.
            before_last = sum(count for _, count in passed[first:last])
            assert before_last * SECOND < rate * (SECOND + period_ns)


@given(RATES, st.lists(st.tuples(st.integers(1, SECOND), st.integers(0, 100)), max_size=40))
def test_a_bucket_admits_everything_below_its_rate(rate: int, calls: list[tuple[int, int]]) -> None:
    bucket = TokenBucket(rate, 0)
    now_ns = 0
    for after_ns, percent in calls:
        now_ns += after_ns
        assert bucket.admits(now_ns)
        bucket.take(after_ns * rate * percent // 100 // SECOND)


@given(RATES, st.integers(1, 10_000_000))
def test_a_debt_is_paid_at_the_rate(rate: int, count: int) -> None:
    bucket = TokenBucket(rate, 0)
    bucket.take(count)
    free_ns = max(0, (count - rate) * SECOND // rate)
    if count >= rate:
        assert not bucket.admits(free_ns)
    assert bucket.admits(free_ns + 1)


@given(RATES, st.integers(0, 10 * SECOND))
def test_a_time_that_goes_back_adds_nothing(rate: int, now_ns: int) -> None:
    bucket = TokenBucket(rate, now_ns)
    bucket.take(rate)
    assert not bucket.admits(now_ns)
    assert not bucket.admits(now_ns - 1)
    assert bucket.admits(now_ns + 1)


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("topic:orders", "Topic:orders"),
        ("Topic:*", "Topic:*"),
        ("USER:a.b@c", "User:a.b@c"),
        ("user:*", "User:*"),
    ],
)
def test_a_subject_has_one_form(text: str, subject: str) -> None:
    assert parse_subject(text) == subject


@pytest.mark.parametrize(
    "text",
    ["", "*", "orders", "Group:g", "Topic:", "Topic:a*", "User:", "User:a b", "Topic:%DLQ%g"],
)
def test_other_subjects_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid"):
        parse_subject(text)
