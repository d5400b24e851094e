"""Request limits: counted on the encoded bytes, before a request is decoded."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from cometmq.proto import v1, v2
from cometmq.proto.errors import WireError
from cometmq.proto.request_limits import (
    ACKS_MAX,
    ELEMENTS_MAX,
    FIELDS_MAX,
    KEYS_MAX,
    LITE_TOPICS_MAX,
    MESSAGES_MAX,
    REQUEST_BYTES_MAX,
    SEND_BYTES_MAX,
    SETTINGS_BYTES_MAX,
    USER_PROPERTIES_MAX,
    RequestLimits,
)


def code_of(request: Any, raw: bytes | None = None) -> int:
    """Return the code of the refusal; 0: the request is within its limits."""
    try:
        RequestLimits(type(request)).check(request.SerializeToString() if raw is None else raw)
    except WireError as error:
        return error.code
    return 0


def sent(count: int, **fields: Any) -> v2.SendMessageRequest:
    """Return a SendMessage with equal messages."""
    return v2.SendMessageRequest(messages=[v2.Message(**fields)] * count)


def settings(**fields: Any) -> v2.TelemetryCommand:
    return v2.TelemetryCommand(settings=v2.Settings(**fields))


def properties(count: int) -> dict[str, str]:
    return {f"key-{number}": "v" for number in range(count)}


def acks(count: int) -> v2.AckMessageRequest:
    return v2.AckMessageRequest(entries=[v2.AckMessageEntry(message_id="m")] * count)


TOPIC = v2.Resource(name="t")
ENTRY = v2.SubscriptionEntry(topic=TOPIC)
WITHIN = [
    sent(MESSAGES_MAX, body=b"x" * 40),
    sent(2, user_properties=properties(USER_PROPERTIES_MAX)),
    sent(1, system_properties=v2.SystemProperties(keys=["k"] * KEYS_MAX)),
    sent(1, body=bytes(7 << 20)),
    settings(publishing=v2.Publishing(topics=[TOPIC] * ELEMENTS_MAX)),
    settings(subscription=v2.Subscription(subscriptions=[ENTRY] * ELEMENTS_MAX)),
    v2.TelemetryCommand(thread_stack_trace=v2.ThreadStackTrace(thread_stack_trace="x" * (3 << 20))),
    acks(ACKS_MAX),
    v2.SyncLiteSubscriptionRequest(lite_topic_set=["l"] * LITE_TOPICS_MAX),
    v1.GetConfigRequest(keys=["k"] * ELEMENTS_MAX),
]
BEYOND = [
    (sent(MESSAGES_MAX + 1, body=b"x"), v2.PAYLOAD_TOO_LARGE),
    (sent(40, user_properties=properties(129)), v2.MESSAGE_PROPERTIES_TOO_LARGE),
    (
        sent(1, system_properties=v2.SystemProperties(keys=["k"] * (KEYS_MAX + 1))),
        v2.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    (sent(200, user_properties=properties(120)), v2.PAYLOAD_TOO_LARGE),
    (sent(1, body=bytes(SEND_BYTES_MAX)), v2.MESSAGE_BODY_TOO_LARGE),
    (
        settings(publishing=v2.Publishing(topics=[TOPIC] * (ELEMENTS_MAX + 1))),
        v2.PAYLOAD_TOO_LARGE,
    ),
    (
        settings(subscription=v2.Subscription(subscriptions=[ENTRY] * (ELEMENTS_MAX + 1))),
        v2.PAYLOAD_TOO_LARGE,
    ),
    (settings(user_agent=v2.UA(platform="x" * SETTINGS_BYTES_MAX)), v2.PAYLOAD_TOO_LARGE),
    (
        settings(access_point=v2.Endpoints(addresses=[v2.Address(host="h")] * 5_000)),
        v2.PAYLOAD_TOO_LARGE,
    ),
    (settings(client_properties=properties(5_000)), v2.PAYLOAD_TOO_LARGE),
    (acks(ACKS_MAX + 1), v2.BAD_REQUEST),
    (
        v2.SyncLiteSubscriptionRequest(lite_topic_set=["l"] * (LITE_TOPICS_MAX + 1)),
        v2.PAYLOAD_TOO_LARGE,
    ),
    (v1.GetConfigRequest(keys=["k"] * 300_000), v2.PAYLOAD_TOO_LARGE),
    (
        v1.LocateLogRequest(messages=[v1.QueueOffset(topic="t")] * (ELEMENTS_MAX + 1)),
        v2.PAYLOAD_TOO_LARGE,
    ),
    (v1.CreateTopicRequest(attributes=["+a=b"] * (ELEMENTS_MAX + 1)), v2.PAYLOAD_TOO_LARGE),
    (v1.CreateGroupRequest(retry=v1.GroupRetry(delays_ms=[1] * 50_000)), v2.PAYLOAD_TOO_LARGE),
    (
        v2.QueryRouteRequest(topic=v2.Resource(resource_namespace="n" * REQUEST_BYTES_MAX)),
        v2.PAYLOAD_TOO_LARGE,
    ),
]


@pytest.mark.parametrize("request_", WITHIN, ids=lambda r: type(r).__name__)
def test_requests_within_the_limits_pass(request_: Any) -> None:
    assert code_of(request_) == 0


@pytest.mark.parametrize(("request_", "code"), BEYOND, ids=lambda r: type(r).__name__)
def test_requests_beyond_a_limit_are_refused_with_the_code_of_their_field(
    request_: Any, code: int
) -> None:
    assert code_of(request_) == code


def test_fields_that_the_protocol_does_not_have_count() -> None:
    """Such fields cost memory too, and a follower forwards them."""
    topics = b"\x1a\x03\x12\x01t" * 200_000
    assert code_of(v2.HeartbeatRequest(), topics) == v2.PAYLOAD_TOO_LARGE
    numbers = b"\x98\x06\x01" * (FIELDS_MAX + 1)
    assert code_of(v2.AckMessageRequest(), numbers) == v2.PAYLOAD_TOO_LARGE
    groups = b"\x0b\x12\x01t\x0c" * FIELDS_MAX
    assert code_of(v2.AckMessageRequest(), groups) == v2.PAYLOAD_TOO_LARGE


def test_elements_in_a_group_count() -> None:
    """A group is an old form of a nested message, which decoders skip."""
    raw = b"\x9b\x06" + b"\x0a\x01k" * 5_000 + b"\x9c\x06"
    assert code_of(v1.GetConfigRequest(), raw) == v2.PAYLOAD_TOO_LARGE


@given(st.binary(max_size=300))
def test_any_bytes_are_checked_without_another_error(raw: bytes) -> None:
    for request in (v2.SendMessageRequest(), v2.TelemetryCommand(), v1.CreateGroupRequest()):
        assert code_of(request, raw) in (0, v2.PAYLOAD_TOO_LARGE)  # a size may be declared


@given(st.lists(st.integers(0, 3), max_size=60), st.binary(max_size=8), st.integers(0, 40))
def test_a_request_that_can_be_decoded_has_no_more_elements_than_counted(
    kinds: list[int], tail: bytes, cut: int
) -> None:
    """The check and the decoder read the same elements, also from damaged bytes."""
    parts = (b"\x0a\x02\x22\x00", b"\x0b\x0c", b"\xfa\x01\x00", b"\x0a\x84\x00\x1a\x02\x12\x00")
    raw = b"".join(parts[kind] for kind in kinds)[: 400 - cut] + tail
    try:
        count = len(v2.SendMessageRequest.FromString(raw).messages)
    except DecodeError:
        return
    more = b"\x0a\x00" * (MESSAGES_MAX + 1 - count)
    assert code_of(v2.SendMessageRequest(), raw + more) == v2.PAYLOAD_TOO_LARGE
