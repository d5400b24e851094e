"""Changes of role in place, over real stores and streams: promotion, fencing, and rejoining with a
diverged tail."""

import asyncio
from pathlib import Path

from cometmq.ha.core.group_state import Policy
from cometmq.ha.core.role_machine import DiskFailed, FenceOrdered, LeaseRenewed, Role
from cometmq.ha.rejoin import (
    archive,
)
from cometmq.ha.state import (
    epochs_file,
)
from cometmq.proto import v1
from cometmq.tests.ha.group import Group
from cometmq.tests.ha.live import assert_equal_logs, log_bytes, until


async def test_no_replica_leads_before_the_controllers_directive(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.start(0, 1)
        await asyncio.sleep(0.1)
        assert {replica.role for replica in group.replicas.values()} == {Role.FOLLOWER}
        assert group.replicas[0].replication.write_refusal() is not None
        group.elect(0)
        leader = await group.leads(0)
        assert leader.promoted == [1]
        assert leader.replication.write_refusal() is None
        await leader.append_random(1, 50)
        await assert_equal_logs(leader, group.replicas[1])
        await until(lambda: len(group.state.in_sync) == 2)
        await until(lambda: leader.replication.confirm == leader.log.log_end)


async def test_a_follower_becomes_the_leader_in_place_and_the_leader_a_follower(
    tmp_path: Path,
) -> None:
    async with Group(tmp_path) as group:
        await group.start(0, 1)
        group.elect(0)
        one = await group.leads(0)
        two = group.replicas[1]
        end = await one.append_random(1, 50)
        await until(lambda: len(group.state.in_sync) == 2)
        await until(lambda: two.log.log_end == end)
        group.elect(1, in_sync=(0, 1))
        await group.leads(1)
        assert one.stepped_down and two.promoted == [2]
        assert two.replication.replica.history.entries[-1].start == end
        await two.append_random(2, 50)
        await assert_equal_logs(two, one)
        assert one.replication.replica.history == two.replication.replica.history
        assert epochs_file.load(one.directory / "ha") == two.replication.replica.history
        assert one.starts == two.starts == 1
        await until(lambda: two.replication.confirm == two.log.log_end)


async def test_a_replica_whose_election_is_superseded_in_the_same_turn_follows_the_new_leader(
    tmp_path: Path,
) -> None:
    """Drill 38: the promotion stopped the follower that the next epoch needed."""
    async with Group(tmp_path) as group:
        await group.start(0, 1)
        group.elect(0)
        leader = await group.leads(0)
        other = group.replicas[1]
        await leader.append_random(1, 20)
        await until(lambda: len(group.state.in_sync) == 2)
        await assert_equal_logs(leader, other)
        group.elect(1, in_sync=(0, 1))
        group.elect(0, in_sync=(0, 1))
        leader = await group.leads(0)
        await leader.append_random(2, 20)
        await assert_equal_logs(leader, other)


async def test_an_unconfirmed_tail_is_archived_and_cut(tmp_path: Path) -> None:
    async with Group(tmp_path, policy=Policy(sync=False)) as group:
        await group.start(0, 1)
        group.elect(0)
        old = await group.leads(0)
        new = group.replicas[1]
        common = await old.append_random(1, 20)
        await until(lambda: len(group.state.in_sync) == 2)
        await until(lambda: new.log.log_end == common)
        await group.stop(1)
        old.append(*(b"only here %d" % number for number in range(10)))
        tail = log_bytes(old.log)[common:]
        await group.start(1)
        for replica in (old, group.replicas[1]):
            side = replica.replication.roles.follower
            if side is not None:
                side.set_leader("")
        group.elect(1)
        new = await group.leads(1)
        await until(lambda: old.starts == 2)
        await new.append_random(2, 20)
        await assert_equal_logs(new, old)
        (archived,) = archive.load_tails(old.directory / "ha")
        kept = (archive.folder_of(old.directory / "ha") / archived.log_name).read_bytes()
        assert kept.ljust(len(tail), b"\0")[: len(tail)] == tail
        assert (archived.start, archived.messages, archived.answered_ok) == (common, 10, 10)


async def test_a_cut_below_the_confirm_offset_leads_to_hold(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.start(0)
        group.elect(0)
        old = await group.leads(0)
        end = await old.append_random(1, 20)
        await until(lambda: old.replication.confirm == end)
        await group.start(1)
        group.elect(1)  # a wrong decision: it has nothing
        await group.leads(1)
        await until(lambda: old.role is Role.HOLD)
        assert old.log.log_end == end
        assert old.starts == 1
        group.decide(accept_loss=True)
        group.replicas[1].replication.roles.state_seen(group.state)
        group.tell_state(old)
        await until(lambda: old.starts == 2)
        await assert_equal_logs(group.replicas[1], old)


async def test_a_leader_of_an_old_epoch_is_fenced_by_a_follower_that_promised_more(
    tmp_path: Path,
) -> None:
    async with Group(tmp_path) as group:
        await group.start(0, 1)
        group.elect(0)
        leader = await group.leads(0)
        await until(lambda: len(group.state.in_sync) == 2)
        group.replicas[1].replication.roles.feed(FenceOrdered(7))
        await until(lambda: leader.role is Role.FENCED)
        assert leader.replication.replica.promised_epoch == 7
        assert leader.replication.write_refusal() is not None


async def test_a_leader_without_permission_refuses_writes(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.start(0, 1)
        group.elect(0, in_sync=(0, 1))
        leader = await group.leads(0)
        await until(lambda: leader.replication.confirm == leader.log.log_end)
        group.answers_proposals = False  # the controller is gone, too
        leader.replication.roles.machine.lease.controller_until_ns = 0
        await asyncio.sleep(0.3)
        await until(lambda: leader.replication.write_refusal() is None)  # its follower echoes
        await group.stop(1)
        await until(lambda: leader.replication.write_refusal() is not None)
        assert "no answer from the controller" in (leader.replication.write_refusal() or "")
        await until(lambda: leader.role is Role.FENCED)
        assert leader.replication.heartbeat().role == v1.LEADER, "it must not be taken for gone"
        now_ns = leader.replication.replica.steady_ns()
        leader.replication.lease(LeaseRenewed(now_ns, 60_000_000_000))
        await until(lambda: leader.replication.write_refusal() is None)
        assert (leader.replication.epoch, leader.promoted) == (1, [1, 1])


async def test_a_follower_that_returns_without_a_controller_is_accepted(
    tmp_path: Path,
) -> None:
    async with Group(tmp_path) as group:
        await group.start(0, 1)
        group.elect(0, in_sync=(0, 1))
        leader = await group.leads(0)
        await until(lambda: leader.replication.confirm == leader.log.log_end)
        group.answers_proposals = False
        leader.replication.roles.machine.lease.controller_until_ns = 0
        await group.stop(1)
        await until(lambda: leader.role is Role.FENCED)
        version = group.state.version
        await group.start(1)  # a later incarnation of the same disk
        await until(lambda: leader.replication.write_refusal() is None)
        await leader.append_random(1, 20)
        await until(lambda: leader.replication.confirm == leader.log.log_end)
        assert group.replicas[1].ref not in group.state.in_sync
        assert group.state.version == version
        assert leader.promoted == [1, 1] and leader.starts == 1
        assert len(leader.replication.replica.history.entries) == 1


async def test_a_failed_disk_marks_the_replica_suspect_and_calls_fatal(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.start(0)
        group.elect(0)
        leader = await group.leads(0)
        leader.replication.roles.feed(DiskFailed("a flush failed"))
        assert leader.failed == ["a flush failed"]
        assert leader.role is Role.FENCED
        await group.stop(0)
        await group.start(0)
        assert group.replicas[0].replication.replica.meta.suspect
