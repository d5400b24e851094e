"""When a node counts as isolated."""

from cometmq.broker.routing.isolation import Silence


def test_a_node_is_isolated_after_ticks_without_a_message() -> None:
    silence = Silence(3)
    assert [silence.is_over_limit(ns) for ns in (5, 5, 5, 5)] == [False, False, False, True]
    assert silence.is_over_limit(5)
    assert not silence.is_over_limit(6), "heard again"


def test_a_node_that_heard_no_other_since_its_start_is_not_isolated() -> None:
    silence = Silence(2)
    assert not any(silence.is_over_limit(0) for _ in range(9))


def test_a_pause_of_the_process_is_one_tick() -> None:
    silence = Silence(2)
    assert not silence.is_over_limit(1_000)
    # An hour later: what arrived meanwhile is read after this tick.
    assert not silence.is_over_limit(1_000)
    assert not silence.is_over_limit(3_600_000_000_000)
