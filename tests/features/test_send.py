"""Sends: bodies, properties, ids, batches, compression, and what the protocol does not support.

Rows of the feature table from "Body" to "Request-reply", and "Overload"
(docs/formats/broker-semantics.md, sections 8.4, 9 and 10; docs/formats/grpc-api.md, sections 4 and
5.5).
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import lz4.frame
import pytest

from cometmq.proto import v2
from cometmq.store.format.bodies import zstd
from cometmq.tests.broker.live import Settings, settings
from cometmq.tests.features.client import MIXED, Client, producer, resource
from cometmq.tests.features.house import House
from cometmq.tests.features.records import append

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 1 << 20


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Return settings with segments large enough for messages of every allowed size."""
    made = settings(tmp_path_factory.mktemp("features"))
    return replace(made, store=replace(made.store, mapped_file_size_commit_log=16 * MIB))


@pytest.mark.feature("Body")
@pytest.mark.pitfall(4)
async def test_bodies_may_have_one_byte_to_four_mebibytes(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    assert await client.refused(topic, b"") == v2.MESSAGE_BODY_EMPTY
    assert await client.refused(topic, bytes(4 * MIB + 1)) == v2.MESSAGE_BODY_TOO_LARGE
    assert await client.refused(topic, bytes(9 * MIB)) == v2.MESSAGE_BODY_TOO_LARGE
    for size in (1, 4 * MIB):
        await client.send(topic, bytes(size))
        got = await client.one(topic, group)
        assert len(got.body) == size
        await client.ack(topic, group, [got])


@pytest.mark.pitfall(5)
async def test_a_client_with_a_receive_limit_of_four_mebibytes_can_be_served(
    client: Client,
) -> None:
    """C#, Node and Rust do not accept a body of the full 4 MiB from any server.

    The limit in the producer's settings is enforced; docs/compatibility.md states the size.
    """
    topic, group = await client.topic(), client.name("group")
    session = client.telemetry()
    settled = await session.settle(producer(topic))
    assert settled.settings.publishing.max_body_size == 4 * MIB
    session.cancel()
    await client.send(topic, bytes(4 * MIB - 65_536))
    channel = grpc.aio.insecure_channel(client.wire.endpoints)  # gRPC's own limit of 4 MiB
    async with channel:
        stream = channel.unary_stream(
            "/apache.rocketmq.v2.MessagingService/ReceiveMessage",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=v2.ReceiveMessageResponse.FromString,
        )(client.receive_request(topic, group), timeout=15, metadata=client.wire.metadata)
        sizes = [len(item.message.body) async for item in stream if item.HasField("message")]
    assert sizes == [4 * MIB - 65_536]


@pytest.mark.feature("Properties")
async def test_properties_are_limited_and_reserved_names_refused(client: Client) -> None:
    topic = await client.topic()
    many = {f"k{n}": "v" for n in range(128)}
    await client.send(topic, properties=many)
    too_large = v2.MESSAGE_PROPERTIES_TOO_LARGE
    assert await client.refused(topic, properties={**many, "one": "more"}) == too_large
    await client.send(topic, properties={"k": "v" * 16_383})
    assert await client.refused(topic, properties={"k": "v" * 16_384}) == too_large
    assert await client.refused(topic, properties={"k": "v" * 16_383}, tag="t") == too_large
    for key in ("KEYS", "UNIQ_KEY", "TIMER_DELIVER_MS", "POP_CK", "REAL_TOPIC", "__CRC32#"):
        code = await client.refused(topic, properties={key: "x"})
        assert code == v2.ILLEGAL_MESSAGE_PROPERTY_KEY
    for key, value in (("a\nb", "x"), ("k", "x\x00")):
        code = await client.refused(topic, properties={key: value})
        assert code == v2.ILLEGAL_MESSAGE_PROPERTY_KEY
    assert await client.refused(topic, tag="a|b") == v2.ILLEGAL_MESSAGE_TAG
    assert await client.refused(topic, keys=[" "]) == v2.ILLEGAL_MESSAGE_KEY


@pytest.mark.feature("Message id")
async def test_message_ids_are_required_and_may_repeat(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    for blank in ("", " "):
        assert await client.refused(topic, message_id=blank) == v2.ILLEGAL_MESSAGE_ID
    offsets = [(await client.send(topic, "a", message_id="the same")).offset for _ in range(2)]
    assert offsets == [0, 1]
    got = await client.take(topic, group, 2)
    assert {message.system_properties.message_id for message in got} == {"the same"}


@pytest.mark.feature("Message id")
async def test_repeated_messages_are_deduplicated_if_enabled(alone: Callable[..., Any]) -> None:
    async with alone(message_deduplication_enable=True) as (_, client):
        topic, other = await client.topic(), await client.topic(what="other")
        first = await client.send(topic, "a", message_id="one")
        again = await client.send(topic, "a", message_id="one")
        assert again == first, "answered as the first time, and not stored again"
        await client.send(other, "b", message_id="one")
        assert (await client.stored(topic), await client.stored(other)) == (1, 1)
        await client.advance(3_600_000)
        await client.send(topic, "a", message_id="one")
        assert await client.stored(topic) == 2, "outside of the window it is a new message"


@pytest.mark.feature("Multi-message send")
@pytest.mark.pitfall(9, 10)
async def test_each_message_of_a_call_has_an_entry(client: Client) -> None:
    """The reference returns one entry for all of them."""
    topic, other = await client.topic(queues=3), await client.topic(what="other")
    sent = [client.message(topic, f"{n}") for n in range(3)]
    answer = await client.send_all(*sent)
    assert answer.status.code == v2.OK
    assert [entry.status.code for entry in answer.entries] == [v2.OK] * 3
    assert [entry.message_id for entry in answer.entries] == [
        message.system_properties.message_id for message in sent
    ]
    assert [entry.offset for entry in answer.entries] == [0, 1, 2], "of one queue"
    got = await client.take(topic, client.name("group"), 3)
    assert [message.body for message in got] == [b"0", b"1", b"2"]
    assert len({message.system_properties.queue_id for message in got}) == 1
    mixed = await client.send_all(client.message(topic), client.message(other))
    assert (mixed.status.code, len(mixed.entries)) == (v2.MESSAGE_CORRUPTED, 0)
    nothing = await client.send_all()
    assert (nothing.status.code, len(nothing.entries)) == (v2.MESSAGE_CORRUPTED, 0)


@pytest.mark.feature("Compression")
@pytest.mark.pitfall(42, 47)
async def test_compressed_bodies_are_decompressed_for_delivery(client: Client) -> None:
    """Stored as sent; decompressed for delivery, because clients differ in their codecs."""
    topic = await client.topic()
    plain = b"a body that can be compressed " * 200
    packers: list[Callable[[bytes], bytes]] = [gzip.compress, zlib.compress]
    for number, pack in enumerate(packers):  # C++ calls zlib GZIP
        packed = pack(plain)
        await client.send(topic, packed, body_encoding=v2.GZIP)
        got = await client.one(topic, client.name(f"group{number}"), tag="*")
        assert (got.body, got.system_properties.body_encoding) == (plain, v2.IDENTITY)
        digest = hashlib.md5(got.body, usedforsecurity=False).hexdigest().upper()
        assert got.system_properties.body_digest.checksum == digest
        topic = await client.topic(what=f"next{number}")


@pytest.mark.feature("Compression")
@pytest.mark.parametrize(
    ("codec", "pack"),
    [(1, lz4.frame.compress), (2, zstd().compress), (3, zlib.compress)],
    ids=["lz4", "zstd", "zlib"],
)
async def test_every_codec_of_apaches_stores_is_decompressed(
    client: Client, house: House, codec: int, pack: Callable[[bytes], bytes]
) -> None:
    topic = await client.topic()
    plain = b"classic producers compress " * 50
    append(house.live.node, topic, pack(plain), {"UNIQ_KEY": "ID"}, sys_flag=1 | codec << 8)
    got = await client.one(topic, client.name("group"))
    assert (got.body, got.system_properties.body_encoding) == (plain, v2.IDENTITY)


@pytest.mark.feature("Request-reply")
async def test_request_and_reply_are_unsupported(client: Client) -> None:
    topic = await client.topic()
    for key in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL"):
        code = await client.refused(topic, properties={key: "x"})
        assert code == v2.ILLEGAL_MESSAGE_PROPERTY_KEY
    methods = v2.DESCRIPTOR.services_by_name["MessagingService"].methods
    assert not [method.name for method in methods if "Reply" in method.name]


@pytest.mark.feature("Overload")
async def test_too_many_sends_are_refused_with_the_cause(alone: Callable[..., Any]) -> None:
    async with alone(send_thread_pool_queue_capacity=4) as (_, client):
        topic = await client.topic()
        messages = [client.message(topic, f"{n}") for n in range(200)]
        answers = await asyncio.gather(*(client.send_all(message) for message in messages))
        codes = Counter(answer.status.code for answer in answers)
        assert set(codes) <= {v2.OK, v2.TOO_MANY_REQUESTS} and codes[v2.OK] > 0
        assert await client.stored(topic) == codes[v2.OK]
        for answer in answers:
            if answer.status.code == v2.TOO_MANY_REQUESTS:
                assert "[" in answer.status.message, "the remark names the guard"


@pytest.mark.pitfall(41)
async def test_the_attempt_of_a_send_is_ignored(client: Client) -> None:
    """The C++ client sends a time in this field."""
    topic, group = await client.topic(), client.name("group")
    await client.send(topic, "a", delivery_attempt=1_700_000)
    assert (await client.one(topic, group)).system_properties.delivery_attempt == 1


@pytest.mark.pitfall(38)
async def test_a_message_with_properties_of_two_types_is_refused(client: Client) -> None:
    topic = await client.topic(MIXED)
    later_ms = await client.now_ms() + 60_000
    for fields in (
        {"message_group": "g", "message_type": v2.TRANSACTION},
        {"deliver_ms": later_ms, "message_type": v2.TRANSACTION},
    ):
        code = await client.refused(topic, **fields)
        assert code == v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


@pytest.mark.pitfall(23)
async def test_the_namespace_of_a_resource_is_returned(client: Client) -> None:
    topic = await client.topic()
    session = client.telemetry()
    asked = producer()
    asked.publishing.topics.add(name=topic, resource_namespace="spaces")
    settled = await session.settle(asked)
    assert list(settled.settings.publishing.topics) == list(asked.publishing.topics)
    assert resource(topic) != settled.settings.publishing.topics[0]
    session.cancel()
