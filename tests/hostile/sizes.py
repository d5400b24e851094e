"""Attacks by size and number: large requests, large answers, bombs, and floods of small things."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from contextlib import AsyncExitStack
from typing import Any

from cometmq.proto import paths, v1, v2
from cometmq.tests.harness.wire import Wire, receive_request
from cometmq.tests.hostile.attacker import (
    ATTACKED,
    Attacker,
    attack,
    connect,
    plain,
    sub,
    summary,
    varint,
)

MIB = 1 << 20
#: The answers to a request that is too large.
TOO_LARGE = (
    *("RESOURCE_EXHAUSTED", "PAYLOAD_TOO_LARGE", "MESSAGE_BODY_TOO_LARGE", "BAD_REQUEST"),
    *("MESSAGE_PROPERTIES_TOO_LARGE", "TOO_MANY_REQUESTS", "INVALID_ARGUMENT"),
    *("REQUEST_HEADER_FIELDS_TOO_LARGE", "ILLEGAL_FILTER_EXPRESSION", "MESSAGE_CORRUPTED"),
)


def _message(system: bytes = b"", users: bytes = b"", body: bytes = b"x") -> bytes:
    """Encode the field `messages` of a SendMessage."""
    topic = sub(1, sub(2, ATTACKED.encode()))
    system = sub(3, b"H") + varint(5 << 3) + b"\x01" + varint(6 << 3) + b"\x01" + system
    return sub(1, topic + users + sub(3, system) + sub(4, body))


@attack(*TOO_LARGE)
async def many_messages_in_one_request(one: Attacker) -> str:
    """300,000 messages of one byte in one request."""
    return await one.outcome(paths.SEND_MESSAGE, _message() * 300_000)


@attack(*TOO_LARGE)
async def many_messages_in_a_gzip_request(one: Attacker) -> str:
    """60,000 messages in 13 KB of gzip."""
    return await one.outcome(paths.SEND_MESSAGE, _message() * 60_000, gzip=True)


@attack(*TOO_LARGE)
async def gzip_bomb(one: Attacker) -> str:
    """A request that grows to 160 MB when it is decompressed."""
    return await one.outcome(paths.SEND_MESSAGE, _message(body=bytes(160 * MIB)), gzip=True)


@attack(*TOO_LARGE)
async def many_properties_of_a_message(one: Attacker) -> str:
    """1,000,000 user properties in one message."""
    begin, end = sub(2, sub(1, b"0000000") + sub(2, b"v")).split(b"0000000")
    users = b"".join([b"%s%07d%s" % (begin, n, end) for n in range(1_000_000)])
    return await one.outcome(paths.SEND_MESSAGE, _message(users=users))


@attack(*TOO_LARGE)
async def many_keys_of_a_message(one: Attacker) -> str:
    """1,000,000 keys in one message."""
    return await one.outcome(paths.SEND_MESSAGE, _message(system=sub(2, b"k") * 1_000_000))


@attack(*TOO_LARGE, "ILLEGAL_MESSAGE_GROUP", "ILLEGAL_LITE_TOPIC")
async def large_strings_of_a_message(one: Attacker) -> str:
    """Strings of 20 MB as id, tag, host, group, trace context and property."""
    large = b"s" * (20 * MIB)
    fields = [sub(number, large) for number in (1, 3, 8, 17, 18, 21)]
    requests = [_message(system=field) for field in fields]
    requests.append(_message(users=sub(2, sub(1, b"n") + sub(2, large))))
    # One after the other: each holds 20 MB.
    return summary([await one.outcome(paths.SEND_MESSAGE, request) for request in requests])


@attack(*TOO_LARGE, "INVALID_RECEIPT_HANDLE", "ILLEGAL_CONSUMER_GROUP")
async def many_entries_of_an_ack(one: Attacker) -> str:
    """300,000 receipt handles in one request."""
    entry = sub(3, sub(1, b"m") + sub(2, b"0 0 30000 0 0 broker-a 0 0 0"))
    request = sub(1, sub(2, b"fresh")) + sub(2, sub(2, ATTACKED.encode())) + entry * 300_000
    return await one.outcome(paths.ACK_MESSAGE, request)


@attack(*TOO_LARGE)
async def many_keys_of_get_config(one: Attacker) -> str:
    """300,000 configuration keys in one request."""
    return await one.outcome(paths.GET_CONFIG, sub(1, b"brokerName") * 300_000)


@attack(*TOO_LARGE, "OK")
async def unknown_fields_of_a_heartbeat(one: Attacker) -> str:
    """200,000 fields that the message does not have."""
    request = (
        sub(1, sub(2, b"fresh")) + varint(2 << 3) + b"\x02" + sub(77, sub(2, b"topic")) * 200_000
    )
    return await one.outcome(paths.HEARTBEAT, request)


@attack(*TOO_LARGE, "ILLEGAL_LITE_TOPIC", "TOPIC_NOT_FOUND", "LITE_SUBSCRIPTION_QUOTA_EXCEEDED")
async def many_lite_subscriptions(one: Attacker) -> str:
    """300,000 lite topics in one request."""
    topics = b"".join([sub(4, b"lite-%d" % n) for n in range(300_000)])
    request = sub(2, sub(2, ATTACKED.encode())) + sub(3, sub(2, b"fresh")) + topics
    return await one.outcome(paths.SYNC_LITE_SUBSCRIPTION, request)


@attack(*TOO_LARGE, "ILLEGAL_TOPIC", "ILLEGAL_NAMESPACE", "OK", "bytes")
async def route_of_a_long_namespace(one: Attacker) -> str:
    """A namespace of 100 KB, which a route of 256 queues would repeat for each."""
    await one.outcome(paths.CREATE_TOPIC, v1.CreateTopicRequest(name="wide", queues=256))
    topic = v2.Resource(resource_namespace="n" * 100_000, name="wide")
    nameserver = connect(f"127.0.0.1:{one.target.node.ports['namesrv']}")
    answers, size = [], 0
    async with nameserver:
        for wire in (one.wire, nameserver):
            answer, found = await one.call(
                paths.QUERY_ROUTE, v2.QueryRouteRequest(topic=topic), wire=wire
            )
            answers.append(answer)
            size = max([size, *(one.ByteSize() for one in found)])
    return f"{summary(answers)}" + (f" bytes:{size}" if size > MIB else "")


async def _zipped(one: Attacker, count: int) -> None:
    """Send messages whose bodies of 60 KB grow to 60 MB."""
    body = gzip.compress(bytes(60 * MIB))
    messages = []
    for number in range(count):
        message = plain("zipped", body, f"Z{number}")
        message.system_properties.body_encoding = v2.GZIP
        messages.append(message)
    await one.outcome(paths.CREATE_TOPIC, v1.CreateTopicRequest(name="zipped", queues=1))
    await one.outcome(paths.SEND_MESSAGE, v2.SendMessageRequest(messages=messages))


@attack("OK", "MESSAGE_NOT_FOUND", *TOO_LARGE)
async def pull_of_inflating_bodies(one: Attacker) -> str:
    """A pull of bodies of 60 KB that grow to 60 MB each."""
    await _zipped(one, 4)
    request = v2.PullMessageRequest(
        group=v2.Resource(name="fresh"),
        message_queue=v2.MessageQueue(topic=v2.Resource(name="zipped"), id=0),
        batch_size=32,
        filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
    )
    request.long_polling_timeout.nanos = 1_000_000
    answer, found = await one.call(paths.PULL_MESSAGE, request)
    return _bounded(answer, found)


@attack("OK", "MESSAGE_NOT_FOUND", *TOO_LARGE)
async def receive_of_inflating_bodies(one: Attacker) -> str:
    """A receive of bodies of 60 KB that grow to 60 MB each."""
    await _zipped(one, 4)
    request = receive_request("zipped", "fresh", await_s=0.1)
    answer, found = await one.call(paths.RECEIVE_MESSAGE, request)
    return _bounded(answer, found)


def _bounded(answer: str, found: list[Any]) -> str:
    size = sum(one.ByteSize() for one in found)
    return f"{answer} bytes:{size}" if size > 64 * MIB else answer


@attack("OK", "MESSAGE_BODY_TOO_LARGE", "MESSAGE_CORRUPTED", "BAD_REQUEST")
async def bodies_that_are_not_compressed(one: Attacker) -> str:
    """Bodies marked as gzip that are cut, damaged, or something else."""
    whole = zlib.compress(b"x" * 10_000)
    messages = []
    for body in (
        b"x",
        whole[:-5],
        whole + b"tail",
        b"\x28\xb5\x2f\xfd" * 9,
        b"\x04\x22\x4d\x18" * 9,
    ):
        message = plain(body=body)
        message.system_properties.body_encoding = v2.GZIP
        messages.append(message)
    answers = [
        await one.outcome(paths.SEND_MESSAGE, v2.SendMessageRequest(messages=[message]))
        for message in messages
    ]
    request = receive_request(ATTACKED, "fresh", await_s=0.1)
    answers.append(await one.outcome(paths.RECEIVE_MESSAGE, request, within_s=1.0))
    return summary(answers)


# -- telemetry -------------------------------------------------------------------------------------


async def telemetry(one: Attacker, wire: Wire, *commands: bytes) -> str:
    """Open a telemetry stream, send commands, and return the last answer."""
    call = wire.channel.stream_stream(
        paths.TELEMETRY, response_deserializer=v2.TelemetryCommand.FromString
    )(metadata=wire.metadata, timeout=20)
    answer = "no answer"
    try:
        for command in commands:
            await call.write(command)
        await call.done_writing()
        async for found in call:
            answer = v2.Code.Name(found.status.code)
    except Exception as error:
        code = getattr(error, "code", None)
        answer = code().name if code else type(error).__name__
    return answer


def _subscription(topic: bytes, kind: int, expression: bytes) -> bytes:
    """Encode one entry of a subscription."""
    chosen = varint(1 << 3) + varint(kind) + sub(2, expression)
    return sub(2, sub(1, sub(2, topic)) + sub(2, chosen))


def _subscribe(entries: bytes) -> bytes:
    """Encode a settings command of a push consumer."""
    return sub(2, varint(1 << 3) + b"\x02" + sub(6, sub(1, sub(2, b"fresh")) + entries))


@attack(*TOO_LARGE, "OK")
async def sql_subscriptions_of_one_client(one: Attacker) -> str:
    """Settings with 20 SQL expressions of 8 KB."""
    entries = b"".join(
        _subscription(b"t%d" % n, v2.SQL, b" OR ".join([b"a%d = %d" % (n, n)] * 800))
        for n in range(20)
    )
    return await telemetry(one, one.wire, _subscribe(entries))


@attack(*TOO_LARGE)
async def settings_of_120_mib(one: Attacker) -> str:
    """Settings with a large name in each of 120 subscriptions."""
    entry = _subscription(b"t" * MIB, v2.TAG, b"*")
    return await telemetry(one, one.wire, _subscribe(entry * 120))


@attack(*TOO_LARGE)
async def many_publishing_topics(one: Attacker) -> str:
    """Settings of a producer for 300,000 topics."""
    topics = b"".join([sub(1, sub(2, b"topic-%d" % n)) for n in range(300_000)])
    return await telemetry(one, one.wire, sub(2, varint(1 << 3) + b"\x01" + sub(5, topics)))


# INTERNAL is the status that the attacker's library sets itself when a write fails because the
# server has ended the stream.
@attack("OK", "TOO_MANY_REQUESTS", "RESOURCE_EXHAUSTED", "BAD_REQUEST", "INTERNAL")
async def telemetry_flood(one: Attacker) -> str:
    """1,000 settings commands on each of 10 streams of one client."""
    command = _subscribe(_subscription(ATTACKED.encode(), v2.TAG, b"*"))
    flood = [telemetry(one, one.wire, *[command] * 1_000) for _ in range(10)]
    return summary(await asyncio.gather(*flood))


@attack("OK", "RESOURCE_EXHAUSTED", "bytes")
async def client_chosen_labels(one: Attacker) -> str:
    """2,000 client versions, languages and ids do not grow the metrics page."""
    before = len(one.target.get("/metrics"))
    request = v2.HeartbeatRequest(
        group=v2.Resource(name="fresh"), client_type=v2.PUSH_CONSUMER
    ).SerializeToString()

    async def beat(number: int) -> str:
        metadata = (
            ("x-mq-client-id", f"labels@{number}"),
            ("x-mq-language", f"LANGUAGE{number}"),
            ("x-mq-client-version", f"{number}" * 40),
        )
        wire = Wire.__new__(Wire)
        wire.channel, wire.metadata = one.wire.channel, metadata
        stream = await telemetry(one, wire, _subscribe(b""))
        return await one.outcome(paths.HEARTBEAT, request, wire=wire) if stream else stream

    answers: list[str] = []
    for first in range(0, 2_000, 250):
        answers += await asyncio.gather(*(beat(number) for number in range(first, first + 250)))
    grown = len(one.target.get("/metrics")) - before
    return summary(answers) + (f" bytes:{grown}" if grown > MIB else "")


@attack("OK", "MESSAGE_NOT_FOUND", "TOO_MANY_REQUESTS", "RESOURCE_EXHAUSTED", "CANCELLED")
async def long_poll_flood(one: Attacker) -> str:
    """2,000 long polls of 20 connections that are given up at once."""
    request = receive_request("delays", "fresh", await_s=20.0).SerializeToString()
    async with AsyncExitStack() as stack:
        wires = [
            await stack.enter_async_context(connect(one.target.address, f"polls@{n}"))
            for n in range(20)
        ]
        calls = [
            asyncio.ensure_future(one.outcome(paths.RECEIVE_MESSAGE, request, wire=wires[n % 20]))
            for n in range(2_000)
        ]
        await asyncio.wait(calls, timeout=1.0)
        for call in calls:
            call.cancel()
        done = await asyncio.gather(*calls, return_exceptions=True)
    return summary(word if isinstance(word, str) else "CANCELLED" for word in done)


@attack(*TOO_LARGE, "UNAUTHENTICATED", "PERMISSION_DENIED")
async def large_registration_at_the_nameserver(one: Attacker) -> str:
    """Registrations of 60 and 30 MB and with a million fields, without the cluster's token."""
    answers = []
    large = [sub(1, b"r" * (size * MIB)) for size in (60, 30)]
    async with connect(f"127.0.0.1:{one.target.node.ports['namesrv']}") as wire:
        for request in (*large, sub(2, sub(1, b"t")) * 1_000_000):
            answers.append(await one.outcome(paths.REGISTER, request, wire=wire))
    return summary(answers)
