"""Permission to write (R4): by the controller, by every follower's echo, or because no other
replica can be elected."""

from hypothesis import given
from hypothesis import strategies as st

from cometmq.ha.core.lease import Lease

LEASE = 1000
TIMES = st.integers(0, 10_000)


def test_the_controllers_lease_counts_from_the_heartbeat() -> None:
    lease = Lease(LEASE)
    assert not lease.may_write(5)
    lease.renew(100, LEASE)
    assert lease.may_write(1099)
    assert not lease.may_write(1100)
    lease.renew(50, LEASE)  # a late answer shortens nothing
    assert lease.may_write(1099)


def test_an_echo_counts_less_than_the_lease() -> None:
    lease = Lease(LEASE)
    lease.renew_by_peers(100, alone=False)
    assert lease.may_write(999)
    assert not lease.may_write(1000)
    lease.renew_by_peers(None, alone=False)
    assert not lease.may_write(999)


def test_a_lone_replica_has_permission_without_end() -> None:
    lease = Lease(LEASE)
    lease.renew_by_peers(None, alone=True)
    assert lease.may_write(10**15)
    lease.end()
    assert not lease.may_write(10**15)


def test_no_write_before_the_former_leaders_permission_ended() -> None:
    lease = Lease(LEASE, write_after_ns=500)
    lease.renew_by_peers(None, alone=True)
    assert not lease.may_write(499)
    assert lease.may_write(500)


def test_a_static_leader_needs_no_lease() -> None:
    assert Lease(LEASE, is_needed=False).may_write(10**15)


@given(sent=TIMES, now=TIMES, echo=st.none() | TIMES)
def test_permission_is_bounded_by_the_lease(sent: int, now: int, echo: int | None) -> None:
    lease = Lease(LEASE)
    lease.renew(sent, LEASE)
    lease.renew_by_peers(echo, alone=False)
    lease.validate()
    newest = max(sent, echo or 0)
    assert not lease.may_write(newest + LEASE)
