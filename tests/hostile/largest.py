"""Attacks by requests at the limits: the largest that are served, and large ones that are not."""

from __future__ import annotations

from typing import Any

from cometmq.proto import paths, v1, v2
from cometmq.proto.request_limits import (
    ACKS_MAX,
    ELEMENTS_MAX,
    LITE_TOPICS_MAX,
    MESSAGES_MAX,
)
from cometmq.tests.harness.wire import receive_request
from cometmq.tests.hostile.attacker import ATTACKED, Attacker, attack, plain, send, summary
from cometmq.tests.hostile.sizes import TOO_LARGE

MIB = 1 << 20


@attack(*TOO_LARGE)
async def body_of_60_mib(one: Attacker) -> str:
    """A message of 60 MiB."""
    return await send(one, plain(body=bytes(60 * MIB)))


@attack(*TOO_LARGE)
async def body_of_129_mib(one: Attacker) -> str:
    """A message of 129 MiB."""
    return await send(one, plain(body=bytes(129 * MIB)))


@attack("OK")
async def as_many_messages_as_allowed(one: Attacker) -> str:
    """1,000 messages in one request, as official clients make them."""
    some = [plain(body=b"b" * 100, message_id=f"01{number:030d}") for number in range(MESSAGES_MAX)]
    return await send(one, *some)


@attack("OK", *TOO_LARGE)
async def as_many_properties_as_allowed(one: Attacker) -> str:
    """150 messages with 128 properties each in one request."""
    some = [plain(message_id=f"P{number}") for number in range(150)]
    for message in some:
        for number in range(128):
            message.user_properties[f"k{number}"] = "v"
    return await send(one, *some)


@attack("OK", *TOO_LARGE)
async def as_many_keys_as_allowed(one: Attacker) -> str:
    """A message with 8,000 keys."""
    message = plain()
    message.system_properties.keys.extend(["k"] * 8_000)
    return await send(one, message)


@attack("OK")
async def as_many_acks_as_allowed(one: Attacker) -> str:
    """1,024 received messages acknowledged in one request."""
    await one.outcome(paths.CREATE_TOPIC, v1.CreateTopicRequest(name="acked", queues=8))
    answers = []
    for begin in range(0, ACKS_MAX, MESSAGES_MAX):
        ids = range(begin, min(begin + MESSAGES_MAX, ACKS_MAX))
        answers.append(await send(one, *(plain("acked", message_id=f"A{n}") for n in ids)))
    entries: list[Any] = []
    while len(entries) < ACKS_MAX:
        receive = receive_request("acked", "acking", batch=32, await_s=1.0)
        _, got = await one.call(paths.RECEIVE_MESSAGE, receive)
        found = [part.message.system_properties for part in got if part.HasField("message")]
        if not found:
            return "MESSAGE_NOT_FOUND"
        entries += [
            v2.AckMessageEntry(message_id=each.message_id, receipt_handle=each.receipt_handle)
            for each in found
        ]
    ack = v2.AckMessageRequest(
        group=v2.Resource(name="acking"),
        topic=v2.Resource(name="acked"),
        entries=entries[:ACKS_MAX],
    )
    return summary([*answers, await one.outcome(paths.ACK_MESSAGE, ack)])


@attack("OK", "INVALID_RECEIPT_HANDLE")
async def as_many_stale_acks_as_allowed(one: Attacker) -> str:
    """1,024 receipt handles of one message that was acknowledged before."""
    await send(one, plain())
    receive = receive_request(ATTACKED, "staling", batch=1)
    _, got = await one.call(paths.RECEIVE_MESSAGE, receive)
    found = next(part.message.system_properties for part in got if part.HasField("message"))
    entry = v2.AckMessageEntry(message_id="m", receipt_handle=found.receipt_handle)
    ack = v2.AckMessageRequest(
        group=v2.Resource(name="staling"), topic=v2.Resource(name=ATTACKED), entries=[entry]
    )
    await one.outcome(paths.ACK_MESSAGE, ack)
    fields = found.receipt_handle.split(" ")
    fields[1] = str(int(fields[1]) - 1)
    entry.receipt_handle = " ".join(fields)
    del ack.entries[:]
    ack.entries.extend([entry] * ACKS_MAX)
    return await one.outcome(paths.ACK_MESSAGE, ack)


@attack(*TOO_LARGE, "ILLEGAL_LITE_TOPIC", "TOPIC_NOT_FOUND", "LITE_SUBSCRIPTION_QUOTA_EXCEEDED")
async def as_many_lite_topics_as_allowed(one: Attacker) -> str:
    """10,000 lite topics in one request."""
    request = v2.SyncLiteSubscriptionRequest(
        topic=v2.Resource(name=ATTACKED),
        group=v2.Resource(name="fresh"),
        lite_topic_set=[f"lite-{number}" for number in range(LITE_TOPICS_MAX)],
    )
    return await one.outcome(paths.SYNC_LITE_SUBSCRIPTION, request)


@attack("NOT_FOUND")
async def as_many_keys_of_get_config_as_allowed(one: Attacker) -> str:
    """4,096 configuration keys in one request."""
    request = v1.GetConfigRequest(keys=[f"key{number}" for number in range(ELEMENTS_MAX)])
    return await one.outcome(paths.GET_CONFIG, request)
