"""The official Python client, unmodified, and the SDK against a cluster of master and slave.

Producer, SimpleConsumer and PushConsumer of rocketmq-python-client and the SDK run the same tests,
each with a separate topic and group on a shared cluster (docs/formats/client-wire.md, section 2).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cometmq.proto.native import is_available
from cometmq.tests.harness.cluster import Cluster, wait_until
from cometmq.tests.harness.official import Official, OfficialError

Start = Callable[[str], Official]
WAIT_S = 60.0
NATIVE_DOOR = is_available()


@pytest.fixture
def names(shared_cluster: Cluster) -> tuple[str, str]:
    """A topic and a group that no other test uses."""
    mark = uuid.uuid4().hex[:8]
    return (
        shared_cluster.create_topic(f"topic-{mark}"),
        shared_cluster.create_group(f"group-{mark}"),
    )


@pytest.fixture(
    # The other modules use the SDK over plaintext.
    params=("official-plaintext", "official-tls", "sdk-tls")
    if NATIVE_DOOR
    else ("official-plaintext", "sdk-plaintext")
)
def client(
    request: pytest.FixtureRequest,
    shared_cluster: Cluster,
    certificates: Path,
    start_agent: Callable[[str, str], Official],
    monkeypatch: pytest.MonkeyPatch,
) -> Official:
    """Clients over plaintext with both addresses, and over TLS on the same port with one."""
    kind, _, transport = request.param.partition("-")
    start = partial(start_agent, kind)
    if transport == "plaintext":
        return start(shared_cluster.endpoints)
    with monkeypatch.context() as variables:  # later commands can be forked: see `fork_server.py`
        variables.setenv("OFFICIAL_TLS", "1")
        variables.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(certificates / "authority.pem"))
        return start(shared_cluster.address("master"))


def receive_all(client: Official, count: int, *, ack: bool = True) -> list[dict[str, Any]]:
    """Receive until `count` messages arrived or the time is over."""
    found: list[dict[str, Any]] = []
    end = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < end:
        # Invisible for longer than a slow machine takes to acknowledge them.
        some = client.call("receive", invisible_s=60)
        if ack:
            client.call("ack", ids=[one["id"] for one in some])
        found += some
    return found


def test_a_message_comes_back_as_it_was_sent(client: Official, names: tuple[str, str]) -> None:
    topic, group = names
    client.call("producer", topics=[topic])
    sent = {"body": "grüße 你好", "tag": "red", "keys": ["k1", "k2"]}
    properties = {"colour": "blue", "größe": "42"}
    identity = client.call("send", topic=topic, properties=properties, **sent)
    client.call("simple", group=group, topics={topic: "*"})
    (got,) = receive_all(client, 1)
    assert got["id"] == identity
    assert {key: got[key] for key in sent} == sent
    assert got["properties"] == properties, "exactly the user's properties"
    assert (got["attempt"], got["corrupted"], got["topic"]) == (1, False, topic)


def test_asynchronous_sends_arrive_exactly_once(client: Official, names: tuple[str, str]) -> None:
    topic, group = names
    client.call("producer", topics=[topic])
    bodies = [f"body-{number}" for number in range(200)]
    ids = client.call("send_many", topic=topic, bodies=bodies)
    assert len(set(ids)) == len(bodies)
    client.call("simple", group=group, topics={topic: "*"})
    got = receive_all(client, len(bodies))
    assert sorted(one["body"] for one in got) == sorted(bodies)
    assert sorted(one["id"] for one in got) == sorted(ids)
    assert client.call("receive") == [], "everything was acknowledged"


def test_a_waiting_receive_is_answered_when_a_message_comes(
    shared_cluster: Cluster, start: Start, names: tuple[str, str]
) -> None:
    topic, group = names
    consumer, producer = start(shared_cluster.endpoints), start(shared_cluster.endpoints)
    producer.call("producer", topics=[topic])
    consumer.call("simple", group=group, topics={topic: "*"}, await_s=40)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(consumer.call, "receive_async")
        assert not waiting.done()
        producer.call("send", topic=topic, body="wake")
        (got,) = waiting.result(WAIT_S)
    assert got["body"] == "wake"


def test_a_tag_filter_selects_messages(client: Official, names: tuple[str, str]) -> None:
    topic, group = names
    client.call("producer", topics=[topic])
    for tag in ("red", "green", "blue", "red"):
        client.call("send", topic=topic, body=tag, tag=tag)
    client.call("simple", group=group, topics={topic: "red || blue"}, await_s=3)
    got = receive_all(client, 3)
    assert sorted(one["body"] for one in got) == ["blue", "red", "red"]
    assert client.call("receive") == []


def test_each_of_two_groups_receives_every_message(
    client: Official, names: tuple[str, str]
) -> None:
    topic, group = names
    client.call("producer", topics=[topic])
    client.call("send_many", topic=topic, bodies=[f"{n}" for n in range(10)])
    client.call("simple", group=group, topics={topic: "*"})
    assert len(receive_all(client, 10)) == 10
    client.call("stop", name="c")
    client.call("simple", group=f"{group}-b", topics={topic: "*"})
    assert len(receive_all(client, 10)) == 10


def test_an_unacknowledged_message_is_delivered_again(
    client: Official, names: tuple[str, str]
) -> None:
    topic, group = names
    client.call("producer", topics=[topic])
    identity = client.call("send", topic=topic, body="again")
    client.call("simple", group=group, topics={topic: "*"}, await_s=20)
    (first,) = receive_all(client, 1, ack=False)
    assert client.call("change", id=identity, seconds=1) != ""
    (second,) = receive_all(client, 1)
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert first["id"] == second["id"] == identity


def test_the_receipt_handle_of_a_changed_invisible_time_acknowledges(
    client: Official, names: tuple[str, str]
) -> None:
    topic, group = names
    client.call("producer", topics=[topic])
    identity = client.call("send", topic=topic, body="longer")
    client.call("simple", group=group, topics={topic: "*"}, await_s=12)
    receive_all(client, 1, ack=False)
    client.call("change", id=identity, seconds=10)
    client.call("ack", ids=[identity])
    assert client.call("receive") == [], "acknowledged with the handle that the change returned"


def test_push_consumer_gets_every_message(client: Official, names: tuple[str, str]) -> None:
    topic, group = names
    client.call("producer", topics=[topic])
    client.call("push", group=group, topics={topic: "*"})
    ids = client.call("send_many", topic=topic, bodies=[f"{n}" for n in range(100)])
    wait_until("100 deliveries", lambda: len(client.call("pushed")) >= 100, WAIT_S)
    assert sorted(one["id"] for one in client.call("pushed")) == sorted(ids)
    client.call("stop", name="push")


def test_push_consumer_gets_a_failed_message_again(
    client: Official, names: tuple[str, str]
) -> None:
    topic, group = names
    client.call("producer", topics=[topic])
    client.call("push", group=group, topics={topic: "*"}, failures=1)
    identity = client.call("send", topic=topic, body="twice")
    wait_until("two deliveries", lambda: len(client.call("pushed")) >= 2, WAIT_S)
    first, second = client.call("pushed")[:2]
    assert (first["id"], second["id"]) == (identity, identity)
    assert (first["ok"], second["ok"]) == (False, True)
    assert (first["attempt"], second["attempt"]) == (1, 2)


def test_an_unknown_topic_is_an_error(client: Official, names: tuple[str, str]) -> None:
    client.call("producer", topics=[names[0]])
    with pytest.raises(OfficialError, match=r"route|TOPIC_NOT_FOUND"):
        client.call("send", topic="no-such-topic", body="x")
    assert client.call("send", topic=names[0], body="the producer still works")


def test_the_slave_is_an_access_point(
    shared_cluster: Cluster, start: Start, names: tuple[str, str]
) -> None:
    topic, group = names
    client = start(shared_cluster.address("slave"))
    client.call("producer", topics=[topic])
    ids = client.call("send_many", topic=topic, bodies=["a", "b", "c"])
    client.call("simple", group=group, topics={topic: "*"})
    assert sorted(one["id"] for one in receive_all(client, 3)) == sorted(ids)


@pytest.mark.skipif(not NATIVE_DOOR, reason="TLS is the native door's (scripts/native_door)")
def test_a_certificate_that_the_client_does_not_trust_is_refused(
    shared_cluster: Cluster, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFICIAL_TLS", "1")
    stranger = start(shared_cluster.address("master"))
    with pytest.raises(OfficialError):
        stranger.call("producer", topics=["any"])
        stranger.call("send", topic="any", body="refused")
