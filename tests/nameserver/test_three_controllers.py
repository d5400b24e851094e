"""Three nameservers with a replicated controller: one is active, any one may fail, decisions
stay."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cometmq.nameserver.controller_host import ReplicatedControllerHost
from cometmq.nameserver.server import NameserverServer
from cometmq.proto import paths, v1, v2
from cometmq.tests.harness.ports import free_ports
from cometmq.tests.nameserver.fake_broker import (
    WAIT_S,
    FakeBroker,
    Link,
    controller_config,
    joined,
    until,
)


class Trio:
    """Three nameservers on fixed ports, each with a directory of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
        self.links = [Link(address) for address in self.addresses]
        self.servers: list[NameserverServer | None] = [None, None, None]

    async def start(self, index: int) -> None:
        others = [a for i, a in enumerate(self.addresses) if i != index]
        config = controller_config(
            self.root / f"ns{index}",
            listen_port=int(self.addresses[index].rpartition(":")[2]),
            controller_peers=",".join(others),
            # Long enough that a busy machine does not change the active nameserver.
            controller_lease_ms=2_000,
        )
        server = NameserverServer(config)
        await server.start()
        self.servers[index] = server

    async def stop(self, index: int) -> None:
        server, self.servers[index] = self.servers[index], None
        if server is not None:
            await server.stop(0.2)

    async def active(self, group: str = "") -> int:
        """Return the index of the active nameserver, if exactly one is active."""
        async with asyncio.timeout(WAIT_S):
            while True:
                found = []
                for index, server in enumerate(self.servers):
                    deciding = server._controller_host if server is not None else None
                    if deciding is not None and deciding.controller.active:
                        found.append(index)
                if len(found) == 1:
                    return found[0]
                assert len(found) < 2
                await asyncio.sleep(0.02)


@asynccontextmanager
async def trio(root: Path) -> AsyncIterator[Trio]:
    three = Trio(root)
    try:
        for index in range(3):
            await three.start(index)
        yield three
    finally:
        for index in range(3):
            await three.stop(index)
        for link in three.links:
            await link.close()


def together(server: NameserverServer) -> ReplicatedControllerHost:
    deciding = server._controller_host
    assert isinstance(deciding, ReplicatedControllerHost)
    return deciding


async def pair(three: Trio) -> tuple[FakeBroker, FakeBroker, int]:
    leader, follower = FakeBroker(0, three.links), FakeBroker(1, three.links)
    servers = [server for server in three.servers if server is not None]
    await until(lambda: all(together(server)._acceptor.votes for server in servers))
    await until(lambda: all(together(server)._active.holder for server in servers))
    leader.start()
    await until(lambda: leader.leads)
    follower.start()
    await until(lambda: follower.state.version > 0)
    await joined(leader, follower, *three.links)
    return leader, follower, await three.active()


async def test_another_nameserver_becomes_active_and_fails_over(tmp_path: Path) -> None:
    async with trio(tmp_path) as three:
        leader, follower, first = await pair(three)
        passive = three.links[(first + 1) % 3]
        answer = await passive.call(
            paths.SWITCHOVER, v1.SwitchoverRequest(group="g", to=1), v1.GroupsResponse
        )
        assert answer.code == v2.HA_NOT_AVAILABLE
        assert three.addresses[first] in answer.message
        async with asyncio.timeout(WAIT_S):
            while True:
                shown = (await passive.groups("g")).groups[0]
                if shown.state.version == leader.state.version:
                    break
                await asyncio.sleep(0.02)
        assert not shown.active
        refused = await leader.propose([leader], passive, 99)
        assert (refused.accepted, refused.active) == (False, False)
        await three.stop(first)
        second = await three.active()
        assert second != first
        assert leader.leads, "a controller that stops must not stop a group"
        await leader.stop()
        await until(lambda: follower.leads)
        assert follower.state.epoch == 2
        await three.start(first)
        answer = await three.links[second].groups("g")
        assert answer.groups[0].state.epoch == 2
        await follower.stop()


async def test_a_nameserver_without_its_disk_recovers_from_the_others(tmp_path: Path) -> None:
    async with trio(tmp_path) as three:
        leader, follower, first = await pair(three)
        version = leader.state.version
        await leader.stop()
        await follower.stop()
        await three.stop(first)
        shutil.rmtree(tmp_path / f"ns{first}")
        await three.start(first)
        server = three.servers[first]
        assert server is not None
        cells = together(server)._acceptor
        await until(lambda: cells.votes)
        assert "group/g" in cells.names
        for other in range(3):
            if other != first:
                await three.stop(other)
                break
        now = await three.active()
        link = three.links[now]
        async with asyncio.timeout(WAIT_S):
            while True:
                answer = await link.groups()
                # It shows what it had heard before until it has read the register.
                if answer.groups and answer.groups[0].state.version >= version:
                    break
                await asyncio.sleep(0.02)


async def test_without_a_majority_no_nameserver_is_active(tmp_path: Path) -> None:
    async with trio(tmp_path) as three:
        leader, follower, first = await pair(three)
        await three.stop((first + 1) % 3)
        await three.stop((first + 2) % 3)
        server = three.servers[first]
        assert server is not None
        await until(lambda: not together(server).controller.active)
        assert leader.leads
        epoch = leader.state.epoch
        count = len(leader.directives)
        await until(lambda: len(leader.directives) > count + 5)
        assert all(not d.lease_for_seq for d in leader.directives[count + 2 :])
        assert leader.state.epoch == epoch
        await leader.stop()
        await follower.stop()
