"""The broker's sessions with its controllers, over the wire: leases, states, proposals, reports,
restarts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cometmq.ha.core.group_state import Policy
from cometmq.ha.core.role_machine import Role
from cometmq.ha.rejoin import archive, pending
from cometmq.store.config.store_config import StoreConfig
from cometmq.tests.ha.fake_controller import FakeController
from cometmq.tests.ha.live import SEGMENT, Live, assert_equal_logs, until


class Broker(Live):
    """A replica with its own sessions to the nameservers, which restarts when `on_reopen` is
    called."""

    def __init__(self, root: Path, broker_id: int, nameservers: list[str], **settings: Any) -> None:
        super().__init__(
            root / f"b{broker_id}",
            broker_id=broker_id,
            **{
                "broker_role": "SYNC_MASTER",
                "enable_controller_mode": True,
                "controller_lease_ms": 1500,
                "controller_beat_interval_ms": 50,
                "ha_beat_interval_ms": 100,
                **settings,
            },
        )
        self.nameservers = nameservers
        self.reopening: list[asyncio.Task[None]] = []
        self.starts = 0
        self.told.promoted = self._start_epoch
        self.told.reopen = self._on_reopen

    async def start(self) -> "Broker":
        options = StoreConfig(
            store_path_root_dir=str(self.directory), mapped_file_size_commit_log=SEGMENT
        )
        pending.run(self.directory, options)
        await super().start()
        self.starts += 1
        replication = self.replication
        replication.announce(client="c", ha=self.address, metrics="m")
        return self

    def _start_epoch(self, epoch: int) -> None:
        self.append(b"EPOCH_START %d" % epoch)

    def _on_reopen(self, reason: str) -> None:
        self.reopening.append(asyncio.get_running_loop().create_task(self._reopen()))

    async def _reopen(self) -> None:
        await self.stop()
        await self.start()


class World:
    def __init__(self, root: Path, policy: Policy | None = None) -> None:
        self.root = root
        self.controller = FakeController(policy)
        self.extra: list[str] = []
        self.brokers: list[Broker] = []

    async def broker(self, broker_id: int, **settings: Any) -> Broker:
        nameservers = [*self.extra, self.controller.address]
        live = Broker(self.root, broker_id, nameservers, **settings)
        await live.start()
        self.brokers.append(live)
        return live

    async def stop(self, live: Broker) -> None:
        self.brokers.remove(live)
        await live.stop()

    async def __aenter__(self) -> "World":
        await self.controller.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        for live in self.brokers[:]:
            await asyncio.gather(*live.reopening, return_exceptions=True)
            await self.stop(live)
        await self.controller.stop()


async def test_a_new_group_gets_its_leader_and_its_followers(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        leader, follower = await world.broker(0), await world.broker(1)
        await until(lambda: leader.replication.is_leader)
        await until(lambda: leader.replication.write_refusal() is None)
        await leader.append_random(1, 50)
        await assert_equal_logs(leader, follower)
        await until(lambda: len(world.controller.state.in_sync) == 2)
        await until(lambda: leader.replication.confirm == leader.log.log_end)
        assert follower.replication.leader_hint == (0, "c", leader.address)
        assert world.controller.heartbeats[1].log_end <= leader.log.log_end


async def test_a_lost_and_returning_controller_stops_no_writes(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        leader, follower = await world.broker(0), await world.broker(1)
        await until(lambda: len(world.controller.state.in_sync) == 2)
        await world.controller.stop()
        await asyncio.sleep(2)  # longer than the lease: now echoes keep the permission
        await until(lambda: leader.replication.write_refusal() is None)
        assert not leader.replication.has_controller
        end = await leader.append_random(1, 20)
        await until(lambda: leader.replication.confirm == end)
        await world.controller.start()
        await until(lambda: leader.replication.has_controller)
        assert leader.replication.is_leader
        assert 3 in world.controller.known or world.controller.known, "it sends its state"
        await assert_equal_logs(leader, follower)


async def test_a_follower_that_restarts_without_a_controller_finds_its_leader(
    tmp_path: Path,
) -> None:
    async with World(tmp_path) as world:
        leader, follower = await world.broker(0), await world.broker(1)
        await until(lambda: len(world.controller.state.in_sync) == 2)
        await world.controller.stop()
        await world.stop(follower)
        follower = await world.broker(1)
        await until(lambda: follower.replication.leader_alive)
        end = leader.append(b"still here")
        await until(lambda: follower.log.log_end == end)
        await world.controller.start()


async def test_a_deposed_leader_cuts_its_tail_and_reports_it(tmp_path: Path) -> None:
    async with World(tmp_path, Policy(sync=False)) as world:
        old, new = await world.broker(0), await world.broker(1)
        await until(lambda: len(world.controller.state.in_sync) == 2)
        await assert_equal_logs(old, new)
        await world.stop(new)
        old.append(*(b"lost %d" % number for number in range(5)))
        await asyncio.sleep(0.3)
        await world.stop(old)
        new = await world.broker(1)
        await until(lambda: world.controller.heartbeats[1].replica.incarnation == 2)
        world.controller.elect(1)
        await until(lambda: new.replication.is_leader)
        old = await world.broker(0)
        await until(lambda: old.starts == 2)
        new.append(b"and on")
        await assert_equal_logs(new, old)
        await until(lambda: len(world.controller.cuts) == 1)
        report = world.controller.cuts[0]
        assert (report.messages, report.below_local_ok) == (5, 5)
        await until(lambda: archive.load_tails(old.directory / "ha")[0].reported)
        await until(lambda: len(world.controller.state.in_sync) == 2)


async def test_orders_and_leases_come_from_the_active_nameserver(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        idle = await FakeController().start()
        idle.active = False
        world.extra = [idle.address]
        leader = await world.broker(0)
        await until(lambda: leader.replication.is_leader)
        await world.broker(1)
        await until(lambda: len(world.controller.state.in_sync) == 2)
        assert leader.replication.role is Role.LEADER
        await idle.stop()


async def test_a_dead_nameserver_delays_nothing(tmp_path: Path) -> None:
    async with World(tmp_path) as world:
        world.extra = ["127.0.0.1:1"]
        leader = await world.broker(0)
        await until(lambda: leader.replication.is_leader, 5)


async def test_the_first_bytes_of_a_follower_are_reported_immediately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica whose last heartbeat reports an empty log cannot be elected when the leader
    fails."""
    monkeypatch.setattr(Broker, "_start_epoch", lambda self, epoch: None)
    async with World(tmp_path) as world:
        leader = await world.broker(0)
        await until(lambda: leader.replication.is_leader)
        slow = await world.broker(1, controller_beat_interval_ms=20_000, controller_lease_ms=60_000)
        await until(lambda: slow.replication.leader_alive)
        await asyncio.sleep(0.3)  # every heartbeat of the start is over
        assert world.controller.heartbeats[1].log_is_empty
        await leader.append_random(1, 1)
        await until(lambda: slow.log.log_end > 0)
        await until(lambda: not world.controller.heartbeats[1].log_is_empty, 10)
