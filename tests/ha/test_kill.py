"""kill -9 of real processes during replication: confirmed messages stay, and the logs end up equal.

A killed process keeps its page cache: these tests find torn streams and bad recovery, not a missing
flush (the simulation covers that).
"""

import asyncio
import json
import random
import signal
import sys
from pathlib import Path
from typing import Any

from cometmq.tests.ha.live import Pair, assert_equal_logs, log_bytes, until


class Process:
    """A replica in another process; `facts` holds the newest values it printed."""

    def __init__(self, directory: Path, broker_id: int, **settings: Any) -> None:
        order = {
            "directory": str(directory),
            "broker_id": broker_id,
            "size_max": 3000,
            "settings": settings,
        }
        self.order = json.dumps(order)
        self.facts: dict[str, int] = {}

    async def start(self) -> "Process":
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "cometmq.tests.ha.node_process",
            self.order,
            cwd="/",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self.listener = asyncio.get_running_loop().create_task(self._listen())
        await until(lambda: "port" in self.facts or self.process.returncode is not None, 60)
        assert self.process.returncode is None
        return self

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if line.endswith(b"\n"):  # the last line of a killed process may be cut
                self.facts.update(json.loads(line))

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()
        await self.listener

    async def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert await self.process.wait() == 0
        await self.listener


async def test_kill_9_of_the_leader_under_load_loses_nothing_confirmed(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        chance = random.Random(1)
        process = await Process(tmp_path / "leader", 0).start()
        port = process.facts["port"]
        follower = await pair.follower(f"127.0.0.1:{port}")
        for _ in range(4):
            goal = follower.replication.confirm + 200_000
            await until(lambda: follower.replication.confirm > goal)  # noqa: B023
            await asyncio.sleep(chance.random() / 20)
            await process.kill()
            confirmed = process.facts["confirm"]
            process = await Process(tmp_path / "leader", 0, ha_listen_port=port).start()
            assert process.facts["end"] >= confirmed
        await process.stop()
        leader = await pair.leader(ha_listen_port=port)
        await assert_equal_logs(leader, follower)
        assert follower.replication.diverged is None


async def test_kill_9_of_the_follower_under_load_loses_nothing_confirmed(tmp_path: Path) -> None:
    async def load(leader: Any) -> None:
        seed = 0
        while True:
            seed += 1
            await leader.append_random(seed, 20)
            await asyncio.sleep(0.01)

    async with Pair(tmp_path) as pair:
        chance = random.Random(2)
        leader = await pair.leader()
        settings = {"ha_master_address": leader.address}
        loading = asyncio.get_running_loop().create_task(load(leader))
        for _ in range(4):
            process = await Process(tmp_path / "follower", 1, **settings).start()
            await asyncio.sleep(0.1 + chance.random() / 5)
            await process.kill()
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        process = await Process(tmp_path / "follower", 1, **settings).start()
        await until(lambda: process.facts.get("end") == leader.log.log_end)
        await process.stop()
        follower = await pair.follower(leader)
        assert log_bytes(follower.log) == log_bytes(leader.log)
        assert follower.replication.replica.meta.incarnation == 6


async def test_a_stopped_leader_is_lost_and_found_again(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        process = await Process(tmp_path / "leader", 0).start()
        address = f"127.0.0.1:{process.facts['port']}"
        follower = await pair.follower(address)
        await until(lambda: follower.replication.confirm > 50_000)
        process.process.send_signal(signal.SIGSTOP)
        await until(lambda: not follower.replication.leader_alive)
        await asyncio.sleep(1)  # unanswered attempts
        process.process.send_signal(signal.SIGCONT)
        await until(lambda: follower.replication.leader_alive)
        goal = follower.replication.confirm + 50_000
        await until(lambda: follower.replication.confirm > goal)
        await process.stop()
        leader = await pair.leader()
        follower.replication.set_leader(leader.address)
        await assert_equal_logs(leader, follower)


async def test_a_stopped_follower_leaves_and_rejoins(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        leader = await pair.leader()
        process = await Process(tmp_path / "follower", 1, ha_master_address=leader.address).start()
        await until(lambda: leader.replication.in_sync_count == 2)
        process.process.send_signal(signal.SIGSTOP)
        await leader.append_random(1, 50)
        await until(lambda: leader.replication.in_sync_count == 1)
        assert leader.replication.confirm == leader.log.log_end
        process.process.send_signal(signal.SIGCONT)
        await until(lambda: leader.replication.in_sync_count == 2)
        await until(lambda: process.facts.get("confirm") == leader.log.log_end)
        await process.stop()
