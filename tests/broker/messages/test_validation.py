"""Every check of a sent message, its code, and the precedence of failures
(docs/formats/grpc-api.md, sections 4.1-4.4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.messages.filters import TagFilter, parse_filter
from cometmq.broker.messages.validation import (
    MAX_DELAY_MS,
    MIXED,
    check_group,
    check_invisible,
    check_message,
    check_message_type,
    check_messages,
    check_topic,
    duration_ms,
)
from cometmq.proto import v2
from cometmq.proto.errors import WireError
from cometmq.store.format.property_names import RESERVED_PROPERTIES
from cometmq.tests.broker.desk import message

NOW_MS = 1_800_000_000_000
MAX_BODY = 4 << 20


def code_of(call: Callable[[], Any]) -> int:
    """Return the code of the WireError that the call raises; 0 if none."""
    try:
        call()
    except WireError as error:
        assert error.message
        return error.code
    return 0


def checked(one: v2.Message) -> int:
    """Return the code of one message."""
    return code_of(lambda: check_message(one, NOW_MS, MAX_BODY))


def timestamp(ms: int) -> v2.Timestamp:
    """Return a timestamp."""
    return v2.Timestamp(seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


TOPICS = [
    ("t", 0),
    ("%RETRY%g_t|-A0", 0),
    ("a" * 127, 0),
    ("a" * 128, v2.ILLEGAL_TOPIC),
    ("", v2.ILLEGAL_TOPIC),
    ("  ", v2.ILLEGAL_TOPIC),
    ("a.b", v2.ILLEGAL_TOPIC),
    ("a b", v2.ILLEGAL_TOPIC),
    ("a\n", v2.ILLEGAL_TOPIC),
    ("ä", v2.ILLEGAL_TOPIC),
    ("TBW102", v2.ILLEGAL_TOPIC),
    ("SCHEDULE_TOPIC_XXXX", v2.ILLEGAL_TOPIC),
    ("rmq_sys_COMETMQ_META", v2.ILLEGAL_TOPIC),
]


@pytest.mark.parametrize(("name", "code"), TOPICS)
def test_topic_names_are_validated(name: str, code: int) -> None:
    assert code_of(lambda: check_topic(name)) == code


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("g", 0),
        ("g" * 120, 0),
        ("g" * 121, v2.ILLEGAL_CONSUMER_GROUP),
        ("", v2.ILLEGAL_CONSUMER_GROUP),
        ("a+b", v2.ILLEGAL_CONSUMER_GROUP),
        ("CID_RMQ_SYS_TRANS", v2.ILLEGAL_CONSUMER_GROUP),
        ("CID_RMQ_SYS_anything", v2.ILLEGAL_CONSUMER_GROUP),
        ("TOOLS_CONSUMER", v2.ILLEGAL_CONSUMER_GROUP),
    ],
)
def test_group_names_are_validated(name: str, code: int) -> None:
    assert code_of(lambda: check_group(name)) == code


MESSAGES: list[tuple[dict[str, Any], int]] = [
    ({}, 0),
    ({"body": b""}, v2.MESSAGE_BODY_EMPTY),
    ({"body": bytes(MAX_BODY)}, 0),
    ({"body": bytes(MAX_BODY + 1)}, v2.MESSAGE_BODY_TOO_LARGE),
    ({"properties": {f"k{n}": "v" for n in range(128)}}, 0),
    ({"properties": {f"k{n}": "v" for n in range(129)}}, v2.MESSAGE_PROPERTIES_TOO_LARGE),
    ({"properties": {"a\x01": "v"}}, v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ({"properties": {"a": "\x02"}}, v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ({"properties": {"a": "\x7f"}}, v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ({"properties": {"a": "\x9f"}}, v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ({"properties": {"a": "\xa0 b"}}, 0),
    ({"properties": {"": "v"}}, v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ({"properties": {"__SHARDINGKEY": "v", "__transactionId__": "v"}}, 0),
    ({"properties": {"ORIGIN_GROUP": "v"}}, v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ({"tag": "t"}, 0),
    ({"tag": "größe"}, 0),
    ({"tag": ""}, 0),
    ({"tag": " "}, v2.ILLEGAL_MESSAGE_TAG),
    ({"tag": "a|b"}, v2.ILLEGAL_MESSAGE_TAG),
    ({"tag": "a\tb"}, v2.ILLEGAL_MESSAGE_TAG),
    ({"tag": "a b"}, 0),
    ({"tag": "a" * 16_384}, 0),
    ({"tag": "a" * 16_385}, v2.MESSAGE_PROPERTIES_TOO_LARGE),
    ({"keys": ["a", "b c"]}, v2.ILLEGAL_MESSAGE_KEY),
    ({"keys": [""]}, v2.ILLEGAL_MESSAGE_KEY),
    ({"keys": ["a", " "]}, v2.ILLEGAL_MESSAGE_KEY),
    ({"keys": ["a", ""]}, v2.ILLEGAL_MESSAGE_KEY),
    ({"keys": ["a\u0080"]}, v2.ILLEGAL_MESSAGE_KEY),
    ({"properties": {"a": "v" * 16_000}, "keys": ["k" * 400]}, v2.MESSAGE_PROPERTIES_TOO_LARGE),
    ({"properties": {"a": "ü" * 8_191}}, 0),
    ({"properties": {"a": "ü" * 8_192}}, v2.MESSAGE_PROPERTIES_TOO_LARGE),
    ({"message_id": ""}, v2.ILLEGAL_MESSAGE_ID),
    ({"message_id": "  "}, v2.ILLEGAL_MESSAGE_ID),
    ({"message_id": "a\x02b"}, v2.ILLEGAL_MESSAGE_ID),
    ({"message_group": "g"}, 0),
    ({"message_group": "g" * 63}, 0),
    ({"message_group": "g" * 64}, v2.ILLEGAL_MESSAGE_GROUP),
    ({"message_group": "ü" * 32}, v2.ILLEGAL_MESSAGE_GROUP),
    ({"message_group": "  "}, v2.ILLEGAL_MESSAGE_GROUP),
    ({"message_group": "a\x00"}, v2.ILLEGAL_MESSAGE_GROUP),
    ({"delivery_timestamp": timestamp(NOW_MS - 5)}, 0),
    ({"delivery_timestamp": timestamp(NOW_MS + MAX_DELAY_MS)}, 0),
    ({"delivery_timestamp": timestamp(NOW_MS + MAX_DELAY_MS + 1)}, v2.ILLEGAL_DELIVERY_TIME),
    ({"priority": 0}, 0),
    ({"priority": -1}, v2.BAD_REQUEST),
    ({"lite_topic": "a-b_1"}, 0),
    ({"lite_topic": "a%"}, v2.ILLEGAL_LITE_TOPIC),
    ({"lite_topic": "a" * 65}, v2.ILLEGAL_LITE_TOPIC),
    ({"trace_context": "a\x01b"}, v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (
        {
            "message_type": v2.TRANSACTION,
            "orphaned_transaction_recovery_duration": v2.Duration(seconds=3_600),
        },
        0,
    ),
    (
        {
            "message_type": v2.TRANSACTION,
            "orphaned_transaction_recovery_duration": v2.Duration(seconds=3_600, nanos=1),
        },
        v2.BAD_REQUEST,
    ),
]


@pytest.mark.parametrize(("fields", "code"), MESSAGES)
def test_message_fields_are_validated(fields: dict[str, Any], code: int) -> None:
    assert checked(message("t", **fields)) == code


@pytest.mark.parametrize("name", sorted(RESERVED_PROPERTIES))
def test_reserved_properties_are_refused(name: str) -> None:
    code = checked(message("t", properties={name: "v"}))
    assert code == v2.ILLEGAL_MESSAGE_PROPERTY_KEY


def test_the_first_failure_wins() -> None:
    """Each line fixes the first failure; the next one in the protocol's order appears."""
    faults: list[tuple[str, Any, int]] = [
        ("body", b"", v2.MESSAGE_BODY_EMPTY),
        ("properties", {"KEYS": "v"}, v2.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ("tag", "|", v2.ILLEGAL_MESSAGE_TAG),
        ("keys", ["x" * 20_000, ""], v2.ILLEGAL_MESSAGE_KEY),
        ("keys", ["x" * 20_000], v2.MESSAGE_PROPERTIES_TOO_LARGE),
        ("message_id", " ", v2.ILLEGAL_MESSAGE_ID),
        ("delivery_timestamp", timestamp(NOW_MS * 2), v2.ILLEGAL_DELIVERY_TIME),
        ("priority", -1, v2.BAD_REQUEST),
        ("message_group", " ", v2.ILLEGAL_MESSAGE_GROUP),
        ("lite_topic", "%", v2.ILLEGAL_LITE_TOPIC),
    ]
    for at, (_, _, code) in enumerate(faults):
        fields: dict[str, Any] = {}
        for name, value, _ in faults[at:]:
            fields.setdefault(name, value)
        assert checked(message("t", **fields)) == code, faults[at]


def test_requests_with_several_messages_are_validated() -> None:
    assert code_of(lambda: check_messages([], NOW_MS, MAX_BODY)) == v2.MESSAGE_CORRUPTED
    mixed = [message("t", b""), message("other")]
    assert code_of(lambda: check_messages(mixed, NOW_MS, MAX_BODY)) == v2.MESSAGE_CORRUPTED
    system = [message("TBW102"), message("other")]
    assert code_of(lambda: check_messages(system, NOW_MS, MAX_BODY)) == v2.ILLEGAL_TOPIC
    drafts = check_messages([message("t"), message("t", b"b")], NOW_MS, MAX_BODY)
    assert [draft.body for draft in drafts] == [b"body", b"b"]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, v2.NORMAL),
        ({"message_type": v2.FIFO}, v2.NORMAL),
        ({"message_group": "g"}, v2.FIFO),
        ({"delivery_timestamp": timestamp(1), "message_group": "g"}, v2.DELAY),
        ({"message_type": v2.TRANSACTION, "message_group": "g"}, v2.TRANSACTION),
        ({"priority": 1}, v2.PRIORITY),
        ({"lite_topic": "l"}, v2.LITE),
    ],
)
def test_the_type_is_derived_from_the_properties(fields: dict[str, Any], kind: int) -> None:
    draft = check_message(message("t", **fields), NOW_MS, MAX_BODY)
    assert draft.message_type == kind
    assert code_of(lambda: check_message_type([draft], MIXED)) == 0
    assert code_of(lambda: check_message_type([draft], kind)) == 0
    other = v2.FIFO if kind == v2.NORMAL else v2.NORMAL
    assert code_of(lambda: check_message_type([draft], other)) == (
        v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    )


TEXT = st.text(max_size=6)


@given(TEXT, st.lists(TEXT, max_size=2), TEXT, TEXT)
def test_the_fast_check_agrees_with_the_exact_checks(
    tag: str, keys: list[str], group: str, message_id: str
) -> None:
    """One user property forces the exact checks; the result must not depend on it."""
    fields: dict[str, Any] = {
        "tag": tag,
        "keys": keys,
        "message_group": group,
        "message_id": message_id,
    }
    quick = checked(message("t", **fields))
    exact = checked(message("t", properties={"a": "b"}, **fields))
    assert quick == exact


def test_durations_are_converted_to_milliseconds() -> None:
    assert duration_ms(v2.Duration(seconds=1, nanos=1_999_999)) == 1_001
    assert code_of(lambda: check_invisible(0, 0)) == 0
    assert code_of(lambda: check_invisible(-1, 0)) == v2.ILLEGAL_INVISIBLE_TIME
    assert code_of(lambda: check_invisible(43_200_000, 10_000)) == 0
    assert code_of(lambda: check_invisible(43_200_001, 0)) == v2.ILLEGAL_INVISIBLE_TIME


@pytest.mark.parametrize(
    ("text", "tags"),
    [("*", None), ("", None), (" * ", None), ("a", {b"a"}), (" a || || b", {b"a", b"b"})],
)
def test_tag_expressions_are_parsed(text: str, tags: set[bytes] | None) -> None:
    for kind in (v2.TAG, v2.FILTER_TYPE_UNSPECIFIED):
        parsed = parse_filter(v2.FilterExpression(type=kind, expression=text))
        assert parsed is None or isinstance(parsed, TagFilter)
        assert (None if parsed is None else parsed.tags) == tags
