"""Pulling, offsets and replay.

Rows of the feature table from "SQL with pull" to "Offset reset" (docs/formats/broker-semantics.md,
section 2; docs/formats/grpc-api.md, section 5.12). No official client of the protocol pulls;
PullMessage is served nevertheless.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from cometmq.proto import paths, v1, v2
from cometmq.tests.features.client import POLL_S, Client, patiently, resource

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(slots=True)
class Pulled:
    """A PullMessage stream."""

    code: int = 0
    next_offset: int = -1
    messages: list[v2.Message] = field(default_factory=list)

    @property
    def bodies(self) -> list[bytes]:
        """The bodies in stream order."""
        return [message.body for message in self.messages]


async def pull(
    client: Client, topic: str, offset: int, within_s: float = POLL_S, **more: Any
) -> Pulled:
    """Call PullMessage on queue 0."""
    kind = v2.SQL if "sql" in more else v2.TAG
    request = v2.PullMessageRequest(
        group=resource(client.name("group")),
        message_queue=v2.MessageQueue(topic=resource(topic), id=0),
        offset=offset,
        batch_size=more.pop("batch", 32),
        filter_expression=v2.FilterExpression(type=kind, expression=more.pop("sql", "*")),
    )
    request.long_polling_timeout.seconds = 5
    stream = client.wire.channel.unary_stream(
        paths.PULL_MESSAGE,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=v2.PullMessageResponse.FromString,
    )(request, timeout=within_s, metadata=client.wire.metadata)
    found = Pulled()
    async for item in stream:
        kind_of_item = item.WhichOneof("content")
        if kind_of_item == "message":
            found.messages.append(item.message)
        elif kind_of_item == "status":
            found.code = item.status.code
        else:
            found.next_offset = item.next_offset
    return found


async def reset(client: Client, group: str, topic: str, **position: Any) -> v1.ResetOffsetsResponse:
    """Reset a group's offsets."""
    request = v1.ResetOffsetsRequest(group=group, topic=topic, **position)
    answer: v1.ResetOffsetsResponse = await client.call(
        paths.RESET_OFFSETS, request, v1.ResetOffsetsResponse
    )
    return answer


@pytest.mark.feature("SQL with pull")
async def test_pulls_accept_sql_expressions(client: Client) -> None:
    """The reference refuses them unless configured otherwise."""
    topic = await client.topic()
    for price in ("9.5", "10", "11"):
        await client.send(topic, price, properties={"price": price})
    got = await pull(client, topic, 0, sql="price < 10.5")
    assert (got.code, got.bodies) == (v2.OK, [b"9.5", b"10"])
    bad = await pull(client, topic, 0, sql="price <")
    assert bad.code == v2.ILLEGAL_FILTER_EXPRESSION


@pytest.mark.feature("Pull nothing new")
async def test_a_pull_at_the_end_is_held_and_woken(client: Client) -> None:
    topic = await client.topic()
    await client.send(topic, "a")
    got = await pull(client, topic, 0)
    assert (got.code, got.bodies, got.next_offset) == (v2.OK, [b"a"], 1)
    assert not got.messages[0].system_properties.receipt_handle
    empty = await patiently(lambda within_s: pull(client, topic, 1, within_s))
    assert (empty.code, empty.next_offset) == (v2.MESSAGE_NOT_FOUND, 1)
    waiting = asyncio.create_task(pull(client, topic, 1))
    await asyncio.sleep(0.05)
    await client.send(topic, "b")
    assert (await waiting).bodies == [b"b"]


@pytest.mark.feature("Pull offset out of range")
async def test_a_pull_outside_the_queue_gets_the_valid_offset(client: Client) -> None:
    topic = await client.topic()
    await client.send(topic, "a")
    for offset, right in ((100, 1), (-1, 0)):
        got = await pull(client, topic, offset)
        assert (got.code, got.next_offset) == (v2.ILLEGAL_OFFSET, right)


@pytest.mark.feature("Offset reset")
async def test_the_next_receive_starts_at_the_reset_position(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    for body in ("a", "b", "c"):
        await client.send(topic, body)
    await client.ack(topic, group, await client.take(topic, group, 3))
    preview = await reset(client, group, topic, offset=1, dry_run=True)
    assert [(one.before, one.after) for one in preview.changes] == [(3, 1)]
    await client.quiet(topic, group)
    done = await reset(client, group, topic, offset=1)
    assert done.code == v2.OK, done
    again = await client.take(topic, group, 2)
    assert [message.body for message in again] == [b"b", b"c"]


@pytest.mark.feature("Offset reset")
async def test_a_reset_by_time_unlocks_an_ordered_queue(client: Client) -> None:
    topic = await client.topic(v2.FIFO)
    group = await client.group(orderly=True)
    await client.send(topic, "old", message_group="k", message_type=v2.FIFO)
    await client.advance(60_000)
    since_ms = await client.now_ms()
    await client.send(topic, "new", message_group="k", message_type=v2.FIFO)
    assert len(await client.take(topic, group, 2)) == 2
    await client.quiet(topic, group)
    assert (await reset(client, group, topic, timestamp_ms=since_ms)).code == v2.OK
    assert (await client.one(topic, group)).body == b"new"
    assert (await reset(client, group, topic, timestamp_ms=0)).code == v2.OK
    assert [m.body for m in await client.take(topic, group, 2)] == [b"old", b"new"]
    assert (await reset(client, group, topic, timestamp_ms=-1)).code == v2.OK
    await client.quiet(topic, group)
