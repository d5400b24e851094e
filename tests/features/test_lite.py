"""Lite topics: many small ordered topics inside one parent topic, subscribed by name.

Row "Lite [5.5+]", pitfall 24 (docs/formats/broker-semantics.md, section 12.2;
docs/formats/grpc-api.md, section 5.13).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cometmq.proto import paths, v2
from cometmq.tests.features.client import Client, Session, consumer, resource

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def parent(client: Client, *attributes: str) -> tuple[str, str]:
    """Create a topic of type LITE and a group that is bound to it."""
    topic = await client.topic(v2.LITE)
    group = await client.group(attributes=[f"+lite.bind.topic={topic}", *attributes])
    return topic, group


async def sync(
    client: Client, topic: str, group: str, action: int, names: Iterable[str] = (), **more: Any
) -> int:
    """Call SyncLiteSubscription; return the code."""
    request = v2.SyncLiteSubscriptionRequest(
        action=v2.LiteSubscriptionAction.ValueType(action),
        topic=resource(topic),
        group=resource(group),
        lite_topic_set=list(names),
        **more,
    )
    answer = await client.call(
        paths.SYNC_LITE_SUBSCRIPTION, request, v2.SyncLiteSubscriptionResponse
    )
    return int(answer.status.code)


@asynccontextmanager
async def session_of(client: Client, topic: str, group: str) -> AsyncIterator[Session]:
    """Open the Telemetry stream of a lite push consumer."""
    session = client.telemetry()
    settled = await session.settle(consumer(v2.LITE_PUSH_CONSUMER, group, topic))
    assert settled.status.code == v2.OK
    yield session
    session.cancel()


async def send(client: Client, topic: str, name: str, *bodies: str) -> None:
    """Send messages to a lite topic."""
    for body in bodies:
        await client.send(topic, body, lite_topic=name, message_type=v2.LITE)


async def take(client: Client, topic: str, group: str, count: int) -> dict[str, list[v2.Message]]:
    """Receive `count` messages; return them by lite topic, in order of arrival."""
    found: dict[str, list[v2.Message]] = defaultdict(list)
    for message in await client.take(topic, group, count, auto_renew=True):
        found[message.system_properties.lite_topic].append(message)
    return found


def bodies(found: dict[str, list[v2.Message]]) -> dict[str, list[str]]:
    """Return the bodies by lite topic."""
    return {name: [message.body.decode() for message in some] for name, some in found.items()}


@pytest.mark.feature("Lite [5.5+]")
@pytest.mark.pitfall(24)
async def test_a_client_gets_its_lite_topics_in_order(client: Client) -> None:
    topic, group = await parent(client)
    async with session_of(client, topic, group):
        assert await sync(client, topic, group, v2.PARTIAL_ADD, ["a", "b"]) == v2.OK
        await send(client, topic, "a", "a1", "a2")
        await send(client, topic, "b", "b1")
        await send(client, topic, "unsubscribed", "n1")
        got = await take(client, topic, group, 3)
        assert bodies(got) == {"a": ["a1", "a2"], "b": ["b1"]}
        await send(client, topic, "a", "a3")
        await client.quiet(topic, group, auto_renew=True)  # a is locked until it is acknowledged
        await client.ack(topic, group, got["a"])
        again = await take(client, topic, group, 1)
        assert bodies(again) == {"a": ["a3"]}
        await client.ack(topic, group, [*again["a"], *got["b"]])


@pytest.mark.feature("Lite [5.5+]")
async def test_subscriptions_are_added_removed_and_replaced(client: Client) -> None:
    topic, group = await parent(client)
    async with session_of(client, topic, group):
        assert await sync(client, topic, group, v2.PARTIAL_ADD, ["a", "b"]) == v2.OK
        assert await sync(client, topic, group, v2.PARTIAL_REMOVE, ["a"]) == v2.OK
        await send(client, topic, "a", "a1")
        await send(client, topic, "b", "b1")
        got = await take(client, topic, group, 1)
        assert bodies(got) == {"b": ["b1"]}
        await client.ack(topic, group, got["b"])
        for _ in range(2):  # the refresh that clients send every 30 s
            assert await sync(client, topic, group, v2.COMPLETE_ADD, ["c"]) == v2.OK
        await send(client, topic, "b", "b2")
        await send(client, topic, "c", "c1")
        got = await take(client, topic, group, 1)
        assert bodies(got) == {"c": ["c1"]}
        await client.ack(topic, group, got["c"])
        assert await sync(client, topic, group, v2.COMPLETE_REMOVE) == v2.OK
        await send(client, topic, "c", "c2")
        await client.quiet(topic, group, auto_renew=True)


@pytest.mark.feature("Lite [5.5+]")
async def test_lite_names_and_quotas_are_enforced(client: Client) -> None:
    topic, group = await parent(client, "+lite.sub.client.quota=2")
    async with session_of(client, topic, group):
        for name in ("a.b", "x" * 65, "größe"):
            assert await sync(client, topic, group, v2.PARTIAL_ADD, [name]) == v2.ILLEGAL_LITE_TOPIC
            code = await client.refused(topic, lite_topic=name, message_type=v2.LITE)
            assert code == v2.ILLEGAL_LITE_TOPIC
        assert await sync(client, topic, group, v2.PARTIAL_ADD, ["a", "b"]) == v2.OK
        code = await sync(client, topic, group, v2.PARTIAL_ADD, ["c"])
        assert code == v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert await client.refused(topic) == v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    plain = await client.topic(what="plain")
    code = await client.refused(plain, lite_topic="a", message_type=v2.LITE)
    assert code == v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


@pytest.mark.feature("Lite [5.5+]")
async def test_a_replaced_exclusive_subscriber_is_notified(client: Client) -> None:
    topic, group = await parent(client, "+lite.sub.model=Exclusive")
    async with (
        Client(client.wire.endpoints, client.mark) as second,
        session_of(client, topic, group) as session,
        session_of(second, topic, group),
    ):
        assert await sync(client, topic, group, v2.PARTIAL_ADD, ["a"]) == v2.OK
        assert await sync(second, topic, group, v2.PARTIAL_ADD, ["a"]) == v2.OK
        command = await session.read()
        assert command.notify_unsubscribe_lite_command.lite_topic == "a"
        await send(client, topic, "a", "a1")
        got = await take(second, topic, group, 1)
        assert bodies(got) == {"a": ["a1"]}
