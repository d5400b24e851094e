"""Two replicas with equal logs in one process, for tests of the scrub: the test damages their
files."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from cometmq.ha.scrub.peer import Peer, PeerError
from cometmq.ha.scrub.scrub import Options, Scrub
from cometmq.nodes.node_links import NodeLinks
from cometmq.proto import v1
from tests.store.kit import Kit

SMALL = {"max_hash_slot_num": 100, "max_index_num": 400}
FAST = Options(interval_s=0, bytes_per_second=0)
COUNT = 60


class Near(Peer):
    """Another replica in the same process."""

    def __init__(self, scrub: Scrub) -> None:
        super().__init__("near", NodeLinks())
        self.scrub = scrub
        self.down = False

    async def digests(self, start: int, end: int) -> AsyncIterator[v1.BlockDigest]:
        if self.down:
            raise PeerError("it is down")
        request = v1.DigestsRequest(start=start, end=end, recorded_only=True)
        async for each in self.scrub.get_digests(request):
            yield each

    async def read(self, offset: int, length: int) -> bytes:
        if self.down:
            raise PeerError("it is down")
        request = v1.ReadRangeRequest(offset=offset, length=length)
        return b"".join([part.data async for part in self.scrub.read_range(request)])


class Replica:
    def __init__(self, root: Path, **options: Any) -> None:
        self.kit = Kit(root, **SMALL, **options)
        self.peers: list[Peer] = []
        self.scrub: Scrub

    def open(self) -> None:
        self.kit.open()
        self.scrub = Scrub(self.kit.root / "ha", self.kit.store, lambda: self.peers, FAST)


class Pair:
    """Two replicas with the same log of several segments; `damage_bit` flips a bit in the file of
    one."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.one = Replica(root / "one", **options)
        self.two = Replica(root / "two", **options)
        self.one.open()
        self.records = self.one.kit.write_many(COUNT, size=200)
        self.one.kit.close()
        shutil.copytree(root / "one", root / "two")
        self.bytes = self.one.kit.log_bytes()
        for replica in (self.one, self.two):
            replica.open()
            replica.kit.dispatch()
        self.near = Near(self.two.scrub)
        self.one.peers = [self.near]
        self.two.peers = [Near(self.one.scrub)]

    async def __aenter__(self) -> Pair:
        await self.one.scrub.seal()
        await self.two.scrub.seal()
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.one.kit.close()
        self.two.kit.close()
