"""The order in which a pop reads queues, and the due times of groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.pop.due import DueTimes
from cometmq.broker.pop.fifo.order import (
    by_priority,
    falls_in,
    in_turn,
    priority_factor,
    with_retries,
)
from cometmq.broker.pop.group import PopGroup
from cometmq.broker.pop.subscription import Subscription


@pytest.mark.parametrize("percent", [0, 1, 20, 33, 50, 99, 100])
def test_a_share_of_turns_is_exact_and_evenly_distributed(percent: int) -> None:
    assert sum(falls_in(turn, percent) for turn in range(100)) == percent
    assert sum(falls_in(turn, percent) for turn in range(700, 1_000)) == 3 * percent


def test_queues_rotate() -> None:
    assert in_turn(3, 0) == [(0, 0), (0, 1), (0, 2)]
    assert in_turn(3, 4) == [(0, 1), (0, 2), (0, 0)]
    assert {in_turn(8, turn)[0] for turn in range(8)} == {(0, n) for n in range(8)}


def test_urgent_queues_come_first() -> None:
    assert by_priority(3, ascending=True) == [(0, 2), (0, 1), (0, 0)]
    assert by_priority(3, ascending=False) == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.parametrize(
    ("text", "factor"), [(None, 100), ("0", 0), ("30", 30), ("400", 100), ("x", 100), ("-1", 100)]
)
def test_the_factor_is_an_attribute_of_the_group(text: str | None, factor: int) -> None:
    assert priority_factor({} if text is None else {"priority.factor": text}) == factor


def test_retries_come_first_in_their_share_of_turns_and_last_otherwise() -> None:
    main, retries = [(0, 0), (0, 1)], [(1, 0)]
    orders = [with_retries(main, retries, turn, 20) for turn in range(5)]
    assert orders[4] == retries + main
    assert all(order == main + retries for order in orders[:4])
    assert with_retries(main, [], 4, 20) is main


def subscription() -> Subscription:
    """Return an order without a group."""
    return Subscription(PopGroup("t", "g", 1, 0))


def test_a_group_is_due_once_at_its_earliest_time() -> None:
    due, one, other = DueTimes(), subscription(), subscription()
    assert due.schedule(one, 50)
    assert not due.schedule(one, 70)
    assert due.schedule(other, 20)
    assert due.schedule(one, 10)
    assert due.next_ms() == 10
    assert due.take(9) is None
    assert [due.take(60) for _ in range(3)] == [one, other, None]
    assert due.next_ms() is None
    due.schedule(one, 5)
    due.clear()
    assert due.take(99) is None and one.due_ms == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 1_000)), max_size=400))
def test_the_heap_of_due_times_is_bounded_by_the_groups(asked: list[tuple[int, int]]) -> None:
    due, subs = DueTimes(), [subscription() for _ in range(4)]
    wanted: dict[int, int] = {}
    for which, due_ms in asked:
        due.schedule(subs[which], due_ms)
        wanted[which] = min(due_ms, wanted.get(which, due_ms))
    assert len(due) <= 64 + 2 * len(subs)
    found = []
    for now_ms in range(1_001):
        while (sub := due.take(now_ms)) is not None:
            found.append((now_ms, subs.index(sub)))
    assert sorted(found) == sorted((ms, which) for which, ms in wanted.items())
