"""Client sessions: settings, expiry, headers, and messages held for clients.

Rows "Settings" and "Auto renew"; the pitfalls of Telemetry and of authentication
(docs/formats/grpc-api.md, sections 2, 7.5, 8 and 12).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac

import pytest

from cometmq.proto import paths, v2
from cometmq.tests.features.client import Client, consumer, producer

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.feature("Settings")
@pytest.mark.pitfall(13, 14, 17, 18, 20)
async def test_a_producers_settings_are_answered(client: Client) -> None:
    session = client.telemetry()
    asked = producer("any", "of_them")
    asked.publishing.max_body_size = 128 << 20  # as the Python client sends it
    asked.user_agent.version = "5.1.2"
    for _ in range(2):  # clients send settings repeatedly
        settled = await session.settle(asked)
        assert settled.status.code == v2.OK
        settings = settled.settings
        assert settings.publishing.max_body_size == 4 << 20
        assert settings.publishing.validate_message_type
        assert [topic.name for topic in settings.publishing.topics] == ["any", "of_them"]
        assert settings.backoff_policy.max_attempts == 3
        backoff = settings.backoff_policy.exponential_backoff
        assert backoff.initial.nanos == 10_000_000
        assert (backoff.max.seconds, backoff.multiplier) == (1, 2)
        assert settings.HasField("metric") and not settings.metric.on
        assert (settings.client_type, settings.user_agent.version) == (v2.PRODUCER, "5.1.2")
    session.cancel()


@pytest.mark.feature("Settings")
@pytest.mark.pitfall(13, 14, 15, 16, 18, 19, 20)
async def test_a_consumers_settings_are_answered(client: Client) -> None:
    topic, group = await client.topic(), await client.group(orderly=True)
    for kind, name in ((v2.PUSH_CONSUMER, group), (v2.SIMPLE_CONSUMER, client.name("plain"))):
        session = client.telemetry()
        settled = await session.settle(consumer(kind, name, topic, "a || b"))
        assert settled.status.code == v2.OK
        settings = settled.settings
        subscription = settings.subscription
        assert subscription.fifo == (name == group)
        assert subscription.receive_batch_size == 32
        assert subscription.long_polling_timeout.seconds == 20
        assert subscription.long_polling_timeout.nanos == 0
        assert subscription.subscriptions[0].expression.expression == "a || b"
        assert settings.backoff_policy.max_attempts == 17
        assert settings.backoff_policy.WhichOneof("strategy") == "customized_backoff"
        assert not settings.metric.on
        session.cancel()


@pytest.mark.pitfall(16)
async def test_the_node_client_gets_a_strategy_it_supports(client: Client) -> None:
    topic = await client.topic()
    async with Client(client.wire.endpoints, client.mark, "HTTP") as node:
        session = node.telemetry()
        settled = await session.settle(consumer(v2.PUSH_CONSUMER, client.name("group"), topic))
        assert settled.settings.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
        session.cancel()


@pytest.mark.pitfall(24)
async def test_a_lite_consumers_settings_contain_its_quotas(client: Client) -> None:
    topic = await client.topic()
    session = client.telemetry()
    settled = await session.settle(consumer(v2.LITE_PUSH_CONSUMER, client.name("group"), topic))
    assert settled.settings.subscription.lite_subscription_quota == 2_000
    assert settled.settings.subscription.max_lite_topic_size == 64
    session.cancel()


@pytest.mark.pitfall(25)
async def test_an_altered_group_serves_clients_with_old_settings(client: Client) -> None:
    """Clients choose their mode once at their start; the broker's lock holds in any mode."""
    topic, group = await client.topic(v2.FIFO), client.name("group")
    for body in ("a", "b"):
        await client.send(topic, body, message_group="k", message_type=v2.FIFO)
    session = client.telemetry()
    settled = await session.settle(consumer(v2.PUSH_CONSUMER, group, topic))
    assert not settled.settings.subscription.fifo
    await client.group(orderly=True)
    first = await client.one(topic, group, batch=1, auto_renew=True)
    await client.quiet(topic, group, auto_renew=True)
    await client.ack(topic, group, [first])
    assert (await client.one(topic, group, auto_renew=True)).body == b"b"
    session.cancel()


@pytest.mark.pitfall(21, 22)
async def test_a_client_is_served_without_a_stream_and_settings(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    session = client.telemetry()
    await session.settle(consumer(v2.PUSH_CONSUMER, group, topic))
    await client.send(topic, "a")
    got = await client.one(topic, group, auto_renew=True)
    await session.call.done_writing()
    session.cancel()
    await client.advance(120_000)
    assert await client.heartbeat(v2.PUSH_CONSUMER, group) == v2.OK
    await client.quiet(topic, group)  # no other client gets the message it processes
    await client.ack(topic, group, [got])
    async with Client(client.wire.endpoints, client.mark) as silent:
        # As after a restart of the server, which has no settings of the client.
        assert await silent.heartbeat(v2.PUSH_CONSUMER, group) == v2.OK
        await silent.send(topic, "b")
        assert (await silent.one(topic, group, auto_renew=True)).body == b"b"


@pytest.mark.feature("Auto renew")
@pytest.mark.pitfall(51)
async def test_a_push_consumers_first_handle_is_valid_for_hours(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    await client.send(topic, "a")
    got = await client.one(topic, group, auto_renew=True)
    for _ in range(30):
        await client.advance(61_000)
        assert await client.heartbeat(v2.PUSH_CONSUMER, group) == v2.OK
    await client.quiet(topic, group)
    await client.ack(topic, group, [got])
    await client.advance(4 * 3_600_000)
    await client.quiet(topic, group)


@pytest.mark.feature("Auto renew")
async def test_messages_of_a_terminating_client_come_back(client: Client) -> None:
    topic, group = await client.topic(), client.name("group")
    await client.send(topic, "a")
    async with Client(client.wire.endpoints, client.mark) as leaving:
        await leaving.one(topic, group, auto_renew=True)
        poll = leaving.waiting(topic, group, within_s=40)
        await asyncio.sleep(0.05)
        goodbye = v2.NotifyClientTerminationRequest()
        goodbye.group.name = group
        for _ in range(2):
            answer = await leaving.call(
                paths.NOTIFY_CLIENT_TERMINATION, goodbye, v2.NotifyClientTerminationResponse
            )
            assert answer.status.code == v2.OK
        assert (await poll).code == v2.MESSAGE_NOT_FOUND, "its poll ends at once"
    await client.advance(1_000)
    assert (await client.one(topic, group)).body == b"a"


@pytest.mark.pitfall(58, 59, 60, 61)
@pytest.mark.parametrize("date", ["20261120T114021Z", "2026-11-20T11:40:21.5+02:00", "soon", ""])
async def test_signatures_of_every_client_are_accepted_while_authentication_is_off(
    client: Client, date: str
) -> None:
    """Signatures are not checked yet (docs/compatibility.md); no form of them may be refused."""
    topic = await client.topic()
    signed = hmac.new(b"sk", date.encode(), hashlib.sha1).hexdigest()
    for user in ("", "ak", "ak//Rocketmq", "ak/cn/RocketMQ"):
        for signature in (signed, signed.upper(), ""):
            header = (
                f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, "
                f"Signature={signature}"
            )
            client.wire.metadata = (
                *client.wire.metadata[:4],
                ("x-mq-date-time", date),
                ("authorization", header),
            )
            await client.send(topic, "a")


@pytest.mark.pitfall(60)
@pytest.mark.parametrize("language", ["HTTP", "ERLANG", "", "COBOL"])
async def test_a_client_of_any_language_is_accepted(client: Client, language: str) -> None:
    """The reference refuses unknown languages on Telemetry."""
    topic = await client.topic()
    async with Client(client.wire.endpoints, client.mark, language) as other:
        session = other.telemetry()
        settled = await session.settle(consumer(v2.SIMPLE_CONSUMER, client.name("group"), topic))
        assert settled.status.code == v2.OK
        session.cancel()


async def test_a_client_without_an_id_gets_client_id_required(client: Client) -> None:
    topic = await client.topic()
    client.wire.metadata = client.wire.metadata[1:]
    assert await client.refused(topic) == v2.CLIENT_ID_REQUIRED
    assert (await client.receive(topic, "g")).code == v2.CLIENT_ID_REQUIRED
    assert await client.heartbeat(v2.PRODUCER) == v2.CLIENT_ID_REQUIRED
