"""kill -9 during a transaction: before its end, between its end and the op record, between
checks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cometmq.broker.transactions.records import HALF_TOPIC
from cometmq.proto import paths, v1, v2
from cometmq.store.format.record import decode
from cometmq.tests.broker.broker_process import BrokerProcess
from cometmq.tests.broker.live import create_topic, running, settings, until
from cometmq.tests.broker.transacting import Producer, advance, half
from cometmq.tests.harness.wire import Wire, receive_request

ROUND_MS = 30_000


@asynccontextmanager
async def producing(broker: BrokerProcess, client_id: str = "p@1") -> AsyncIterator[Producer]:
    """Run a producer for the topic, which is created if needed."""
    async with broker.client(client_id) as wire:
        await create_topic(wire, "t", queues=1, message_type=v2.TRANSACTION)
        producer = Producer(wire)
        await producer.settle("t")
        yield producer
        producer.stream.cancel()


async def received(wire: Wire) -> list[bytes]:
    """Return all visible messages of the topic."""
    bodies: list[bytes] = []
    while True:
        code, messages = await wire.receive_now(receive_request("t", "g"))
        if code != v2.OK:
            return bodies
        bodies += [message.body for message in messages]


async def stored(wire: Wire, topic: str) -> int:
    """Return the messages ever stored in the topic."""
    answer = await wire.call(
        paths.DESCRIBE_TOPIC, v1.DescribeTopicRequest(name=topic), v1.DescribeTopicResponse
    )
    return sum(queue.max_offset for queue in answer.queues)


async def test_a_half_message_survives_and_is_ended_by_its_id_or_a_check(
    tmp_path: Path,
) -> None:
    async with BrokerProcess(tmp_path) as broker, producing(broker) as producer:
        first, second = await producer.send(half("t", "A", b"a"), half("t", "B", b"b"))
        await broker.kill()
    async with BrokerProcess(tmp_path) as broker, producing(broker, "q@1") as producer:
        assert await producer.end("t", first) == v2.OK
        assert await received(producer.wire) == [b"a"]
        await advance(producer.wire, ROUND_MS)
        asked = await producer.next_check()
        assert asked.transaction_id == second, "by another producer than the one that sent it"
        assert await producer.end("t", asked.transaction_id) == v2.OK
        assert await received(producer.wire) == [b"b"]


async def test_a_commit_without_its_op_record_is_neither_undone_nor_repeated(
    tmp_path: Path,
) -> None:
    slow = {"transaction_op_batch_interval": 3_600_000}
    async with BrokerProcess(tmp_path, **slow) as broker, producing(broker) as producer:
        first, second, third = await producer.send(
            half("t", "A", b"a"), half("t", "B", b"b"), half("t", "C", b"c")
        )
        assert await producer.end("t", first) == v2.OK
        assert await producer.end("t", second, v2.ROLLBACK) == v2.OK
        assert await stored(producer.wire, "RMQ_SYS_TRANS_OP_HALF_TOPIC") == 0
        await broker.kill()
    async with BrokerProcess(tmp_path) as broker, producing(broker, "q@1") as producer:
        assert await received(producer.wire) == [b"a"], "what was committed stays committed"
        assert await producer.end("t", first) == v2.OK
        assert await stored(producer.wire, "t") == 1, "and is delivered once"
        await advance(producer.wire, ROUND_MS)
        asked = [await producer.next_check(), await producer.next_check()]
        assert [one.transaction_id for one in asked] == [second, third]
        assert await producer.end("t", second, v2.ROLLBACK) == v2.OK
        assert await producer.end("t", third) == v2.OK
        assert await received(producer.wire) == [b"c"]


async def test_checks_continue_from_the_newest_copy(tmp_path: Path) -> None:
    async with BrokerProcess(tmp_path) as broker, producing(broker) as producer:
        first, second = await producer.send(half("t", "A", b"a"), half("t", "B", b"b"))
        for _ in range(3):
            await advance(producer.wire, ROUND_MS)
            assert (await producer.next_check()).transaction_id == first
            assert (await producer.next_check()).transaction_id == second
        await broker.kill()
    async with running(settings(tmp_path)) as live:
        transactions = live.node.transactions
        await until(lambda: transactions.recovery is None)
        assert sorted((one.key, one.checks) for one in transactions.table) == [
            ("A", 3),
            ("B", 3),
        ]
        copies = live.node.store.get(HALF_TOPIC, 0, 6, 10, 1 << 20).records
        assert [decode(copy.data).properties_dict["UNIQ_KEY"] for copy in copies] == ["A", "B"]
    async with BrokerProcess(tmp_path) as broker, producing(broker, "q@1") as producer:
        assert await producer.end("t", second) == v2.OK
        assert await received(producer.wire) == [b"b"]
        await advance(producer.wire, ROUND_MS)
        asked = await producer.next_check()
        assert asked.message.body == b"a"
        assert await producer.end("t", asked.transaction_id) == v2.OK
        assert await received(producer.wire) == [b"a"]
        assert await producer.end("t", first) == v2.OK
        assert await stored(producer.wire, "t") == 2


async def test_a_commit_survives_a_kill_after_its_answer(tmp_path: Path) -> None:
    """Repeated kills at any point: every commit is delivered once, every other transaction is
    open.
    """
    ids: dict[str, str] = {}
    committed: list[str] = []
    for turn in range(3):
        async with BrokerProcess(tmp_path) as broker, producing(broker) as producer:
            keys = [f"{turn}-{n}" for n in range(20)]
            sent = await producer.send(*(half("t", key, key.encode()) for key in keys))
            ids.update(zip(keys, sent, strict=True))
            for key in keys[: 5 + turn]:
                assert await producer.end("t", ids[key]) == v2.OK
                committed.append(key)
            await broker.kill()
    async with running(settings(tmp_path)) as live, live.client() as wire:
        transactions = live.node.transactions
        await until(lambda: transactions.recovery is None)
        assert sorted(await received(wire)) == sorted(key.encode() for key in committed)
        still = {one.key for one in transactions.halves.open()}
        assert still == ids.keys() - set(committed)
