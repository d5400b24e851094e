"""Pure parts of the SDK: addresses, messages, routes, policies, identities, signatures."""

from __future__ import annotations

import gzip
import hashlib
import hmac
import zlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.clock import local_date_time
from cometmq.client.errors import NotFound, ServerFailed, TooManyRequests, refused
from cometmq.client.filters import Filter, sql, subscriptions
from cometmq.client.identity import MessageIds, client_id
from cometmq.client.message import read_message
from cometmq.client.outgoing import message_proto, outgoing
from cometmq.client.retry_policy import read_policy
from cometmq.client.routes import Isolation, next_queue, queue_of_group, read_route
from cometmq.client.transport.addresses import parse_endpoints, target_of
from cometmq.client.transport.credentials import Caller, Credentials
from cometmq.proto import v2

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("127.0.0.1:8081", "ipv4:127.0.0.1:8081"),
        ("10.0.0.1:1;10.0.0.2:2", "ipv4:10.0.0.1:1,10.0.0.2:2"),
        ("http://10.0.0.1:1, 10.0.0.2:2", "ipv4:10.0.0.1:1,10.0.0.2:2"),
        ("broker.example", "dns:///broker.example:8081"),
        ("[::1]:8081", "ipv6:[::1]:8081"),
        ("[::1]", "ipv6:[::1]:8081"),
    ],
)
def test_endpoints_are_parsed_in_every_notation(text: str, name: str) -> None:
    target = parse_endpoints(text)
    assert target.name() == name
    assert target_of(target.proto()) == target


@pytest.mark.parametrize("text", ["", ";", "host:port", "host:0", "host:99999"])
def test_invalid_endpoints_raise_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_endpoints(text)


def test_message_ids_are_unique_and_well_formed() -> None:
    ids = MessageIds()
    made = {ids.make() for _ in range(1_000)}
    assert len(made) == 1_000
    assert all(len(one) == 34 and one.startswith("01") and one == one.upper() for one in made)
    assert client_id() != client_id()


def test_the_signature_covers_the_date_header() -> None:
    caller = Caller("me", Credentials("ak", "sk", "st"), "ns", local_date_time)
    pairs = dict(caller.metadata())
    wanted = hmac.digest(b"sk", pairs["x-mq-date-time"].encode(), hashlib.sha1).hex().upper()
    assert pairs["authorization"].endswith(f"Signature={wanted}")
    assert "Credential=ak," in pairs["authorization"]
    assert pairs["x-mq-session-token"] == "st"
    assert pairs["x-mq-request-id"] != dict(caller.metadata())["x-mq-request-id"]
    assert "sk" not in repr(Credentials("ak", "sk"))


def test_without_credentials_nothing_is_signed() -> None:
    assert "authorization" not in dict(Caller("me", None, "", local_date_time).metadata())


@given(st.binary(min_size=1, max_size=200), st.sampled_from(("plain", "gzip", "zlib")))
def test_bodies_are_decompressed(body: bytes, how: str) -> None:
    packed = {"plain": body, "gzip": gzip.compress(body), "zlib": zlib.compress(body)}[how]
    sent = v2.Message(body=packed)
    system = sent.system_properties
    system.body_encoding = v2.IDENTITY if how == "plain" else v2.GZIP
    system.body_digest.type = v2.MD5
    system.body_digest.checksum = hashlib.md5(packed).hexdigest().upper()
    got = read_message(sent)
    assert (got.body, got.corrupted) == (body, False)


@pytest.mark.parametrize("fault", ["digest", "truncated", "no gzip"])
def test_a_damaged_body_is_marked_corrupted(fault: str) -> None:
    packed = gzip.compress(b"x" * 100)
    body = {"digest": packed, "truncated": packed[:-9], "no gzip": b"plain"}[fault]
    sent = v2.Message(body=body)
    sent.system_properties.body_encoding = v2.GZIP
    if fault == "digest":
        sent.system_properties.body_digest.type = v2.MD5
        sent.system_properties.body_digest.checksum = "00"
    got = read_message(sent)
    assert got.corrupted
    assert got.body == body


def test_a_message_has_all_given_fields() -> None:
    made = outgoing("t", b"b", "id", NOW_MS, tag="red", keys="k", properties={"a": "1"}, group="g")
    proto = message_proto(made)
    system = proto.system_properties
    assert (system.tag, list(system.keys), system.message_group) == ("red", ["k"], "g")
    assert system.message_type == v2.FIFO
    assert dict(proto.user_properties) == {"a": "1"}


@pytest.mark.parametrize("after", [90, 90.0, timedelta(seconds=90)])
def test_a_delay_is_converted_to_a_delivery_time(after: float | timedelta) -> None:
    made = outgoing("t", b"b", "id", NOW_MS, deliver_in=after)
    assert (
        message_proto(made).system_properties.delivery_timestamp.ToMilliseconds() == NOW_MS + 90_000
    )
    assert made.kind == v2.DELAY
    at = datetime.fromtimestamp(NOW_MS / 1000 + 90, UTC)
    again = outgoing("t", b"b", "id", NOW_MS, deliver_at=at)
    assert (
        message_proto(again).system_properties.delivery_timestamp.ToMilliseconds()
        == NOW_MS + 90_000
    )


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"body": b""}, "empty"),
        ({"tag": "a|b"}, "invalid tag"),
        ({"keys": ["a b"]}, "no white space"),
        ({"keys": ["k"] * 65}, "at most 64"),
        ({"group": "g", "deliver_in": 1}, "cannot be combined"),
        ({"group": "g", "lite_topic": "a"}, "cannot be combined"),
        ({"group": "g" * 64}, "limit is 63"),
        ({"priority": -1}, "use 0 to"),
        ({"priority": 1 << 31}, "use 0 to"),
        ({"deliver_in": -1}, "is negative"),
        ({"deliver_in": float("nan")}, "years 1 to 9999"),
        ({"deliver_in": 1e300}, "years 1 to 9999"),
        ({"topic": "\ud800"}, "the topic is not valid Unicode"),
        ({"namespace": "\ud800"}, "not valid Unicode"),
        ({"keys": "\ud800"}, "not valid Unicode"),
        ({"properties": {"a": "\ud800"}}, "property 'a' is not valid Unicode"),
        ({"deliver_at": datetime(2030, 1, 1)}, "time zone"),
        ({"properties": {str(i): "" for i in range(129)}}, "at most 128"),
    ],
)
def test_invalid_messages_raise_value_error(more: dict[str, object], sentence: str) -> None:
    fields = {"topic": "t", "body": b"b", "message_id": "id", **more}
    with pytest.raises(ValueError, match=sentence):
        outgoing(now_ms=NOW_MS, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("priority", [1.5, True, "3"])
def test_a_priority_that_is_no_integer_raises_type_error(priority: object) -> None:
    with pytest.raises(TypeError, match="priority must be int"):
        outgoing("t", b"b", "id", NOW_MS, priority=priority)  # type: ignore[arg-type]


def test_a_delay_is_rounded_to_milliseconds() -> None:
    made = outgoing("t", b"b", "id", NOW_MS, deliver_in=0.0019)
    assert made.header.delivery_ms == NOW_MS + 2


def test_none_stands_for_no_tag_and_no_group() -> None:
    made = outgoing("t", b"b", "id", NOW_MS, tag=None, group=None)  # type: ignore[arg-type]
    assert (made.header.tag, made.group) == ("", "")


def test_a_number_as_deliver_at_raises_type_error() -> None:
    with pytest.raises(TypeError, match="datetime"):
        outgoing("t", b"b", "id", NOW_MS, deliver_at=1.0)  # type: ignore[arg-type]


def test_a_str_body_raises_type_error() -> None:
    with pytest.raises(TypeError, match="encode"):
        outgoing("t", "text", "id", NOW_MS)  # type: ignore[arg-type]


def a_route(brokers: int = 2, queues: int = 2) -> list[v2.MessageQueue]:
    found = []
    for number in range(brokers):
        for queue_id in range(queues):
            queue = v2.MessageQueue(id=queue_id, permission=v2.READ_WRITE)
            queue.broker.name = f"b{number}"
            queue.broker.endpoints.addresses.add(host="127.0.0.1", port=8000 + number)
            found.append(queue)
    return found


def test_sends_go_round_robin_and_avoid_failed_endpoints() -> None:
    route, isolation = read_route("t", a_route()), Isolation()
    seen = [next_queue(route.writable, route, isolation, 0.0) for _ in range(4)]
    assert len(set(seen)) == 4
    isolation.fail(seen[0].target, 0.0)  # type: ignore[union-attr]
    others = {next_queue(route.writable, route, isolation, 1.0) for _ in range(8)}
    assert {queue.broker for queue in others if queue} == {"b1"}
    assert len({next_queue(route.writable, route, isolation, 99.0) for _ in range(8)}) == 4
    isolation.fail(route.writable[2].target, 0.0)
    assert next_queue(route.writable, route, isolation, 1.0) is not None, "better than nothing"


def test_replicas_and_closed_queues_are_not_used() -> None:
    sent = a_route(1, 3)
    sent[0].broker.id = 1
    sent[1].permission = v2.READ
    route = read_route("t", sent)
    assert [queue.queue_id for queue in route.writable] == [2]
    assert [queue.queue_id for queue in route.readable] == [1, 2]


@given(st.text(min_size=1, max_size=20), st.integers(1, 9))
def test_a_message_group_always_has_the_same_queue(group: str, queues: int) -> None:
    route = read_route("t", a_route(1, queues))
    assert queue_of_group(route.writable, group) == queue_of_group(route.writable, group)
    assert queue_of_group((), group) is None


def test_retry_policies_of_the_server_are_applied() -> None:
    assert read_policy(v2.RetryPolicy()).pause_s(1) == 1.0
    custom = v2.RetryPolicy(max_attempts=3)
    custom.customized_backoff.next.add(seconds=2)
    custom.customized_backoff.next.add(seconds=4)
    policy = read_policy(custom)
    assert [policy.pause_s(attempt) for attempt in (0, 1, 2, 9)] == [2.0, 2.0, 4.0, 4.0]
    assert policy.attempts_max == 3
    grows = v2.RetryPolicy(max_attempts=9)
    grows.exponential_backoff.initial.seconds = 5
    grows.exponential_backoff.max.seconds = 15
    grows.exponential_backoff.multiplier = 2
    assert [read_policy(grows).pause_s(attempt) for attempt in (1, 2, 3)] == [5.0, 10.0, 15.0]


def test_status_codes_map_to_exceptions() -> None:
    assert isinstance(refused(v2.TOPIC_NOT_FOUND, "x"), NotFound)
    assert isinstance(refused(v2.TOO_MANY_REQUESTS, "x"), TooManyRequests)
    assert isinstance(refused(v2.INTERNAL_SERVER_ERROR, "x"), ServerFailed)
    assert "TOPIC_NOT_FOUND (40402): x" in str(refused(v2.TOPIC_NOT_FOUND, "x"))


def test_subscriptions_are_accepted_in_every_form() -> None:
    assert subscriptions("a") == {"a": Filter("*")}
    assert subscriptions(["a", "b"]) == {"a": Filter("*"), "b": Filter("*")}
    mixed = subscriptions({"a": "x || y", "b": sql("p > 1")})
    assert mixed["a"].proto().type == v2.TAG
    assert mixed["b"].proto().type == v2.SQL
    with pytest.raises(ValueError, match="at least one topic"):
        subscriptions([])
