"""Attacks by values: extreme numbers, forged handles and ids, hostile names."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from cometmq.proto import paths, v1, v2
from cometmq.tests.harness.wire import receive_request
from cometmq.tests.hostile.attacker import ATTACKED, Attacker, attack, plain, send, summary

#: A long poll ends before its call's deadline.
POLL_S = 1.0
LOW, HIGH = -(1 << 63), (1 << 63) - 1
EXTREMES = (LOW, LOW + 1, -100_000, -1, 0, 1 << 31, 1 << 32, HIGH - 1, HIGH)
NAMES = (
    "../../etc/passwd",
    "..",
    ".",
    "/",
    "a/b",
    "a\\b",
    "a\x00b",
    "%2e%2e",
    "\u202e",
    "x" * 5000,
)
#: No answer may be INTERNAL or an internal error; these are the refusals of the protocol.
REFUSALS = (
    *("OK", "BAD_REQUEST", "ILLEGAL_TOPIC", "ILLEGAL_CONSUMER_GROUP", "ILLEGAL_MESSAGE_ID"),
    *("ILLEGAL_DELIVERY_TIME", "ILLEGAL_INVISIBLE_TIME", "ILLEGAL_POLLING_TIME", "ILLEGAL_OFFSET"),
    *("INVALID_RECEIPT_HANDLE", "INVALID_TRANSACTION_ID", "TOPIC_NOT_FOUND", "MESSAGE_NOT_FOUND"),
    *("ILLEGAL_LITE_TOPIC", "CONSUMER_GROUP_NOT_FOUND", "ILLEGAL_MESSAGE_GROUP", "NOT_FOUND"),
    *("ILLEGAL_MESSAGE_PROPERTY_KEY", "ILLEGAL_MESSAGE_TAG", "ILLEGAL_MESSAGE_KEY", "FORBIDDEN"),
    *("MESSAGE_PROPERTY_CONFLICT_WITH_TYPE", "OFFSET_NOT_FOUND", "MULTIPLE_RESULTS"),
    *("MESSAGE_PROPERTIES_TOO_LARGE", "ILLEGAL_FILTER_EXPRESSION", "UNSUPPORTED", "UNIMPLEMENTED"),
    *("INVALID_ARGUMENT", "UNRECOGNIZED_CLIENT_TYPE", "TOO_MANY_REQUESTS", "RESOURCE_EXHAUSTED"),
    *("DEADLINE_EXCEEDED", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNAUTHORIZED"),
    *("PAYLOAD_TOO_LARGE", "MESSAGE_BODY_EMPTY", "FAILED_PRECONDITION", "PRECONDITION_FAILED"),
)


@attack("OK")
async def negative_born_time(one: Attacker) -> str:
    """A message born before 1970 is readable, and the messages behind it."""
    message = plain(body=b"poison")
    message.system_properties.born_timestamp.seconds = -100_000
    answers = [await send(one, message), await send(one, plain(body=b"behind"))]
    for queue_id in range(4):
        pull = v2.PullMessageRequest(
            group=v2.Resource(name="fresh"),
            message_queue=v2.MessageQueue(topic=v2.Resource(name=ATTACKED), id=queue_id),
            batch_size=32,
            filter_expression=v2.FilterExpression(type=v2.TAG, expression="*"),
        )
        pull.long_polling_timeout.nanos = 1_000_000
        answer = await one.outcome(paths.PULL_MESSAGE, pull, within_s=POLL_S)
        answers.append("OK" if answer == "MESSAGE_NOT_FOUND" else answer)
    answer = await one.outcome(
        paths.RECEIVE_MESSAGE, receive_request(ATTACKED, "fresh"), within_s=POLL_S
    )
    return summary([*answers, answer])


@attack(*REFUSALS)
async def extreme_times_of_a_message(one: Attacker) -> str:
    """64-bit times of a sent message."""
    requests = []
    for value in EXTREMES:
        for name in ("born_timestamp", "delivery_timestamp", "store_timestamp"):
            message = plain("delays")
            getattr(message.system_properties, name).seconds = value
            requests.append(v2.SendMessageRequest(messages=[message]))
            getattr(message.system_properties, name).nanos = -(1 << 31)
            requests.append(v2.SendMessageRequest(messages=[message]))
    return await one.outcomes(paths.SEND_MESSAGE, requests)


@attack(*REFUSALS)
async def extreme_offsets_and_durations(one: Attacker) -> str:
    """64-bit offsets, times and durations of every other request."""
    queue = v2.MessageQueue(topic=v2.Resource(name=ATTACKED), id=0)
    group = v2.Resource(name="fresh")
    requests: list[tuple[str, Any]] = []
    for value in EXTREMES:
        duration, time = v2.Duration(seconds=value), v2.Timestamp(seconds=value)
        update = v2.UpdateOffsetRequest(group=group, message_queue=queue, offset=value)
        ask = v2.QueryOffsetRequest(
            message_queue=queue, query_offset_policy=v2.TIMESTAMP, timestamp=time
        )
        pull = v2.PullMessageRequest(group=group, message_queue=queue, offset=value, batch_size=1)
        receive = receive_request(ATTACKED, "fresh", batch=1, await_s=0.1)
        receive.invisible_duration.CopyFrom(duration)
        polling = receive_request(ATTACKED, "fresh", batch=1)
        polling.long_polling_timeout.CopyFrom(duration)
        number = receive_request(ATTACKED, "fresh", batch=max(-(1 << 31), min(value, 1 << 30)))
        number.message_queue.id = max(-(1 << 31), min(value, (1 << 31) - 1))
        requests += (
            (paths.UPDATE_OFFSET, update),
            (paths.QUERY_OFFSET, ask),
            (paths.PULL_MESSAGE, pull),
            (paths.RECEIVE_MESSAGE, receive),
            (paths.RECEIVE_MESSAGE, polling),
            (paths.RECEIVE_MESSAGE, number),
        )
    calls = (one.outcome(path, request, within_s=POLL_S) for path, request in requests)
    return summary(await asyncio.gather(*calls))


@attack("INVALID_RECEIPT_HANDLE", "ILLEGAL_CONSUMER_GROUP", "groups")
async def acks_with_garbage_handles(one: Attacker) -> str:
    """300 acknowledgements for 300 unknown groups create no group."""
    before = await _groups(one)
    requests = [
        v2.AckMessageRequest(
            group=v2.Resource(name=f"garbage-{n}"),
            topic=v2.Resource(name=ATTACKED),
            entries=[v2.AckMessageEntry(message_id="m", receipt_handle=f"garbage {n}")],
        )
        for n in range(300)
    ]
    answer = await one.outcomes(paths.ACK_MESSAGE, requests)
    return f"{answer} groups:{await _groups(one) - before}"


async def _groups(one: Attacker) -> int:
    _, found = await one.call(paths.LIST_GROUPS, v1.ListGroupsRequest())
    return len(found[0].groups)


@attack(*REFUSALS)
async def forged_receipt_handles(one: Attacker) -> str:
    """Receipt handles with altered fields."""
    await send(one, plain())
    receive = receive_request(ATTACKED, "fresh", batch=1)
    _, got = await one.call(paths.RECEIVE_MESSAGE, receive, within_s=POLL_S)
    handles = [m.message.system_properties.receipt_handle for m in got if m.HasField("message")]
    fields = (handles or ["0 0 0 0 0 broker-a 0 0 0"])[0].split(" ")
    forged = []
    for at in range(len(fields)):
        for value in (*map(str, EXTREMES), "", "x", "9" * 5_000, "\u0663", "-0", "1e9"):
            forged.append(" ".join([*fields[:at], value, *fields[at + 1 :]]))
    topic, group = v2.Resource(name=ATTACKED), v2.Resource(name="fresh")
    acks, changes = [], []
    for handle in forged:
        entry = v2.AckMessageEntry(message_id="m", receipt_handle=handle)
        acks.append(v2.AckMessageRequest(group=group, topic=topic, entries=[entry]))
        change = v2.ChangeInvisibleDurationRequest(
            group=group, topic=topic, receipt_handle=handle, message_id="m"
        )
        change.invisible_duration.seconds = 30
        changes.append(change)
    answers = await one.outcomes(paths.ACK_MESSAGE, acks)
    return f"{answers} {await one.outcomes(paths.CHANGE_INVISIBLE_DURATION, changes)}"


@attack(*REFUSALS)
async def forged_recall_handles_and_transaction_ids(one: Attacker) -> str:
    """Recall handles and transaction ids that the broker did not issue."""
    chance = random.Random(5)
    texts = ["", "djE", "djEgdCBiIDEgbQ==", "=" * 4_000, "é" * 100, "broker-a:-1:K", "a:9:b:c"]
    texts += [f"broker-a:{'9' * 4_000}:K", *(chance.randbytes(60).hex() for _ in range(100))]
    topic = v2.Resource(name=ATTACKED)
    recalls = [v2.RecallMessageRequest(topic=topic, recall_handle=text) for text in texts]
    ends = [
        v2.EndTransactionRequest(
            topic=topic, message_id=text[:200], transaction_id=text, resolution=resolution
        )
        for text in texts
        for resolution in map(v2.TransactionResolution.ValueType, (0, 1, 2, 99))
    ]
    answers = await one.outcomes(paths.RECALL_MESSAGE, recalls)
    return f"{answers} {await one.outcomes(paths.END_TRANSACTION, ends)}"


@attack(*REFUSALS, "outside")
async def path_traversal_in_names(one: Attacker) -> str:
    """Names that would leave the store's directory if they became paths."""
    before = _files_outside(one)
    answers = []
    for name in NAMES:
        message = plain(name)
        lite = plain()
        lite.system_properties.lite_topic = name.replace("\x00", "0")
        for path, request in (
            (paths.CREATE_TOPIC, v1.CreateTopicRequest(name=name, queues=1)),
            (paths.CREATE_GROUP, v1.CreateGroupRequest(name=name)),
            (paths.SEND_MESSAGE, v2.SendMessageRequest(messages=[message])),
            (paths.SEND_MESSAGE, v2.SendMessageRequest(messages=[lite])),
            (paths.QUERY_ROUTE, v2.QueryRouteRequest(topic=v2.Resource(name=name))),
            (paths.RECEIVE_MESSAGE, receive_request(name, name, await_s=0.1)),
            (paths.HEARTBEAT, _heartbeat(name)),
            (paths.DELETE_TOPIC, v1.DeleteTopicRequest(name=name)),
        ):
            answers.append(await one.outcome(path, request, within_s=POLL_S))
    return f"{summary(answers)} outside:{len(_files_outside(one) - before)}"


def _heartbeat(group: str) -> Any:
    return v2.HeartbeatRequest(group=v2.Resource(name=group), client_type=v2.PUSH_CONSUMER)


def _files_outside(one: Attacker) -> set[str]:
    """Return what is beside the data directory."""
    return {str(path) for path in one.target.data.parent.iterdir()}


@attack("ILLEGAL_FILTER_EXPRESSION")
async def sql_expressions(one: Attacker) -> str:
    """Integers of 5,000 digits, deep nesting, and thousands of operators."""
    texts = [
        f"a > {'9' * 5_000}",
        "(" * 4_000 + "a IS NULL" + ")" * 3_900,
        "NOT " * 2_000 + "a IS NULL",
        " OR ".join(["a = 1"] * 1_100),
        "a IN (" + ",".join(["'b'"] * 3_000) + ")",
        "a = '" + "''" * 4_000,
    ]
    requests = []
    for text in texts:
        request = receive_request(ATTACKED, "fresh", await_s=0.1)
        request.filter_expression.type, request.filter_expression.expression = v2.SQL, text
        requests.append(request)
    answers = [
        await one.outcome(paths.RECEIVE_MESSAGE, request, within_s=POLL_S) for request in requests
    ]
    # The expressions that are valid may find nothing.
    return summary(
        "ILLEGAL_FILTER_EXPRESSION" if word in ("OK", "MESSAGE_NOT_FOUND") else word
        for word in answers
    )


@attack("BAD_REQUEST", "FORBIDDEN", "UNAUTHORIZED")
async def empty_archive_watermark(one: Attacker) -> str:
    """A watermark request without a watermark sets none."""
    return await one.outcome(paths.SET_ARCHIVE_WATERMARK, v1.SetArchiveWatermarkRequest())


@attack(*REFUSALS)
async def forwarded_header(one: Attacker) -> str:
    """The header of forwarded requests, from a client that is no node of the cluster."""
    metadata = (("x-cometmq-forwarded", "broker-z"), ("x-cometmq-token", "forged"))
    requests: list[tuple[str, Any]] = [
        (paths.SEND_MESSAGE, v2.SendMessageRequest(messages=[plain()])),
        (paths.LIST_TOPICS, v1.ListTopicsRequest()),
        (paths.HEARTBEAT, _heartbeat("fresh")),
    ]
    return summary(
        [await one.outcome(path, request, metadata=metadata) for path, request in requests]
    )


@attack("NOT_FOUND", "MESSAGE_NOT_FOUND", "BAD_REQUEST", "ILLEGAL_OFFSET", "OK")
async def unknown_enum_numbers(one: Attacker) -> str:
    """Enum fields with numbers that the protocol does not have."""
    queue = v2.MessageQueue(topic=v2.Resource(name=ATTACKED), id=0)
    answers = []
    for number in (-1, 7, 99, (1 << 31) - 1, -(1 << 31)):
        message = plain()
        message.system_properties.message_type = v2.MessageType.ValueType(number)
        message.system_properties.body_encoding = v2.Encoding.ValueType(number)
        answers.append(await send(one, message))
        ask = v2.QueryOffsetRequest(
            message_queue=queue, query_offset_policy=v2.QueryOffsetPolicy.ValueType(number)
        )
        answers.append(await one.outcome(paths.QUERY_OFFSET, ask))
    return summary(
        "OK" if word == "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE" else word for word in answers
    )
