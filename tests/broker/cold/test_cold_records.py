"""Cold reads: records far behind the log end are read on a follower, for receives and key queries.

A real leader and a real follower; the configured memory is tiny.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.broker.assembly.parts import Broker
from cometmq.broker.cold import cold_records as cold
from cometmq.broker.cold.cold_reads import in_sync_followers
from cometmq.ha.record_reads import PeerRecordReads, read_places
from cometmq.ha.scrub.peer import PeerError
from cometmq.proto import paths, v1, v2
from cometmq.tests.broker.assembly.test_role_state import desk_of, level
from cometmq.tests.broker.desk import Desk
from cometmq.tests.broker.live import Settings, until
from cometmq.tests.broker.role_desk import Elections, elections, replica

COUNT = 100


def patient(directory: Path, broker_id: int) -> Settings:
    """Return settings with long timeouts: on a busy machine the replica must not count as dead."""
    chosen = replica(directory, broker_id)
    ha = replace(chosen.ha, ha_beat_interval_ms=1500, controller_lease_ms=5000)
    return replace(chosen, ha=ha)


@asynccontextmanager
async def old_messages(tmp_path: Path) -> AsyncIterator[tuple[Elections, Desk]]:
    """Yield a leader with a follower, and messages that are beyond the configured memory."""
    async with elections(patient(tmp_path / "a", 0), patient(tmp_path / "b", 1)) as group:
        first = await group.elect(0, 1)
        desk = desk_of(group, 0)
        desk.topic("t")
        desk.topic("ordered", message_type=v2.FIFO)
        desk.group("g")
        desk.group("orderly", orderly=True)
        for number in range(COUNT):
            await desk.sent(
                "t", b"%d" % number, tag="even" if number % 2 == 0 else "odd", keys=[f"k{number}"]
            )
        await desk.sent(
            "ordered", *(b"%d" % n for n in range(10)), message_group="one", message_type=v2.FIFO
        )
        await level(first, group.node(1))
        await until(lambda: bool(in_sync_followers(first.replication, first.cluster)))
        first.store.reader._memory_span = 100
        yield group, desk


async def drained(
    desk: Desk,
    count: int,
    topic: str = "t",
    group: str = "g",
    bodies: list[bytes] | None = None,
    **fields: object,
) -> list[bytes]:
    """Receive and acknowledge until there are `count` bodies; return them in order."""
    bodies = [] if bodies is None else bodies
    while len(bodies) < count:
        got = await desk.receive(topic, group, desk.context(remaining_ms=1500), **fields)
        bodies += got.bodies
        desk.ack(topic, group, *got.handles)
    return bodies


def reads_here(node: Broker, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Record every read of the leader's own log by later receives."""
    seen: list[tuple[str, int]] = []
    real = node.store.get

    def get(topic: str, queue_id: int, offset: int, *rest: object, **more: object) -> object:
        if topic in {"t", "ordered"}:
            seen.append((topic, offset))
        return real(topic, queue_id, offset, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(node.store, "get", get)
    return seen


async def test_old_messages_are_received_without_reading_the_leaders_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with old_messages(tmp_path) as (group, desk):
        seen = reads_here(group.node(0), monkeypatch)
        assert await drained(desk, COUNT) == [b"%d" % n for n in range(COUNT)]
        assert await drained(desk, 10, "ordered", "orderly") == [b"%d" % n for n in range(10)]
        counters = group.node(0).runtime.counters.cold
        assert counters["fetched"] == COUNT + 10
        assert counters["refused"] == 0
        assert seen == []


async def test_only_messages_that_match_the_filter_are_fetched(tmp_path: Path) -> None:
    async with old_messages(tmp_path) as (group, desk):
        wanted = [b"%d" % n for n in range(0, COUNT, 2)]
        assert await drained(desk, len(wanted), tag="even", batch=7) == wanted
        assert group.node(0).runtime.counters.cold["fetched"] == COUNT // 2
        await desk.nothing("t", "g", tag="even")


async def test_a_receive_without_waiting_time_reads_locally(tmp_path: Path) -> None:
    async with old_messages(tmp_path) as (group, desk):
        short = desk.context(remaining_ms=10)
        got = await desk.receive("t", "g", short, batch=5)
        assert got.bodies == [b"0", b"1", b"2", b"3", b"4"]
        assert not group.node(0).runtime.counters.cold


@pytest.mark.parametrize("wrong", ["silent", "other"])
async def test_a_failing_follower_is_not_called_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    asked = 0
    real = PeerRecordReads.read

    async def read(self: PeerRecordReads, places: Sequence[tuple[int, int]]) -> list[bytes]:
        nonlocal asked
        asked += 1
        if wrong == "silent":
            raise PeerError("no answer")
        return list(reversed(await real(self, places)))

    async with old_messages(tmp_path) as (group, desk):
        monkeypatch.setattr(PeerRecordReads, "read", read)
        assert await drained(desk, COUNT) == [b"%d" % n for n in range(COUNT)]
        assert asked == 1
        assert dict(group.node(0).runtime.counters.cold) == {"refused": 1}


async def test_two_groups_and_many_consumers_get_everything_once(tmp_path: Path) -> None:
    async with old_messages(tmp_path) as (group, desk):
        desk.group("h")
        found: dict[str, list[bytes]] = {"g": [], "h": []}
        await asyncio.gather(
            *(
                drained(desk, COUNT, group=name, bodies=bodies, batch=3)
                for name, bodies in found.items()
                for _ in range(4)
            )
        )
        wanted = sorted(b"%d" % n for n in range(COUNT))
        assert sorted(found["g"]) == sorted(found["h"]) == wanted
        records = group.node(0).pop.cold
        assert records._kept_bytes == sum(map(len, records._kept.values()))
        assert not records._fetches
        assert group.node(0).runtime.counters.cold["refused"] == 0


async def test_fetched_records_are_dropped_on_step_down(tmp_path: Path) -> None:
    async with old_messages(tmp_path) as (group, desk):
        assert (await desk.receive("t", "g", batch=5)).bodies
        records = group.node(0).pop.cold
        assert records._kept
        await group.elect(1, 0)
        assert not records._kept
        assert not records._kept_bytes


async def test_the_cache_of_fetched_records_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with old_messages(tmp_path) as (group, desk):
        monkeypatch.setattr(cold, "_AHEAD_COUNT", 10)
        monkeypatch.setattr(cold, "_KEPT_BYTES", 3000)
        assert await drained(desk, COUNT, batch=4) == [b"%d" % n for n in range(COUNT)]
        assert group.node(0).pop.cold._kept_bytes <= 3000


async def test_queries_for_old_keys_go_to_a_follower(tmp_path: Path) -> None:
    async with old_messages(tmp_path) as (group, desk):
        await desk.sent("t", b"new", keys=["fresh"])
        await level(group.node(0), group.node(1))
        group.node(0).store.reader._memory_span = 1000
        access = group.replicas[0].server.access.statistics
        async with group.replicas[0].client() as wire:
            for request, count, is_cold in (
                (v1.QueryMessagesRequest(topic="t", key="k3"), 1, True),
                (v1.QueryMessagesRequest(topic="t", tag="even", count=9), 9, True),
                (v1.QueryMessagesRequest(topic="t", unique_key="ID-0", count=1), 1, False),
                (v1.QueryMessagesRequest(topic="t", key="fresh"), 1, False),
                (v1.QueryMessagesRequest(topic="t", key="never"), 0, False),
            ):
                before = access.forwarded
                answer = await wire.call(
                    paths.QUERY_MESSAGES, request, v1.QueryMessagesResponse, 10.0
                )
                assert answer.code == v2.OK
                assert len(answer.messages) == count, request
                assert access.forwarded - before == is_cold, request


async def test_requests_for_records_are_bounded(tmp_path: Path) -> None:
    async with old_messages(tmp_path) as (group, _):
        store = group.node(1).store
        for request, code in (
            (v1.ReadPlacesRequest(offsets=[0]), v2.BAD_REQUEST),
            (v1.ReadPlacesRequest(offsets=[0] * 1025, lengths=[1] * 1025), v2.BAD_REQUEST),
            (v1.ReadPlacesRequest(offsets=[0], lengths=[1 << 30]), v2.BAD_REQUEST),
            (v1.ReadPlacesRequest(offsets=[1 << 40], lengths=[1]), v2.INTERNAL_ERROR),
            (v1.ReadPlacesRequest(offsets=[0], lengths=[100]), v2.OK),
            (v1.ReadPlacesRequest(), v2.OK),
        ):
            answer = await read_places(store.blocks, request)
            assert answer.code == code, request
            assert len(answer.records) == (len(request.offsets) if code == v2.OK else 0)


async def test_files_stay_referenced_until_the_reading_thread_ends(tmp_path: Path) -> None:
    class Slow:
        """A disk that waits for the test."""

        def __init__(self) -> None:
            self.go, self.held = threading.Event(), False

        @contextmanager
        def range_reader(
            self, ranges: Sequence[tuple[int, int]]
        ) -> Iterator[Callable[[], list[bytes]]]:
            self.held = True
            yield lambda: [b"." * length for _, length in ranges if self.go.wait(10)]
            self.held = False

    slow = Slow()
    request = v1.ReadPlacesRequest(offsets=[0], lengths=[5])
    asked = asyncio.create_task(read_places(slow, request))
    await asyncio.sleep(0.05)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert slow.held
    slow.go.set()
    await until(lambda: not slow.held)
