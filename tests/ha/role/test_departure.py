"""A replica that stops leaves its group first: a static leader does not wait for it."""

from pathlib import Path

from cometmq.ha.core.follower_events import State
from cometmq.tests.ha.live import Live, Pair, until


def both_in_sync(leader: Live, follower: Live) -> bool:
    """Return whether the follower is in sync, and knows it."""
    side = follower.replication.roles.follower
    assert side is not None
    return leader.replication.in_sync_count == 2 and side.core.state is State.IN_SYNC


async def test_a_static_leader_goes_on_at_once_without_a_leaving_follower(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader(min_in_sync_replicas=1, ha_in_sync_lag_ms=60_000)
        follower = await pair.follower(leader, ha_in_sync_lag_ms=60_000)
        await until(lambda: both_in_sync(leader, follower))
        end = leader.append(*(b"body %d" % number for number in range(50)))
        await until(lambda: leader.replication.confirm == end)
        await follower.replication.leave(10.0)
        assert leader.replication.in_sync_count == 1
        assert follower.replication.confirm == follower.log.log_end
        assert leader.append(b"alone") == leader.replication.confirm
        await until(lambda: not leader.replication.members()[1].connected)


async def test_a_follower_that_left_does_not_join_again(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader(ha_in_sync_lag_ms=60_000)
        follower = await pair.follower(leader, ha_in_sync_lag_ms=60_000)
        await until(lambda: both_in_sync(leader, follower))
        await follower.replication.leave(10.0)
        for number in range(20):
            leader.append(b"%d" % number)
            assert leader.replication.in_sync_count == 1
        await pair.stop(follower)
        again = await pair.follower(leader, ha_in_sync_lag_ms=60_000)
        await until(lambda: leader.replication.in_sync_count == 2)
        await until(lambda: again.log.log_end == leader.log.log_end)


async def test_a_static_leader_stops_without_a_wait(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        await leader.replication.leave(60.0)
        assert leader.replication.is_leader
