"""Running replicas for tests: a log, its engine, and the wiring of a broker."""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from cometmq.front.config import DoorConfig
from cometmq.ha.config import HaConfig
from cometmq.ha.engine import Identity, Replication
from cometmq.nodes.node_links import NodeLinks
from cometmq.tests.ha.real_store import RealLog

SEGMENT = 64 * 1024
#: Intervals of a test: fractions of a second instead of the defaults' seconds.
QUICK: dict[str, Any] = {
    "ha_listen_port": 0,
    "ha_beat_interval_ms": 200,
    "ha_in_sync_lag_ms": 1500,
    "slave_timeout": 500,
    "ha_reconnect_min_ms": 20,
    "ha_reconnect_max_ms": 200,
    "ha_refused_retry_ms": 300,
    "ha_offsets_interval_ms": 20,
    "ha_transfer_batch_size": 16 * 1024,
    "ha_window_size": 64 * 1024,
}


class Live:
    """One replica on a real store in this process."""

    def __init__(
        self,
        directory: Path,
        *,
        broker_id: int = 0,
        group: str = "group",
        segment: int = SEGMENT,
        store: dict[str, Any] | None = None,
        door: DoorConfig | None = None,
        bind: str = "127.0.0.1",
        links: NodeLinks | None = None,
        **settings: Any,
    ) -> None:
        role = "SLAVE" if broker_id else "SYNC_MASTER"
        self.config = HaConfig(**{"broker_role": role, **QUICK, **settings})
        self.directory = directory
        self.broker_id = broker_id
        self.group = group
        self.segment = segment
        self.store_options = store or {}
        self.door, self.bind, self.links = door, bind, links
        self.nameservers: list[str] = []
        self.confirms = 0
        self.alive_changes: list[bool] = []
        self.offsets: dict[str, int] = {}
        self.applied: list[bytes] = []

    async def start(self) -> "Live":
        self.real = RealLog(self.directory, self.segment, **self.store_options)
        self.log = self.real.log
        replication = self.replication = Replication(
            self.config,
            Identity("cluster", self.group, self.broker_id),
            self.log,
            time.monotonic_ns,
            directory=self.directory / "ha",
            segment_size=self.segment,
            sync_flush=self.log.config.sync_flush,
            nameservers=self.nameservers,
            bind_address=self.bind,
            links=self.links,
            door=self.door,
        )
        loop = asyncio.get_running_loop()

        def on_flushed(offset: int) -> None:
            with suppress(RuntimeError):  # the loop of a test that ended
                loop.call_soon_threadsafe(replication.flushed)

        self.log.on_flushed = on_flushed
        replication.on_confirm = self._on_confirm
        replication.on_leader_change = self.alive_changes.append
        replication.offsets_apply = self.applied.append
        try:
            await replication.start()
        except BaseException:
            self.real.close()
            raise
        return self

    def _on_confirm(self) -> None:
        self.confirms += 1

    async def stop(self) -> None:
        await self.replication.stop()
        self.real.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.replication.port}"

    def append(self, *bodies: bytes) -> int:
        for body in bodies:
            self.real.append(body)
        self.replication.appended()
        return self.log.log_end

    async def append_random(self, seed: int, count: int, size_max: int = 3000) -> int:
        """Appends in bursts, each one turn of the loop."""
        chance = random.Random(seed)
        while count > 0:
            burst = min(count, chance.randrange(1, 20))
            self.append(*(chance.randbytes(chance.randrange(1, size_max)) for _ in range(burst)))
            count -= burst
            await asyncio.sleep(0)
        return self.log.log_end


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.01)


def log_bytes(log: Any) -> bytes:
    """The whole log of a store, as it can be read."""
    pieces = []
    offset = log.log_start
    while offset < log.log_end:
        pieces.append(log.read_log(offset, 1 << 20))
        offset += len(pieces[-1])
    return b"".join(pieces)


def files_of(directory: Path) -> dict[str, bytes]:
    """Every file of the commit log, whole."""
    return {path.name: path.read_bytes() for path in sorted((directory / "commitlog").iterdir())}


async def assert_equal_logs(leader: Live, *followers: Live) -> None:
    for follower in followers:
        await until(lambda f=follower: f.log.log_end >= leader.log.log_end)  # type: ignore[misc]
        assert log_bytes(follower.log) == log_bytes(leader.log)


class Pair:
    """Starts replicas under one directory and stops those that still run when the block ends."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.running: list[Live] = []

    async def leader(self, name: str = "leader", **settings: Any) -> Live:
        return await self._start(Live(self.root / name, **settings))

    async def follower(
        self, leader: Live | str, name: str = "follower", broker_id: int = 1, **settings: Any
    ) -> Live:
        address = leader if isinstance(leader, str) else leader.address
        return await self._start(
            Live(self.root / name, broker_id=broker_id, ha_master_address=address, **settings)
        )

    async def _start(self, live: Live) -> Live:
        await live.start()
        self.running.append(live)
        return live

    async def stop(self, live: Live) -> None:
        self.running.remove(live)
        await live.stop()

    async def stop_all(self) -> None:
        for live in reversed(self.running[:]):
            await self.stop(live)

    async def __aenter__(self) -> "Pair":
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop_all()
