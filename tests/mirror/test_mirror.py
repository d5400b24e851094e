"""`cometmq mirror` between two CometMQ brokers: what a copy keeps, and how groups move.

tests/interop/apache/test_mirror.py has Apache's broker as the source.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import cometmq
from cometmq.mirror.cluster import Cluster
from cometmq.mirror.copying import Place
from cometmq.mirror.link import Access, Link, LinkError
from cometmq.mirror.origin import MESSAGE_ID, ORIGIN
from cometmq.mirror.run import Choice, Mirror, place_in
from cometmq.mirror.state import StateDirectory, StateError
from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.proto import v2
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.store.format.record import Record, decode, encode_properties
from cometmq.tests.broker.live import (
    Live,
    create_group,
    create_topic,
    running,
    settings,
    until,
)
from cometmq.tests.harness.wire import receive_request
from cometmq.tests.remoting.client import RemotingClient

WAIT_S = 60.0
ALL = Choice()
QUEUES = 2
#: Beginnings of the names of properties that a copy has unchanged.
KEPT = ("KEY", "TAG", "col", "__S", "UNI")


class Side:
    """A nameserver and a broker with remoting ports, and a remoting client of the broker."""

    def __init__(self, live: Live, nameserver: int, client: RemotingClient) -> None:
        self.live = live
        self.nameserver = nameserver
        self.client = client

    async def send(self, topic: str, queue_id: int, body: bytes, **properties: str) -> int:
        """Send to a queue; return the offset."""
        fields = {"a": "p", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0}
        fields |= {"g": 1_700_000_000_000, "h": 7, "i": encode_properties(properties).decode()}
        answer = await self.client.call(Request.SEND_MESSAGE_V2, body, **fields)
        assert answer.code == Reply.SUCCESS, answer
        return int(answer.fields["queueOffset"])

    def records(self, topic: str, queue_id: int) -> list[Record]:
        """Return all records of a queue."""
        store = self.live.node.store
        self.live.node.pump.catch_up()
        found: list[Record] = []
        while len(found) < store.max_offset(topic, queue_id):
            some = store.get(topic, queue_id, len(found), 32).records
            found += [decode(stored.data) for stored in some]
        return found

    async def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        queue = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
        answer = await self.client.call(
            Request.UPDATE_CONSUMER_OFFSET, **queue, commitOffset=offset
        )
        assert answer.code == Reply.SUCCESS, answer

    def offset(self, group: str, topic: str, queue_id: int) -> int | None:
        return self.live.node.offsets.get(topic, group, queue_id)


@asynccontextmanager
async def side(folder: Path, name: str) -> AsyncIterator[Side]:
    config = NameserverConfig(bind_address="127.0.0.1", listen_port=0, remoting_listen_port=-1)
    async with AsyncExitStack() as stack:
        nameserver = NameserverServer(config)
        address = await nameserver.start()
        stack.push_async_callback(nameserver.stop, 0)
        chosen = settings(
            folder,
            remoting_listen_port=-1,
            namesrv_addr=address,
            broker_cluster_name=name,
            broker_name=f"broker-{name}",
        )
        live = await stack.enter_async_context(running(chosen))
        port = int(live.bound.remoting.rpartition(":")[2])
        client = await stack.enter_async_context(RemotingClient(port))
        yield Side(live, nameserver.remoting_port, client)


class Pair:
    """Two clusters and a mirror from one to the other."""

    def __init__(self, source: Side, target: Side, folder: Path) -> None:
        self.source, self.target, self.folder = source, target, folder

    def mirror(self, choice: Choice = ALL) -> Mirror:
        source, target = (
            Cluster([f"127.0.0.1:{one.nameserver}"], Access()) for one in (self.source, self.target)
        )
        made = Mirror(source, target, StateDirectory(self.folder), choice, lambda: 0)
        made.load()
        return made

    async def catch_up(self, choice: Choice = ALL) -> dict[str, Any]:
        """Mirror until everything is copied; return the figures."""
        self.folder.mkdir(exist_ok=True)
        shown: list[dict[str, Any]] = []
        async with asyncio.timeout(WAIT_S):
            await self.mirror(choice).run(asyncio.Event(), shown.append, once=True)
        return shown[-1]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with side(tmp_path / "a", "old") as source, side(tmp_path / "b", "new") as target:
        async with source.live.client() as wire:
            await create_topic(wire, "orders", queues=QUEUES)
            await create_group(wire, "billing")
        yield Pair(source, target, tmp_path / "state")


def group_row(status: dict[str, Any], name: str) -> dict[str, Any]:
    row: dict[str, Any] = next(row for row in status["groups"] if row["group"] == name)
    return row


async def test_a_copy_keeps_the_message_and_its_place(pair: Pair) -> None:
    properties = {"KEYS": "k1", "TAGS": "red", "colour": "blue", "__SHARDINGKEY": "g1"}
    properties |= {"UNIQ_KEY": "A" * 32, "TIMER_DELIVER_MS": "1", "DELAY": "0"}
    await pair.source.send("orders", 0, b"first", **{"UNIQ_KEY": "B" * 32})
    await pair.source.send("orders", 1, b"body", **properties)
    status = await pair.catch_up()
    assert (status["copied"], status["lag"], status["error"]) == (2, 0, "")
    (original,) = pair.source.records("orders", 1)
    (copy,) = pair.target.records("orders", 1)
    assert (copy.body, copy.flag) == (b"body", 7)
    assert copy.born_timestamp_ms == original.born_timestamp_ms == 1_700_000_000_000
    kept = {name: copy.properties_dict[name] for name in properties if name[:3] in KEPT}
    assert kept == {name: properties[name] for name in kept} and len(kept) == 5
    assert copy.properties_dict[ORIGIN] == "old/broker-old/1/0"
    offset_id = copy.properties_dict[MESSAGE_ID]
    assert int(offset_id[-16:], 16) == original.physical_offset
    assert "TIMER_DELIVER_MS" not in copy.properties_dict


async def test_topics_and_groups_are_created_with_their_settings(pair: Pair) -> None:
    async with pair.source.live.client() as wire:
        await create_topic(wire, "steps", queues=3, message_type=v2.FIFO)
        await create_topic(wire, "private", queues=1)
        await create_group(wire, "limited", max_attempts=3)
    await pair.catch_up(Choice(topics=("orders", "s*"), groups=("limited",)))
    metadata = pair.target.live.node.metadata
    steps, limited = metadata.topic("steps"), metadata.group("limited")
    assert steps is not None and limited is not None
    assert (steps.write_queues, steps.attributes["message.type"]) == (3, "FIFO")
    assert limited.max_attempts == 3
    assert metadata.topic("private") is None and metadata.group("billing") is None


@pytest.mark.parametrize("is_state_lost", [False, True])
async def test_a_mirror_that_starts_again_copies_nothing_twice(
    pair: Pair, is_state_lost: bool
) -> None:
    for run in range(3):
        for n in range(40):
            await pair.source.send("orders", n % QUEUES, b"%d-%d" % (run, n))
        await pair.catch_up()
        if is_state_lost:
            (pair.folder / "positions.json").unlink()
    for queue_id in range(QUEUES):
        originals = [one.body for one in pair.source.records("orders", queue_id)]
        assert [one.body for one in pair.target.records("orders", queue_id)] == originals


async def test_copies_whose_answers_were_lost_are_not_sent_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(100):
        await pair.source.send("orders", 0, b"%d" % n)
    answer, failures = Link.answer, iter(range(1))

    async def lossy(link: Link, future: asyncio.Future[Command]) -> Command:
        found = await answer(link, future)
        if "queueOffset" in found.fields and next(failures, None) is not None:
            raise LinkError("lost")
        return found

    monkeypatch.setattr(Link, "answer", lossy)
    status = await pair.catch_up()
    assert status["lag"] == 0 and next(failures, None) is None
    bodies = [one.body for one in pair.target.records("orders", 0)]
    assert bodies == [b"%d" % n for n in range(100)]


async def test_a_target_that_lost_messages_gets_them_again(pair: Pair) -> None:
    for n in range(5):
        await pair.source.send("orders", 0, b"%d" % n)
    await pair.catch_up()
    saved = json.loads((pair.folder / "positions.json").read_text())
    for row in saved["queues"]:  # of a target that had more than this one
        row["position"]["following"] += 2
        row["position"]["target_end"] += 2
    (pair.folder / "positions.json").write_text(json.dumps(saved))
    for n in range(5, 9):
        await pair.source.send("orders", 0, b"%d" % n)
    await pair.catch_up()
    bodies = [one.body for one in pair.target.records("orders", 0)]
    assert bodies == [b"%d" % n for n in range(9)]


async def test_a_refused_group_or_topic_does_not_stop_the_others(pair: Pair) -> None:
    async with pair.target.live.client() as wire:
        await create_topic(wire, "orders", queues=QUEUES, perm=4)  # sends are refused
    await pair.source.send("orders", 0, b"refused")
    async with pair.source.live.client() as wire:
        await create_topic(wire, "steps", queues=1)
    await pair.source.send("steps", 0, b"taken")
    pair.folder.mkdir()
    stopped = asyncio.Event()
    shown: list[dict[str, Any]] = []

    def show(status: dict[str, Any]) -> None:
        shown.append(status)
        if pair.target.records("steps", 0) and any(row["error"] for row in status["topics"]):
            stopped.set()

    async with asyncio.timeout(WAIT_S):
        await pair.mirror().run(stopped, show, once=False)
    errors = {row["topic"]: row["error"] for row in shown[-1]["topics"]}
    assert errors["steps"] == "" and "orders" in errors["orders"]


async def test_offsets_of_a_group_follow_until_it_has_consumers_in_the_target(pair: Pair) -> None:
    for n in range(20):
        await pair.source.send("orders", 0, b"%d" % n)
    await pair.source.commit("billing", "orders", 0, 5)
    status = await pair.catch_up()
    assert group_row(status, "billing")["state"] == "ready"
    assert pair.target.offset("billing", "orders", 0) == 5
    await pair.source.commit("billing", "orders", 0, 12)
    await pair.catch_up()
    assert pair.target.offset("billing", "orders", 0) == 12
    got: set[bytes] = set()
    endpoint = pair.target.live.bound.client
    async with cometmq.SimpleConsumer(endpoint, group="billing", topics="orders") as consumer:
        while len(got) < 8:
            messages = await consumer.receive(wait=1)
            assert await consumer.ack_all(messages) == []
            got |= {message.body for message in messages}
        await pair.source.commit("billing", "orders", 0, 14)
        status = await pair.catch_up()
    assert got == {b"%d" % n for n in range(12, 20)}
    assert group_row(status, "billing")["state"] == "moved"
    assert pair.target.offset("billing", "orders", 0) == 20


async def test_a_group_misses_nothing_that_producers_sent_to_the_target_before_it_moved(
    pair: Pair,
) -> None:
    for n in range(10):
        await pair.source.send("orders", 0, b"%d" % n)
    await pair.catch_up()
    early = await pair.target.send("orders", 0, b"early")
    for n in range(10, 20):
        await pair.source.send("orders", 0, b"%d" % n)
    await pair.source.commit("billing", "orders", 0, 15)
    status = await pair.catch_up()
    assert pair.target.offset("billing", "orders", 0) == early
    assert group_row(status, "billing")["repeated"] == 6  # "early", 10 to 14


async def test_messages_that_wait_for_a_retry_follow_the_group(pair: Pair) -> None:
    await pair.source.send("orders", 0, b"failed", UNIQ_KEY="C" * 32)
    async with pair.source.live.client() as wire:
        request = receive_request("orders", "billing")
        request.invisible_duration.seconds = 10
        _, (message,) = await wire.receive(request)
    pair.source.live.node.clients.forget("wire@1")  # it has left
    clock = pair.source.live.node.runtime.clock
    clock.advance_wall_ms(11_000)
    await until(lambda: pair.source.records("%RETRY%billing_orders", 0))
    await until(lambda: pair.source.offset("billing", "orders", 0) == 1)
    status = await pair.catch_up()
    assert group_row(status, "billing")["state"] == "ready"
    assert not pair.target.records("%RETRY%billing_orders", 0)
    endpoint = pair.target.live.bound.client
    async with cometmq.SimpleConsumer(endpoint, group="billing", topics="orders") as consumer:
        await consumer.receive(wait=0)
        for _ in range(2):  # the second one has nothing to bring
            await pair.catch_up()
        async with asyncio.timeout(WAIT_S):
            while not (got := await consumer.receive(wait=1)):
                pass
        assert [one.body for one in got] == [b"failed"]
        assert got[0].message_id == message.system_properties.message_id
        assert await consumer.ack_all(got) == []
    assert len(pair.target.records("%RETRY%billing_orders", 0)) == 1


async def test_a_pattern_that_matches_nothing_is_named_and_the_others_are_copied(
    pair: Pair,
) -> None:
    await pair.source.send("orders", 0, b"body")
    status = await pair.catch_up(Choice(["orders", "ordres"], ["bil*", "nobody"]))
    assert len(pair.target.records("orders", 0)) == 1
    assert status["unmatched"] == [
        "No topic of the source matches ordres",
        "No group of the source matches nobody",
    ]


async def test_a_cluster_is_not_mirrored_to_itself(pair: Pair) -> None:
    await pair.source.send("orders", 0, b"once")
    with pytest.raises(StateError, match="are one cluster"):
        await Pair(pair.source, pair.source, pair.folder).catch_up()
    assert len(pair.source.records("orders", 0)) == 1


async def test_a_state_directory_belongs_to_one_source_and_one_process(
    pair: Pair, tmp_path: Path
) -> None:
    await pair.catch_up()
    other = Pair(pair.target, pair.source, pair.folder)
    with pytest.raises(StateError, match="belongs to a mirror of old@"):
        await other.catch_up()
    one, two = StateDirectory(pair.folder), StateDirectory(pair.folder)
    one.lock()
    with pytest.raises(StateError, match="another mirror uses"):
        two.lock()
    one.release()


def test_queues_of_several_brokers_have_places_of_their_own() -> None:
    sources = [Place("T", f"s{number}", queue_id) for number in range(3) for queue_id in range(4)]
    for names in (["a"], ["a", "b"], ["a", "b", "c", "d"]):
        places = {place_in(names, place, int(place.broker[1:]), 4) for place in sources}
        assert len(places) == len(sources)
        assert {place.broker for place in places} == set(names[:3])
    same = [place_in(["a", "b", "c"], place, int(place.broker[1:]), 4) for place in sources]
    assert [place.queue_id for place in same] == [place.queue_id for place in sources]
