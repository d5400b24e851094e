"""Drain of a leader that steps down as planned: how long it waits, and its result."""

from types import SimpleNamespace
from typing import Any

from cometmq.ha.core.drain import Drain
from cometmq.ha.core.group_state import Ref
from cometmq.ha.core.member import Member, MemberState
from cometmq.ha.role.epoch_start import wait_drained
from cometmq.tests.ha.core.test_in_sync_return import MS, NEW, OLD, Pair


def pair_with(end: int, *, is_sync: bool = True) -> Pair:
    """A follower that has `end` of the leader's 300 bytes."""
    pair = Pair(is_sync=is_sync)
    pair.open(OLD, 200)
    pair.ack(OLD, end)
    return pair


def verdict(pair: Pair, successor: Ref | None, waited_ms: int) -> bool | None:
    drain = Drain(successor, pair.now_ns, 1000 * MS)
    return drain.verdict(pair.core, 300, pair.now_ns + waited_ms * MS)


def test_drain_waits_until_every_follower_has_everything() -> None:
    assert verdict(pair_with(299), OLD, 0) is None
    assert verdict(pair_with(299), OLD, 999) is None
    assert verdict(pair_with(300), OLD, 0) is True
    assert verdict(pair_with(300), None, 0) is True


def test_drain_reports_missing_bytes_after_its_limit() -> None:
    assert verdict(pair_with(299), OLD, 1000) is False
    assert verdict(pair_with(299, is_sync=False), OLD, 1000) is False


def test_after_half_of_the_time_the_successor_alone_suffices() -> None:
    pair = pair_with(300, is_sync=False)
    # Another in-sync follower has nothing yet.
    pair.core.members[2] = Member(2, "u2", 1, MemberState.IN_SYNC)
    assert verdict(pair, OLD, 400) is None
    assert verdict(pair, OLD, 501) is True
    assert verdict(pair, NEW, 501) is None, "another incarnation of it"
    assert verdict(pair, NEW, 1000) is False


async def test_drain_of_a_leader_that_lost_its_role_returns_false() -> None:
    pair = pair_with(200)
    side: Any = SimpleNamespace(
        core=pair.core,
        replica=SimpleNamespace(steady_ns=lambda: pair.now_ns, log=SimpleNamespace(log_end=300)),
    )
    assert not await wait_drained(side, 10, OLD, lambda: False)
