"""Transactions with the official Python client and the SDK: commit, rollback, checks.

Master and slave have short check times. A client's telemetry stream may be at either of them
(docs/formats/client-wire.md, section 3; docs/formats/grpc-api.md, sections 5.10 and 8.6).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.tests.harness.cluster import Cluster, wait_until
from cometmq.tests.harness.official import Official

Start = Callable[[str], Official]
SHORT = {
    # Longer than a slow machine takes from a half message to its end.
    "COMETMQ_TRANSACTION_TIME_OUT": "5000",
    "COMETMQ_TRANSACTION_CHECK_INTERVAL": "1000",
    "COMETMQ_TRANSACTION_OP_BATCH_INTERVAL": "200",
}
#: By then what has not ended is asked about: the time-out, the interval and a second.
CHECKED_S = 7.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A cluster that checks transactions after seconds."""
    made = Cluster(tmp_path_factory.mktemp("transactions") / "data", env=SHORT)
    try:
        yield made.start().wait_in_sync()
    finally:
        made.stop()


def received(client: Official, count: int) -> list[dict[str, Any]]:
    """So many messages, acknowledged."""
    found: list[dict[str, Any]] = []

    def enough() -> bool:
        some = client.call("receive")
        client.call("ack", ids=[one["id"] for one in some])
        found.extend(some)
        return len(found) >= count

    wait_until(f"{count} messages", enough)
    return found


def consumer_of(start: Start, cluster: Cluster, topic: str) -> Official:
    """A simple consumer of the topic."""
    client = start(cluster.endpoints)
    client.call("simple", group=cluster.create_group(f"of-{topic}"), topics={topic: "*"}, await_s=2)
    return client


def test_a_commit_delivers_and_a_rollback_discards(cluster: Cluster, start: Start) -> None:
    topic = cluster.create_topic("ends", kind="transaction", queues=2)
    client = start(cluster.endpoints)
    client.call("producer", topics=[topic], checks="ROLLBACK")
    client.call("transact", end="rollback", topic=topic, body="dropped")
    kept = client.call(
        "transact", end="commit", topic=topic, body="kept", tag="a", properties={"k": "v"}
    )
    asked_by_s = time.monotonic() + CHECKED_S
    (message,) = received(consumer_of(start, cluster, topic), 1)
    assert (message["id"], message["body"], message["tag"]) == (kept, "kept", "a")
    assert message["properties"] == {"k": "v", "__transactionId__": message["id"]}
    assert not message["corrupted"]
    time.sleep(max(0.0, asked_by_s - time.monotonic()))
    assert not client.call("asked"), "what has ended is not asked about"


@pytest.mark.parametrize("side", ["master", "slave"])
def test_a_check_is_answered_by_another_producer_through_either_node(
    cluster: Cluster, start: Start, side: str
) -> None:
    topic = cluster.create_topic(f"orphans-{side}", kind="transaction", queues=2)
    first = start(cluster.endpoints)
    first.call("producer", topics=[topic])
    orphan = first.call("transact", end="leave", topic=topic, body="orphan", tag="t", keys=["k"])
    first.close()  # its process is gone
    second = start(cluster.address(side))
    second.call("producer", topics=[topic], checks="COMMIT")
    (message,) = received(consumer_of(start, cluster, topic), 1)
    assert (message["id"], message["body"]) == (orphan, "orphan")
    asked = second.call("asked")
    assert {(one["id"], one["body"], one["tag"]) for one in asked} == {(orphan, "orphan", "t")}
    assert asked[0]["keys"] == ["k"]
    assert not asked[0]["corrupted"]


def test_a_transaction_survives_a_kill_of_the_master(new_cluster: Any, start: Start) -> None:
    cluster = new_cluster(env=SHORT).wait_in_sync()
    topic = cluster.create_topic("through", kind="transaction", queues=2)
    client = start(cluster.endpoints)
    client.call("producer", topics=[topic], checks="COMMIT")
    committed = client.call("transact", end="commit", topic=topic, body="committed")
    left = client.call("transact", end="leave", topic=topic, body="left")
    cluster.kill9("master")
    cluster.restart("master")
    # The client detects a lost stream at its next settings, minutes later; another one is checked.
    other = start(cluster.endpoints)
    other.call("producer", topics=[topic], checks="COMMIT")
    found = received(consumer_of(start, cluster, topic), 2)
    assert sorted(one["id"] for one in found) == sorted([committed, left])
