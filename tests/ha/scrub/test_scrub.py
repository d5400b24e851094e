"""Scrub: damage is found, never delivered, repaired from an intact copy, and never causes a cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from cometmq.ha.scrub.peer import Peer
from cometmq.ha.scrub.scrub import Scrub
from cometmq.ha.state import digests
from cometmq.ha.state.digests import SegmentDigest
from cometmq.nodes.node_links import NodeLinks
from cometmq.proto import paths, v1
from cometmq.store.format.disk import Disk
from cometmq.store.format.errors import CorruptLogError
from cometmq.store.format.results import GetStatus
from cometmq.tests.ha.scrub.scrub_pair import COUNT, Near, Pair, Replica
from tests.store.kit import SEGMENT


async def _mended(scrub: Scrub) -> None:
    for _ in range(3000):
        if scrub.total.repaired:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nothing was repaired")


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


async def test_a_digest_is_taken_when_a_segment_is_finished(pair: Pair) -> None:
    async with pair:
        known = digests.load(pair.one.kit.root / "ha")
        starts = [start for start, _ in pair.one.kit.store.blocks.finished_segments()]
        assert list(known) == starts
        assert not any(each.sealed for each in known.values()), (
            "they were finished before the start"
        )
        pair.one.kit.write_many(30, size=200)
        assert await pair.one.scrub.seal() > 0
        fresh = digests.load(pair.one.kit.root / "ha")
        assert all(fresh[start].sealed for start in fresh if start not in known)


async def test_a_scrub_of_equal_replicas_finds_no_damage(pair: Pair) -> None:
    async with pair:
        result = await pair.one.scrub.run_once()
        assert result.blocks == len(pair.one.kit.store.blocks.finished_segments())
        assert (result.damaged, result.different, result.unreached) == (0, 0, [])


async def test_a_damaged_block_is_repaired_from_the_peer(pair: Pair) -> None:
    async with pair:
        pair.one.kit.flip_byte(4096 + 700)
        result = await pair.one.scrub.run_once()
        assert (result.damaged, result.repaired, result.lost) == (1, 1, 0)
        assert pair.one.kit.log_bytes() == pair.bytes
        assert (await pair.one.scrub.run_once()).damaged == 0


async def test_damage_of_a_field_without_a_checksum_is_found(pair: Pair) -> None:
    """Only bodies have checksums: the digest sees the rest."""
    async with pair:
        record = pair.records[20]
        pair.one.kit.flip_byte(record.physical_offset + 44)  # the time of birth
        assert (await pair.one.scrub.run_once()).repaired == 1
        assert pair.one.kit.log_bytes() == pair.bytes


async def test_a_reader_never_gets_damaged_bytes_and_skips_nothing(pair: Pair) -> None:
    async with pair:
        pair.one.scrub.start()
        record = pair.records[20]
        pair.one.kit.flip_byte(record.physical_offset + 120)
        store = pair.one.kit.store
        before = store.get("TopicTest", 0, 0, 100, 1 << 20)
        assert [each.queue_offset for each in before.records] == list(range(20))
        held = store.get("TopicTest", 0, 20, 100, 1 << 20)
        assert (held.records, held.next_offset) == ([], 20), "the reader waits in front of it"
        await _mended(pair.one.scrub)  # the reader's find began a round
        after = store.get("TopicTest", 0, 20, 100, 1 << 20)
        assert (after.status, len(after.records)) == (GetStatus.FOUND, COUNT - 20)
        assert not list(store.blocks.gaps)
        assert pair.one.kit.log_bytes() == pair.bytes
        await pair.one.scrub.stop()


async def test_readers_wait_while_a_replica_does_not_answer(pair: Pair) -> None:
    """The silent peer may have the right bytes: a record skipped now would be lost needlessly."""
    async with pair:
        pair.near.down = True
        pair.one.scrub.start()
        store = pair.one.kit.store
        pair.one.kit.flip_byte(pair.records[20].physical_offset + 120)
        damaged = pair.one.kit.log_bytes()
        result = await pair.one.scrub.run_once()
        assert (result.damaged, result.lost, result.unreached) == (1, 1, ["near"])
        offsets = [each.queue_offset for each in store.get("TopicTest", 0, 0, 100, 1 << 20).records]
        assert offsets == [r.queue_offset for r in pair.records if r.physical_offset < 4096]
        assert pair.one.kit.log_bytes() == damaged, "nothing is cut, nothing is overwritten"
        pair.near.down = False
        assert (await pair.one.scrub.run_once()).repaired == 1, "when the other is back"
        assert len(store.get("TopicTest", 0, 0, 100, 1 << 20).records) == COUNT
        await pair.one.scrub.stop()


async def test_only_records_without_an_intact_copy_are_skipped(pair: Pair) -> None:
    async with pair:
        pair.one.peers = []
        pair.one.scrub.start()
        store = pair.one.kit.store
        pair.one.kit.flip_byte(pair.records[20].physical_offset + 120)
        damaged = pair.one.kit.log_bytes()
        for _ in range(2):
            assert (await pair.one.scrub.run_once()).lost == 1, "it is logged in every round"
        offsets = [each.queue_offset for each in store.get("TopicTest", 0, 0, 100, 1 << 20).records]
        assert offsets == [number for number in range(COUNT) if number != 20]
        assert pair.one.kit.log_bytes() == damaged
        await pair.one.scrub.stop()


async def test_a_message_that_was_skipped_is_served_once_a_replica_repairs_it(pair: Pair) -> None:
    async with pair:
        pair.one.peers = []
        pair.one.scrub.start()
        store = pair.one.kit.store
        pair.one.kit.flip_byte(pair.records[20].physical_offset + 120)
        await pair.one.scrub.run_once()
        assert len(store.get("TopicTest", 0, 0, 100, 1 << 20).records) == COUNT - 1
        (gap,) = store.blocks.gaps
        file = pair.one.kit.segment_paths()[pair.records[20].physical_offset // SEGMENT].name
        assert str(gap) == f"topic=TopicTest queue=0 offset=20 file=commitlog/{file}"
        pair.one.peers = [pair.near]
        assert (await pair.one.scrub.run_once()).repaired == 1
        assert not list(store.blocks.gaps)
        assert len(store.get("TopicTest", 0, 0, 100, 1 << 20).records) == COUNT
        assert pair.one.kit.log_bytes() == pair.bytes
        await pair.one.scrub.stop()


async def test_damage_of_the_peer_is_not_copied(pair: Pair) -> None:
    """The peer must repair it: its bytes do not match its own digest, the local ones do."""
    async with pair:
        pair.two.kit.flip_byte(4096 + 700)
        result = await pair.one.scrub.run_once()
        assert (result.damaged, result.different) == (0, 0)
        assert pair.one.kit.log_bytes() == pair.bytes
        assert (await pair.two.scrub.run_once()).repaired == 1
        assert pair.two.kit.log_bytes() == pair.bytes


async def test_a_block_damaged_on_both_sides_is_not_repaired(pair: Pair) -> None:
    async with pair:
        pair.one.kit.flip_byte(4096 + 700)
        pair.two.kit.flip_byte(4096 + 900)
        assert (await pair.one.scrub.run_once()).lost == 1
        assert (await pair.two.scrub.run_once()).lost == 1


async def test_diverged_histories_are_reported_and_not_changed(tmp_path: Path) -> None:
    one, two = Replica(tmp_path / "one"), Replica(tmp_path / "two")
    for replica in (one, two):
        replica.open()
    one.kit.write_many(40, size=200)
    two.kit.write_many(40, size=201)
    one.peers = [Near(two.scrub)]
    before = one.kit.log_bytes()
    result = await one.scrub.run_once()
    assert result.different == len(one.kit.store.blocks.finished_segments())
    assert (result.damaged, result.repaired) == (0, 0)
    assert one.kit.log_bytes() == before
    one.kit.close()
    two.kit.close()


async def test_a_replica_that_catches_up_gets_no_damaged_bytes(pair: Pair) -> None:
    async with pair:
        pair.one.scrub.start()
        store = pair.one.kit.store
        assert store.read_log(0, 4096) == pair.bytes[:4096]
        pair.one.kit.flip_byte(4096 + 700)
        with pytest.raises(CorruptLogError):
            store.read_log(4096, 4096)
        await _mended(pair.one.scrub)
        assert store.read_log(4096, 4096) == pair.bytes[4096:8192]
        await pair.one.scrub.stop()


async def test_digests_include_the_current_checksums(pair: Pair) -> None:
    """What `cometmq ha diff` prints; asking for it is also a scrub on demand."""
    async with pair:
        pair.one.kit.flip_byte(700)
        blocks = [each async for each in pair.one.scrub.get_digests(v1.DigestsRequest())]
        assert [block.offset for block in blocks if block.crc32 != block.now] == [0]
        some = v1.DigestsRequest(start=4096, end=8192)
        assert [each.offset async for each in pair.one.scrub.get_digests(some)] == [4096]


async def test_digests_follow_retention(pair: Pair) -> None:
    async with pair:
        known = digests.load(pair.one.kit.root / "ha")
        pair.one.kit.store.log.drop_first()
        await pair.one.scrub.seal()
        left = digests.load(pair.one.kit.root / "ha")
        assert left == {start: each for start, each in known.items() if start >= 4096}


def test_a_damaged_line_is_ignored(tmp_path: Path) -> None:
    disk = Disk()
    first = SegmentDigest(0, 3 << 20, True, (1, 2, 3))
    second = SegmentDigest(3 << 20, 3 << 20, False, (4, 5, 0xFFFFFFFF))
    digests.append(tmp_path, first, disk)
    digests.append(tmp_path, second, disk)
    assert digests.load(tmp_path) == {0: first, 3 << 20: second}
    path = tmp_path / digests.DIGESTS_NAME
    data = path.read_bytes()
    path.write_bytes(data[:-5])  # a crash in the middle of the line
    assert digests.load(tmp_path) == {0: first}
    digests.append(tmp_path, second, disk)
    assert digests.load(tmp_path) == {0: first, 3 << 20: second}
    digests.forget(tmp_path, 3 << 20, disk)
    assert digests.load(tmp_path) == {0: first}


# --- calls over the wire --------------------------------------------------------------------------


class _Served(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, scrub: Scrub) -> None:
        self._scrub = scrub
        self.tokens: list[Any] = []

    def service(self, call: Any) -> Any:
        kinds: dict[str, tuple[Any, Callable[[Any], AsyncIterator[Any]]]] = {
            paths.GET_DIGESTS: (v1.DigestsRequest, self._scrub.get_digests),
            paths.READ_RANGE: (v1.ReadRangeRequest, self._scrub.read_range),
        }
        kind, answer = kinds[call.method]
        self.tokens.append(dict(call.invocation_metadata).get("x-cometmq-token"))

        async def stream(raw: bytes, _context: Any) -> AsyncIterator[bytes]:
            async for each in answer(kind.FromString(raw)):
                yield each.SerializeToString()

        return grpc.unary_stream_rpc_method_handler(stream)


async def test_digests_and_bytes_of_a_peer_over_grpc(pair: Pair) -> None:
    async with pair:
        server = grpc.aio.server()
        served = _Served(pair.two.scrub)
        server.add_generic_rpc_handlers((served,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        pair.one.peers = [Peer(f"127.0.0.1:{port}", NodeLinks("secret"))]
        pair.one.kit.flip_byte(4096 + 700)
        assert (await pair.one.scrub.run_once()).repaired == 1
        assert pair.one.kit.log_bytes() == pair.bytes
        assert set(served.tokens) == {"secret"}
        await server.stop(None)
        pair.one.kit.flip_byte(4096 + 700)
        result = await pair.one.scrub.run_once()
        assert (result.lost, len(result.unreached)) == (1, 1)
