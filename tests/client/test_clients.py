"""The clients against a real cluster of master and slave."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import urllib.request
from datetime import UTC, timedelta
from typing import Any

import pytest

import cometmq
from cometmq.client.errors import BadRequest, Closed, NotFound, RequestRefused
from cometmq.tests.harness.cluster import Cluster, wait_until

from .conftest import Make

WAIT_S = 60.0


async def receive_all(consumer: cometmq.SimpleConsumer, count: int) -> list[cometmq.Message]:
    """Receive and acknowledge until `count` different ones came; a message may come twice."""
    found: dict[str, cometmq.Message] = {}
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            some = await consumer.receive(wait=5)
            assert await consumer.ack_all(some) == []
            found |= {one.message_id: one for one in some}
    return list(found.values())


async def test_a_message_comes_back_as_it_was_sent(
    shared_cluster: Cluster, new_topic: Make, new_group: Make
) -> None:
    topic, group = new_topic(), new_group()
    async with cometmq.Producer(shared_cluster.endpoints) as producer:
        receipt = await producer.send(
            topic, "grüße".encode(), tag="red", keys=["k1", "k2"], properties={"größe": "42"}
        )
    async with cometmq.SimpleConsumer(
        shared_cluster.endpoints, group=group, topics=topic
    ) as consumer:
        (got,) = await consumer.receive()
        await consumer.ack(got)
        assert got.body.decode() == "grüße"
        assert (got.tag, got.keys, got.properties) == ("red", ("k1", "k2"), {"größe": "42"})
        assert (got.message_id, got.topic) == (receipt.message_id, topic)
        assert (got.attempt, got.type, got.corrupted) == (1, "normal", False)
        assert got.offset == receipt.offset
        assert got.born_at is not None
        assert got.stored_at is not None
        assert await consumer.receive(wait=1) == []


def test_a_closed_client_leaves_nothing_to_the_next_event_loop(
    shared_cluster: Cluster, new_topic: Make
) -> None:
    program = f"""
import asyncio, cometmq

async def send():
    async with cometmq.Producer("{shared_cluster.endpoints}") as producer:
        await producer.send("{new_topic()}", b"x")

async def wait():
    async with cometmq.SimpleConsumer(
        "{shared_cluster.endpoints}", group="next-loop", topics="{new_topic()}"
    ) as consumer:
        await consumer.receive(wait=0.1)

for _ in range(8):
    asyncio.run(send())
    asyncio.run(wait())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("topics", [1, 2])
async def test_receive_without_a_message_returns_when_its_wait_is_over(
    shared_cluster: Cluster, new_topic: Make, new_group: Make, topics: int
) -> None:
    names = [new_topic() for _ in range(topics)]
    returned: list[int] = []

    async def receive(wait: int) -> None:
        async with cometmq.SimpleConsumer(
            shared_cluster.endpoints, group=new_group(), topics=names
        ) as consumer:
            await together.wait()
            assert await consumer.receive(wait=wait) == []
            returned.append(wait)

    together = asyncio.Barrier(2)
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(receive(8), receive(1))
    # Compared with a longer wait that began with it, not with a clock: machines differ.
    assert returned == [1, 8]


async def test_send_many_returns_a_receipt_for_each_message(
    shared_cluster: Cluster, new_topic: Make, new_group: Make
) -> None:
    topic, group = new_topic(), new_group()
    bodies = [f"body-{number}".encode() for number in range(500)]
    async with (
        cometmq.Producer(shared_cluster.endpoints) as producer,
        cometmq.SimpleConsumer(shared_cluster.endpoints, group=group, topics=topic) as consumer,
    ):
        receipts = await producer.send_many(topic, bodies)
        assert all(isinstance(receipt, cometmq.Receipt) for receipt in receipts)
        assert producer.statistics.sent == len(bodies)
        got = await receive_all(consumer, len(bodies))
        assert {one.message_id: one.body for one in got} == {
            receipt.message_id: body  # type: ignore[union-attr]
            for receipt, body in zip(receipts, bodies, strict=True)
        }


async def test_lingering_sends_share_requests(
    shared_cluster: Cluster, new_topic: Make, new_group: Make
) -> None:
    topic = new_topic(queues=4)
    async with cometmq.Producer(shared_cluster.endpoints, linger=0.05) as producer:
        receipts = await asyncio.gather(*(producer.send(topic, b"x") for _ in range(64)))
        assert producer.statistics.send_requests == 2
    assert len({receipt.message_id for receipt in receipts}) == 64


async def test_an_unknown_topic_raises_not_found(shared_cluster: Cluster) -> None:
    async with cometmq.Producer(shared_cluster.endpoints) as producer:
        with pytest.raises(NotFound, match="TOPIC_NOT_FOUND"):
            await producer.send("sdk-unknown", b"x")
    with pytest.raises(NotFound):
        async with cometmq.SimpleConsumer(
            shared_cluster.endpoints, group="g", topics="sdk-unknown"
        ):
            pass


async def test_a_closed_client_raises_closed(shared_cluster: Cluster, new_topic: Make) -> None:
    producer = cometmq.Producer(shared_cluster.endpoints)
    with pytest.raises(Closed):
        await producer.send("t", b"x")
    async with producer:
        pass
    with pytest.raises(Closed):
        await producer.send("t", b"x")


async def test_an_unreachable_endpoint_raises_connection_failed() -> None:
    with pytest.raises(cometmq.ConnectionFailed, match=r"127\.0\.0\.1:9"):
        async with cometmq.SimpleConsumer(
            "127.0.0.1:9", group="g", topics="t", timeout=1, request_timeout=0.5
        ):
            pass


async def test_a_nacked_message_is_delivered_again(
    shared_cluster: Cluster, new_topic: Make, new_group: Make
) -> None:
    topic, group = new_topic(), new_group()
    async with (
        cometmq.Producer(shared_cluster.endpoints) as producer,
        cometmq.SimpleConsumer(shared_cluster.endpoints, group=group, topics=topic) as consumer,
    ):
        await producer.send(topic, b"again")
        (first,) = await consumer.receive()
        await consumer.nack(first)
        (second,) = await consumer.receive()
        assert (second.message_id, second.attempt) == (first.message_id, 2)
        await consumer.change_invisible(second, 20)
        await consumer.ack(second)


async def test_an_invalid_receipt_handle_raises_bad_request(
    shared_cluster: Cluster, new_topic: Make, new_group: Make
) -> None:
    topic, group = new_topic(), new_group()
    async with cometmq.SimpleConsumer(
        shared_cluster.endpoints, group=group, topics=topic
    ) as consumer:
        message = cometmq.Message(topic, b"", "id", receipt_handle="nonsense")
        with pytest.raises(BadRequest, match="INVALID_RECEIPT_HANDLE"):
            await consumer.ack(message)
        ((refused, error),) = await consumer.ack_all([message])
        assert refused is message
        assert error.code_name == "INVALID_RECEIPT_HANDLE"


async def test_a_message_whose_handler_raised_is_delivered_again(
    shared_cluster: Cluster, new_topic: Make, new_group: Make
) -> None:
    topic, group = new_topic(), new_group()
    seen: list[tuple[bytes, int]] = []
    done = asyncio.Event()

    async def handle(message: cometmq.Message) -> None:
        seen.append((message.body, message.attempt))
        if message.body == b"bad" and message.attempt == 1:
            raise RuntimeError("not yet")
        if len(set(seen)) == 4:
            done.set()

    async with (
        cometmq.Producer(shared_cluster.endpoints) as producer,
        cometmq.PushConsumer(
            shared_cluster.endpoints, handle, group=group, topics=topic, concurrency=2
        ) as consumer,
    ):
        for body in (b"good", b"bad", b"fine"):
            await producer.send(topic, body)
        async with asyncio.timeout(WAIT_S):
            await done.wait()
    # A message may come twice, with the next attempt.
    assert {(b"bad", 1), (b"bad", 2), (b"fine", 1), (b"good", 1)} <= set(seen)
    assert consumer.statistics.handler_failures == 1
    assert consumer.statistics.acknowledged == 3


async def test_messages_of_a_message_group_are_handled_in_order(
    shared_cluster: Cluster, new_topic: Make, new_group: Make
) -> None:
    topic, group = new_topic(kind="fifo"), new_group(order=True)
    seen: dict[str, list[str]] = {"a": [], "b": []}
    done = asyncio.Event()
    failed: set[str] = set()

    async def handle(message: cometmq.Message) -> None:
        text = message.body.decode()
        if text == "3" and message.group not in failed:
            failed.add(message.group)
            raise RuntimeError("once")
        seen[message.group].append(text)
        if all(len(texts) == 6 for texts in seen.values()):
            done.set()

    async with (
        cometmq.Producer(shared_cluster.endpoints) as producer,
        cometmq.PushConsumer(shared_cluster.endpoints, handle, group=group, topics=topic),
    ):
        # Concurrent sends: the order of the calls decides.
        await asyncio.gather(
            *(
                producer.send(topic, str(number).encode(), group=name)
                for number in range(6)
                for name in seen
            )
        )
        async with asyncio.timeout(WAIT_S):
            await done.wait()
    assert seen == {"a": list("012345"), "b": list("012345")}


async def test_a_pull_consumer_seeks_to_any_position(
    shared_cluster: Cluster, new_topic: Make, new_group: Make
) -> None:
    topic, group = new_topic(queues=2), new_group()
    bodies = {f"{number}".encode() for number in range(40)}
    async with cometmq.Producer(shared_cluster.endpoints) as producer:
        for body in sorted(bodies):
            await producer.send(topic, body)
    async with cometmq.PullConsumer(
        shared_cluster.endpoints, group=group, topics=topic
    ) as consumer:
        assert len(consumer.queues) == 2
        got = [await consumer.poll(wait=WAIT_S) for _ in bodies]
        assert {one.body for one in got if one} == bodies
        assert await consumer.poll(wait=0.2) is None
        await consumer.commit()
        await consumer.seek(topic, cometmq.BEGINNING)
        again = [await consumer.poll(wait=WAIT_S) for _ in bodies]
        assert {one.body for one in again if one} == bodies
    async with cometmq.PullConsumer(
        shared_cluster.endpoints, group=group, topics=topic
    ) as consumer:
        for queue in consumer.queues:
            assert await consumer.position(queue) == await consumer.end(queue) > 0
        await consumer.seek(topic, timedelta_ago(hours=1))
        first = consumer.queues[0]
        assert await consumer.position(first) == 0


def timedelta_ago(**span: float) -> Any:
    """A moment before now."""
    from datetime import datetime

    return datetime.now(UTC) - timedelta(**span)


def test_blocking_clients_send_and_receive(
    shared_cluster: Cluster, new_topic: Make, new_group: Make
) -> None:
    topic, group = new_topic(), new_group()
    with (
        cometmq.sync.Producer(shared_cluster.endpoints) as producer,
        cometmq.sync.SimpleConsumer(
            shared_cluster.endpoints, group=group, topics=topic
        ) as consumer,
    ):
        receipt = producer.send(topic, b"one", tag="t")
        assert len(producer.send_many(topic, [b"two", b"three"])) == 2
        found: set[str] = set()
        while len(found) < 3:
            some = consumer.receive(wait=5)
            assert consumer.ack_all(some) == []
            found |= {one.message_id for one in some}
        assert receipt.message_id in found
    with pytest.raises(Closed):
        producer.send(topic, b"x")


def test_blocking_handlers_run_in_threads(
    shared_cluster: Cluster, new_topic: Make, new_group: Make
) -> None:
    topic, group = new_topic(), new_group()
    both = threading.Barrier(2, timeout=WAIT_S)
    done = threading.Semaphore(0)

    def handle(message: cometmq.Message) -> None:
        both.wait()  # blocks unless two handlers run at once
        done.release()

    with (
        cometmq.sync.Producer(shared_cluster.endpoints) as producer,
        cometmq.sync.PushConsumer(
            shared_cluster.endpoints, handle, group=group, topics=topic, concurrency=2
        ),
    ):
        producer.send_many(topic, [b"a", b"b"])
        for _ in range(2):
            assert done.acquire(timeout=WAIT_S)


async def test_a_decorated_function_stays_a_function(
    shared_cluster: Cluster, new_topic: Make, new_group: Make
) -> None:
    topic, group = new_topic(), new_group()
    got: asyncio.Queue[bytes] = asyncio.Queue()

    @cometmq.consumer(shared_cluster.endpoints, group=group, topics={topic: "red"})
    async def handle(message: cometmq.Message) -> None:
        """Docs stay."""
        await got.put(message.body)

    await handle(cometmq.Message(topic, b"direct", "id"))
    assert got.get_nowait() == b"direct"
    assert handle.__doc__ == "Docs stay."
    async with handle.open(), cometmq.Producer(shared_cluster.endpoints) as producer:
        await producer.send(topic, b"blue", tag="blue")
        await producer.send(topic, b"red", tag="red")
        async with asyncio.timeout(WAIT_S):
            assert await got.get() == b"red"


async def test_no_task_is_left_behind(
    shared_cluster: Cluster, new_topic: Make, new_group: Make
) -> None:
    topic, group = new_topic(), new_group()
    before = asyncio.all_tasks()
    for _ in range(3):
        async with (
            cometmq.Producer(shared_cluster.endpoints) as producer,
            cometmq.SimpleConsumer(shared_cluster.endpoints, group=group, topics=topic),
            cometmq.PullConsumer(shared_cluster.endpoints, group=group, topics=topic) as pull,
        ):
            await producer.send(topic, b"x")
            await pull.poll(wait=1)
    # gRPC's tasks of cancelled calls end shortly after their channel.
    if left := asyncio.all_tasks() - before:
        _, late = await asyncio.wait(left, timeout=WAIT_S)
        assert not late


def log_offset(cluster: Cluster, role: str, position: str) -> int:
    """Return an offset of a broker's log from its metrics page."""
    address = f"http://127.0.0.1:{cluster.node(role).ports['metrics']}/metrics"
    with urllib.request.urlopen(address, timeout=WAIT_S) as answer:
        page = answer.read().decode()
    (found,) = re.findall(rf'^cometmq_log_offset{{.*position="{position}".*}} (\S+)$', page, re.M)
    return int(float(found))


async def test_clients_survive_the_death_and_restart_of_the_master(new_cluster: Any) -> None:
    cluster = new_cluster()
    topic, group = cluster.create_topic("sdk-death"), cluster.create_group("sdk-death")
    async with (
        cometmq.Producer(cluster.endpoints, timeout=WAIT_S) as producer,
        cometmq.SimpleConsumer(cluster.endpoints, group=group, topics=topic) as consumer,
    ):
        await producer.send(topic, b"before")
        # A follower serves records up to the confirm offset that it has received, some heartbeats
        # after the OK (docs/formats/ha.md, section 6.8, R10). A master killed earlier would not
        # have sent it.
        end = log_offset(cluster, "master", "end")
        await asyncio.to_thread(
            wait_until,
            "the slave serves it",
            lambda: log_offset(cluster, "slave", "dispatched") >= end,
        )
        await asyncio.to_thread(cluster.kill9, "master")
        sending = asyncio.create_task(producer.send(topic, b"during"))
        got = await receive_all(consumer, 1)
        await asyncio.to_thread(cluster.restart, "master")
        await asyncio.wait_for(sending, WAIT_S)
        await producer.send(topic, b"after")
        seen = {one.body for one in got}
        async with asyncio.timeout(WAIT_S):
            while len(seen) < 3:
                some = await consumer.receive(wait=5)
                await consumer.ack_all(some)
                seen |= {one.body for one in some}
    assert seen == {b"before", b"during", b"after"}


def lite_parent(
    cluster: Cluster, new_topic: Make, new_group: Make, *attributes: str
) -> tuple[str, str]:
    """Create a topic of lite topics, and a group that is bound to it."""
    parent, group = new_topic(kind="lite"), new_group()
    for attribute in (f"+lite.bind.topic={parent}", *attributes):
        change = ("group", "alter", group, "--attribute", attribute)
        cluster.run(*change, "--endpoint", cluster.endpoints)
    return parent, group


async def test_a_consumer_receives_its_lite_topics_in_order_and_the_list_shows_their_lag(
    shared_cluster: Cluster, new_topic: Make, new_group: Make
) -> None:
    parent, group = lite_parent(shared_cluster, new_topic, new_group)
    endpoints, got = shared_cluster.endpoints, asyncio.Queue[cometmq.Message]()
    bodies: dict[str, list[bytes]] = {"a": [], "b": []}

    async def taken(count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            for _ in range(count):
                message = await got.get()
                bodies[message.lite_topic].append(message.body)

    async with (
        cometmq.Producer(endpoints) as producer,
        cometmq.PushConsumer(
            endpoints, got.put, group=group, topics=parent, lite_topics="a"
        ) as consumer,
    ):
        await consumer.subscribe_lite("b")
        for number in range(5):
            for name in ("a", "b", "unread"):
                await producer.send(parent, b"%d" % number, lite_topic=name)
        await taken(10)
        assert bodies == {name: [b"%d" % number for number in range(5)] for name in ("a", "b")}
        await consumer.unsubscribe_lite("b")
        for name in ("b", "a"):
            await producer.send(parent, b"last", lite_topic=name)
        await taken(1)
        assert bodies["a"][-1] == b"last"
        with pytest.raises(RequestRefused, match="lite"):
            await consumer.subscribe_lite("no such name!")
    lite = ("topic", "describe", parent, "--lite-topics", "*", "-o", "json")

    def lags() -> dict[str, tuple[int, int | None]]:
        rows = json.loads(shared_cluster.run(*lite, "--endpoint", endpoints).stdout)
        return {row["lite_topic"]: (row["messages"], row["lag"]) for row in rows}

    wanted = {"a": (6, 0), "b": (6, 1), "unread": (5, None)}
    wait_until("the acknowledgements are counted", lambda: lags() == wanted, WAIT_S)


async def test_an_exclusive_lite_topic_goes_to_its_last_subscriber(
    shared_cluster: Cluster, new_topic: Make, new_group: Make
) -> None:
    parent, group = lite_parent(shared_cluster, new_topic, new_group, "+lite.sub.model=Exclusive")
    endpoints, got = shared_cluster.endpoints, asyncio.Queue[str]()

    def consumer(name: str) -> cometmq.PushConsumer:
        async def handle(_: cometmq.Message) -> None:
            await got.put(name)

        return cometmq.PushConsumer(endpoints, handle, group=group, topics=parent, lite_topics=[])

    async with consumer("first") as first, consumer("second") as second:
        await first.subscribe_lite("a")
        assert first.lite_topics == ["a"]
        await second.subscribe_lite("a")
        async with asyncio.timeout(WAIT_S):
            while first.lite_topics:  # noqa: ASYNC110 - until the broker tells it
                await asyncio.sleep(0.01)
        async with cometmq.Producer(endpoints) as producer:
            await producer.send(parent, b"x", lite_topic="a")
        assert await asyncio.wait_for(got.get(), WAIT_S) == "second"


def test_lite_topics_have_one_parent_without_a_filter() -> None:
    for topics in (["t", "u"], {"t": "tag"}):
        with pytest.raises(ValueError, match="one topic, their parent"):
            cometmq.SimpleConsumer("127.0.0.1:1", group="g", topics=topics, lite_topics=["a"])
