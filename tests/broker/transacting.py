"""Transaction producers over real connections, and clock control."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from cometmq.broker.clients.registry import Client
from cometmq.broker.transactions.records import OP_TOPIC, op_offsets
from cometmq.proto import paths, v1, v2
from cometmq.proto.errors import WireError
from cometmq.store.format.record import Record, decode
from cometmq.tests.broker.desk import Desk, message, resource
from cometmq.tests.broker.live import Live, telemetry
from cometmq.tests.harness.wire import Wire

ANSWER_S = 20.0


def half(topic: str, message_id: str, body: bytes = b"half", immunity_s: int = 0) -> v2.Message:
    """Return a transactional message as the official clients send it."""
    system = v2.SystemProperties(
        message_id=message_id,
        message_type=v2.TRANSACTION,
        body_encoding=v2.IDENTITY,
        born_host="tests",
    )
    system.born_timestamp.GetCurrentTime()
    if immunity_s:
        system.orphaned_transaction_recovery_duration.seconds = immunity_s
    return v2.Message(
        topic=v2.Resource(name=topic),
        user_properties={"colour": "blue"},
        system_properties=system,
        body=body,
    )


class Producer:
    """One client with its telemetry stream."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.stream = telemetry(wire)

    async def settle(self, *topics: str) -> None:
        """Send settings and wait for the response."""
        settings = v2.Settings(client_type=v2.PRODUCER, publishing=v2.Publishing())
        for topic in topics:
            settings.publishing.topics.add(name=topic, resource_namespace="space")
        await self.stream.write(v2.TelemetryCommand(settings=settings))
        assert (await self.read()).status.code == v2.OK

    async def read(self) -> v2.TelemetryCommand:
        """Return the next command."""
        answer = await asyncio.wait_for(self.stream.read(), ANSWER_S)
        assert answer is not grpc.aio.EOF
        command: v2.TelemetryCommand = answer
        return command

    async def next_check(self) -> v2.RecoverOrphanedTransactionCommand:
        """Return the next transaction check."""
        command = await self.read()
        assert command.WhichOneof("command") == "recover_orphaned_transaction_command", command
        return command.recover_orphaned_transaction_command

    async def send(self, *messages: v2.Message) -> list[str]:
        """Send half messages; return their transaction ids."""
        answer = await self.wire.send(messages, within_s=ANSWER_S)
        assert answer.status.code == v2.OK, answer
        return [entry.transaction_id for entry in answer.entries]

    async def end(self, topic: str, transaction_id: str, resolution: int = v2.COMMIT) -> int:
        """Call EndTransaction; return the code."""
        return await end(self.wire, topic, transaction_id, resolution)


async def end(wire: Wire, topic: str, transaction_id: str, resolution: int = v2.COMMIT) -> int:
    """Call EndTransaction; return the code."""
    request = v2.EndTransactionRequest(
        topic=v2.Resource(name=topic),
        message_id="m",
        transaction_id=transaction_id,
        resolution=v2.TransactionResolution.ValueType(resolution),
    )
    answer = await wire.call(paths.END_TRANSACTION, request, v2.EndTransactionResponse, ANSWER_S)
    return int(answer.status.code)


@asynccontextmanager
async def producing(live: Live, client_id: str, *topics: str) -> AsyncIterator[Producer]:
    """Run a producer that sends its settings, and terminate it at the end."""
    async with live.client(client_id) as wire:
        producer = Producer(wire)
        await producer.settle(*topics)
        yield producer
        producer.stream.cancel()


def client_of(live: Live, client_id: str) -> Client:
    """Return a registered client."""
    client = live.node.clients.get(client_id)
    assert client is not None, f"{client_id} is not known"
    return client


async def advance(wire: Wire, ms: int) -> None:
    """Move the broker's wall clock."""
    answer = await wire.call(
        paths.ADVANCE_CLOCK, v1.AdvanceClockRequest(ms=ms), v1.ClockResponse, ANSWER_S
    )
    assert answer.code == v2.OK


def stored(one: Any, topic: str) -> list[Record]:
    """Return all records of queue 0 of a topic."""
    store = one.node.store
    one.node.pump.run()
    found: list[Record] = []
    while len(found) < store.max_offset(topic, 0):
        result = store.get(topic, 0, len(found), 1000, 1 << 20)
        found += [decode(entry.data) for entry in result.records]
    return found


def ops(one: Any) -> list[list[int]]:
    """Return the op records."""
    return [op_offsets(record.body) for record in stored(one, OP_TOPIC)]


def stored_of(one: Any, topic: str, queue_id: int) -> list[Record]:
    """Return all records of one queue."""
    result = one.node.store.get(topic, queue_id, 0, 1000, 1 << 20)
    return [decode(entry.data) for entry in result.records]


async def prepared(one: Desk, topic: str, *ids: str) -> list[str]:
    """Send half messages, one request each; return their transaction ids."""
    found = []
    for message_id in ids:
        answer = await one.send(message(topic, b"half", message_id, message_type=v2.TRANSACTION))
        assert answer.status.code == v2.OK, answer
        found.append(answer.entries[0].transaction_id)
    return found


async def end_transaction(
    one: Desk, topic: str, transaction_id: str, resolution: int = v2.COMMIT
) -> int:
    """Call EndTransaction; return the code."""
    request = v2.EndTransactionRequest(
        topic=resource(topic),
        transaction_id=transaction_id,
        resolution=v2.TransactionResolution.ValueType(resolution),
    )
    try:
        answer = one.node.transactions.end_transaction(request, one.context())
        if not isinstance(answer, v2.EndTransactionResponse):
            answer = await answer
    except WireError as error:
        return error.code
    return int(answer.status.code)
