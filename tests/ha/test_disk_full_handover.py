"""A leader with a full disk asks the controller to promote a replica with free space."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.ha.core.group_state import Addresses, GroupState, Member, Ref
from cometmq.ha.role.disk_full_handover import DiskFullHandover
from cometmq.ha.scrub.peer import Peer, PeerError
from cometmq.nodes.node_links import NodeLinks
from cometmq.proto import v1, v2


class World:
    """A group of three with broker 0 as leader."""

    def __init__(self) -> None:
        self.is_leader = True
        self.identity = SimpleNamespace(broker_id=0)
        self.roles = SimpleNamespace(counts=Counter[str]())
        self.paused = True
        self.allocation_failure = ""
        self.out_of_buffers = False
        self.full = {"ha1"}
        self.silent: set[str] = set()
        self.asked: list[tuple[int, int]] = []
        self.answer: v1.GroupsResponse | None = v1.GroupsResponse(code=v2.OK)
        members = tuple(
            Member(number, f"uuid{number}", Addresses(ha=f"ha{number}")) for number in range(3)
        )
        refs = tuple(Ref(number, 1) for number in range(3))
        self.state: GroupState | None = GroupState(
            "c", "g", version=1, epoch=1, leader=refs[0], in_sync=refs, members=members
        )

    async def hand_over(self, to: int, max_wait_ms: int) -> v1.GroupsResponse | None:
        self.asked.append((to, max_wait_ms))
        return self.answer

    def peer(self, address: str) -> Any:
        world = self

        class Known(Peer):
            async def status(self) -> v1.ReplicaStatus:
                if self.address in world.silent:
                    raise PeerError("silent")
                return v1.ReplicaStatus(beat=v1.BrokerBeat(no_room=self.address in world.full))

        return Known(address, NodeLinks())

    @property
    def watch(self) -> DiskFullHandover:
        return DiskFullHandover(self, self, self.peer)  # type: ignore[arg-type]


async def test_the_controller_is_asked_to_promote_a_replica_with_free_space() -> None:
    world = World()
    assert await world.watch.hand_over()
    assert [to for to, _ in world.asked] == [2], "broker 1 is as full"
    assert world.roles.counts["handed_over_without_room"] == 1


@pytest.mark.parametrize("why", ["all full", "silent", "no state", "no controller", "refused"])
async def test_without_a_replica_with_free_space_the_leader_stays_read_only(why: str) -> None:
    world = World()
    if why == "all full":
        world.full.add("ha2")
    elif why == "silent":
        world.silent = {"ha1", "ha2"}
    elif why == "no state":
        world.state = None
    elif why == "no controller":
        world.answer = None
    else:
        world.answer = v1.GroupsResponse(code=v2.BAD_REQUEST, message="a change is under way")
    assert not await world.watch.hand_over()


def test_only_a_leader_with_a_full_disk_hands_over() -> None:
    world = World()
    assert world.watch._is_stuck()
    world.paused = False
    assert not world.watch._is_stuck()
    world.allocation_failure = "No disk space for the next segment."
    assert world.watch._is_stuck()
    world.out_of_buffers = True
    assert not world.watch._is_stuck(), "buffers come back by themselves"
    world.out_of_buffers, world.is_leader = False, False
    assert not world.watch._is_stuck()


async def test_a_leader_with_a_full_disk_hands_over_automatically() -> None:
    world = World()
    task = asyncio.create_task(world.watch.run())
    for _ in range(6_000):
        if world.asked:
            break
        await asyncio.sleep(0.01)
    task.cancel()
    assert len(world.asked) == 1
