"""Features with the official Python client and the SDK: FIFO, delay, recall, filters, priorities,
retries, dead letters, push consumers, offset resets and lite topics.

Each test has separate topics and groups on a shared cluster (docs/formats/client-wire.md,
section 2).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.tests.harness.cluster import Cluster, wait_until
from cometmq.tests.harness.official import Official, OfficialError
from cometmq.tests.interop.test_python_client import WAIT_S, Start, receive_all


class Bench:
    """Two processes with Python clients, and names for one test."""

    def __init__(self, cluster: Cluster, start: Start) -> None:
        self.cluster = cluster
        self.mark = uuid.uuid4().hex[:8]
        self.sender: Official = start(cluster.endpoints)
        self.receiver: Official = start(cluster.endpoints)

    def topic(self, kind: str, queues: int = 2) -> str:
        """A topic with its producer."""
        topic = self.cluster.create_topic(f"{kind}-{self.mark}", kind=kind, queues=queues)
        self.sender.call("producer", topics=[topic])
        return topic

    def group(self, *options: str) -> str:
        """A consumer group."""
        name = f"group-{self.mark}"
        address = self.cluster.address("master")
        self.cluster.run("group", "create", name, *options, "--endpoint", address)
        return name

    def pushed(self, count: int) -> list[dict[str, Any]]:
        """So many deliveries to the push consumer."""
        push: Callable[[], Any] = lambda: self.receiver.call("pushed")  # noqa: E731
        wait_until(f"{count} deliveries", lambda: len(push()) >= count, WAIT_S)
        return list(push())

    def all(self, topic: str, count: int) -> list[dict[str, Any]]:
        """So many messages of a topic, received and acknowledged by a group of their own."""
        self.receiver.call("simple", group=f"all-{self.mark}", topics={topic: "*"}, name="c")
        return receive_all(self.receiver, count)


@pytest.fixture
def bench(shared_cluster: Cluster, start: Start) -> Bench:
    """A bench on the shared cluster."""
    return Bench(shared_cluster, start)


def bodies(found: list[dict[str, Any]]) -> list[str]:
    """Return the bodies in order of arrival."""
    return [one["body"] for one in found]


def test_a_message_group_is_received_in_order(bench: Bench) -> None:
    topic, group = bench.topic("fifo", 4), bench.group("--order", "true")
    for number in range(20):
        for name in ("a", "b"):
            bench.sender.call("send", topic=topic, body=f"{name}{number:02d}", group=name)
    bench.receiver.call("simple", group=group, topics={topic: "*"})
    found = receive_all(bench.receiver, 40)
    for name in ("a", "b"):
        mine = [one["body"] for one in found if one["group"] == name]
        assert mine == [f"{name}{number:02d}" for number in range(20)]


def test_an_ordered_push_consumer_retries_in_place(bench: Bench) -> None:
    topic, group = bench.topic("fifo", 1), bench.group("--order", "true")
    bench.receiver.call("push", group=group, topics={topic: "*"}, failures=1)
    for number in range(3):
        bench.sender.call("send", topic=topic, body=f"{number}", group="k")
    assert bodies(bench.pushed(6))[:6] == ["0", "0", "1", "1", "2", "2"]
    bench.receiver.call("stop", name="push")


def test_a_message_that_always_fails_becomes_a_dead_letter(bench: Bench) -> None:
    topic = bench.topic("normal")
    delays = ("--retry-policy", "customized", "--retry-delays", "1s")
    group = bench.group("--max-attempts", "2", *delays)
    bench.receiver.call("push", group=group, topics={topic: "*"}, failures=99)
    identity = bench.sender.call("send", topic=topic, body="poison", tag="t")
    assert [one["attempt"] for one in bench.pushed(2)] == [1, 2]
    wait_until("the dead letter's topic", lambda: dead_letters(bench, group), WAIT_S)
    bench.receiver.call("stop", name="push")
    (dead,) = bench.all(f"%DLQ%{group}", 1)
    assert (dead["id"], dead["body"], dead["tag"]) == (identity, "poison", "t")
    assert len(bench.receiver.call("pushed")) == 2


def dead_letters(bench: Bench, group: str) -> bool:
    """Whether the group's dead-letter topic exists."""
    address = bench.cluster.address("master")
    topic = f"%DLQ%{group}"
    found = bench.cluster.run("topic", "describe", topic, "--endpoint", address, check=False)
    return found.returncode == 0


def test_a_delayed_message_is_delivered_at_its_time(bench: Bench) -> None:
    topic = bench.topic("delay")
    due_s = int(time.time()) + 4
    bench.sender.call("delay", topic=topic, body="later", deliver_s=due_s)
    (found,) = bench.all(topic, 1)
    assert time.time() >= due_s, "never early"
    assert (found["body"], found["deliver"]) == ("later", due_s * 1000)


def test_a_recalled_message_is_not_delivered(bench: Bench) -> None:
    topic = bench.topic("delay")
    due_s = int(time.time()) + 12  # later than the recall, however slow the machine is
    gone = bench.sender.call("delay", topic=topic, body="gone", deliver_s=due_s)
    for seconds in (0, 1):
        bench.sender.call("delay", topic=topic, body="stays", deliver_s=due_s + seconds)
    assert bench.sender.call("recall", topic=topic, handle=gone["handle"]) == gone["id"]
    assert bodies(bench.all(topic, 2)) == ["stays", "stays"], "nothing else until a second later"


def test_a_recall_that_is_too_late_raises(bench: Bench) -> None:
    """The client takes MESSAGE_NOT_FOUND for success."""
    topic = bench.topic("delay")
    late = bench.sender.call("delay", topic=topic, body="late", deliver_s=int(time.time()) + 5)
    assert late["handle"], "sent before it was due"
    assert bodies(bench.all(topic, 1)) == ["late"]
    with pytest.raises(OfficialError, match="too late") as caught:
        bench.sender.call("recall", topic=topic, handle=late["handle"])
    assert caught.value.code == 40400


def test_a_sql_filter_selects_messages(bench: Bench) -> None:
    topic = bench.topic("normal")
    for price in ("9.5", "10", "11", "cheap"):
        bench.sender.call("send", topic=topic, body=price, properties={"price": price})
    bench.sender.call("send", topic=topic, body="none")
    bench.sender.call("send", topic=topic, body="last", properties={"price": "0"})
    wanted = {"sql": "price < 10.5 AND NOT (price = 10)"}
    bench.receiver.call("simple", group=bench.group(), topics={topic: wanted})
    assert sorted(bodies(receive_all(bench.receiver, 2))) == ["9.5", "last"]


def test_a_sql_filter_applies_to_a_push_consumer(bench: Bench) -> None:
    topic = bench.topic("normal")
    wanted = {"sql": "TAGS = 'red' OR size IN ('l', 'xl')"}
    bench.receiver.call("push", group=bench.group(), topics={topic: wanted})
    for tag, size in (("red", "s"), ("blue", "s"), ("blue", "xl")):
        bench.sender.call(
            "send", topic=topic, body=f"{tag}-{size}", tag=tag, properties={"size": size}
        )
    assert sorted(bodies(bench.pushed(2))) == ["blue-xl", "red-s"]
    bench.receiver.call("stop", name="push")


def test_higher_priorities_are_delivered_first(bench: Bench) -> None:
    topic = bench.topic("priority", 4)
    for body, priority in (("low", 0), ("high", 3), ("mid", 1)):
        bench.sender.call("send", topic=topic, body=body, priority=priority)
    bench.receiver.call("simple", group=bench.group(), topics={topic: "*"})
    found = [bench.receiver.call("receive", count=1) for _ in range(3)]
    assert [(one["body"], one["priority"]) for (one,) in found] == [
        ("high", 3),
        ("mid", 1),
        ("low", 0),
    ]


def test_a_group_reset_to_a_time_receives_messages_again(bench: Bench) -> None:
    topic, group = bench.topic("normal", 1), bench.group()
    bench.sender.call("send_many", topic=topic, bodies=["a", "b", "c"])
    bench.receiver.call("simple", group=group, topics={topic: "*"})
    assert len(receive_all(bench.receiver, 3)) == 3
    address = bench.cluster.address("master")
    bench.cluster.run("offset", "reset", group, topic, "0", "--yes", "--endpoint", address)
    assert sorted(bodies(receive_all(bench.receiver, 3))) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", ["simple", "push"])
def test_lite_consumers_receive_their_lite_topics_in_order(bench: Bench, kind: str) -> None:
    topic = bench.topic("lite")
    # Without --order a push consumer handles the messages of a response concurrently.
    group = bench.group("--order", "true", "--attribute", f"+lite.bind.topic={topic}")
    bench.receiver.call(f"lite_{kind}", group=group, topic=topic, lites=["a", "b"])
    for number in range(5):
        for lite in ("a", "b", "c"):
            bench.sender.call("send", topic=topic, body=f"{lite}{number}", lite=lite)
    found = receive_all(bench.receiver, 10) if kind == "simple" else bench.pushed(10)
    for lite in ("a", "b"):
        mine = [one["body"] for one in found if one["lite"] == lite]
        assert mine == [f"{lite}{number}" for number in range(5)]
    assert len(found) == 10
