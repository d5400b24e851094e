"""A broker group with a nameserver that elects its leader and a proxy, each with a metrics page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from cometmq.broker.proxy.base.config import ProxyConfig
from cometmq.broker.proxy.server import ProxyServer
from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.tests.broker.live import Live, Settings, running, settings, until

WITHIN_S = 120.0


@dataclass
class Monitored:
    """The running processes' parts, all in the test's own process."""

    root: Path
    namesrv: str
    clock: Clock = field(default_factory=Clock)
    proxy: str = ""
    #: Metrics pages of the replicas, the proxy and the nameserver.
    targets: list[str] = field(default_factory=list)
    #: By broker id.
    replicas: dict[int, Live] = field(default_factory=dict)
    _stops: dict[int, AsyncExitStack] = field(default_factory=dict)

    @property
    def leader(self) -> Live:
        """The replica that leads."""
        (found,) = [one for one in self.replicas.values() if one.node.leadership.is_leader]
        return found

    @property
    def follower(self) -> Live:
        """The one replica that does not lead."""
        (found,) = [one for one in self.replicas.values() if not one.node.leadership.is_leader]
        return found

    def broker_id(self, replica: Live) -> int:
        """Return the id of a running replica."""
        (found,) = [number for number, one in self.replicas.items() if one is replica]
        return found

    async def start(self, number: int) -> None:
        """Start a replica, for the first time or again."""
        self._stops[number] = AsyncExitStack()
        self.replicas[number] = await self._stops[number].enter_async_context(
            running(self._settings(number), self.clock)
        )

    async def stop(self, replica: Live) -> None:
        """Stop a replica."""
        number = self.broker_id(replica)
        del self.replicas[number]
        await self._stops.pop(number).aclose()

    async def in_sync(self) -> None:
        """Wait for a leader and an in-sync follower."""
        alive = self.replicas.values()
        await until(lambda: sum(one.node.leadership.is_leader for one in alive) == 1, WITHIN_S)
        await until(lambda: self.leader.node.replication.in_sync_count == 2, WITHIN_S)

    def _settings(self, number: int) -> Settings:
        base = settings(self.root / f"b{number}", namesrv_addr=self.namesrv, broker_id=number)
        role: Literal["SYNC_MASTER", "SLAVE"] = "SLAVE" if number else "SYNC_MASTER"
        return replace(base, ha=replace(base.ha, enable_controller_mode=True, broker_role=role))


@asynccontextmanager
async def monitored(root: Path) -> AsyncIterator[Monitored]:
    """Run a nameserver, two replicas in sync, and a proxy."""
    async with AsyncExitStack() as stack:
        namesrv = NameserverServer(
            NameserverConfig(
                bind_address="127.0.0.1",
                listen_port=0,
                namesrv_metrics_port=0,
                controller=True,
                namesrv_data_dir=str(root / "n"),
            )
        )
        live = Monitored(root, await namesrv.start())
        stack.push_async_callback(namesrv.stop, 0.2)

        async def stop_replicas() -> None:
            for replica in list(live.replicas.values()):
                await live.stop(replica)

        stack.push_async_callback(stop_replicas)
        for number in range(2):
            await live.start(number)
            await until(lambda: live.replicas[0].node.leadership.is_leader, WITHIN_S)
        await live.in_sync()
        proxy = ProxyServer(
            ProxyConfig(
                bind_address="127.0.0.1",
                grpc_server_port=0,
                metrics_prom_exporter_port=0,
                namesrv_addr=live.namesrv,
            ),
            DoorConfig(),
        )
        bound = await proxy.start()
        stack.push_async_callback(proxy.stop, 0.2)
        live.proxy = bound.client
        pages = [one.bound.metrics for one in live.replicas.values()]
        live.targets += [*pages, bound.metrics, namesrv.metrics_address]
        yield live
