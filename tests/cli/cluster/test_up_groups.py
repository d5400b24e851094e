"""`cometmq cluster add-group` on a running `cometmq up`, with real processes.

A cluster of two groups from the start is in `tests/interop/test_broker_groups.py`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import cometmq
from cometmq.operations.connection import Connection
from cometmq.operations.links import Links
from cometmq.proto import paths, v2
from cometmq.tests.harness.cluster import Cluster, wait_until

MESSAGES = 40
WAIT_S = 90.0
GROUPS = ["broker-a", "broker-b"]


def documents(cluster: Cluster, *words: str) -> Any:
    return json.loads(cluster.run(*words, "--data", str(cluster.data), "-o", "json").stdout)


def routed(endpoint: str, topic: str) -> list[str]:
    """The broker groups of a topic's route."""
    request = v2.QueryRouteRequest(topic=v2.Resource(name=topic))
    with Connection(endpoint, Links()) as connection:
        answer = connection.call(paths.QUERY_ROUTE, request, v2.QueryRouteResponse)
    return sorted({queue.broker.name for queue in answer.message_queues})


def sent_to_both(endpoint: str, topic: str, prefix: str) -> set[bytes]:
    """Send messages; return their bodies."""
    bodies = {f"{prefix}{number}".encode() for number in range(MESSAGES)}
    with cometmq.sync.Producer(endpoint, timeout=WAIT_S) as producer:
        for body in bodies:
            producer.send(topic, body)
    return bodies


def consumed(endpoint: str, topic: str, wanted: set[bytes]) -> set[bytes]:
    """What a consumer receives, until it has all messages or the time is up."""
    bodies: set[bytes] = set()
    end = time.monotonic() + WAIT_S
    with cometmq.sync.SimpleConsumer(endpoint, group="readers", topics=topic) as consumer:
        while not bodies >= wanted and time.monotonic() < end:
            for message in consumer.receive(max_messages=16, wait=1):
                bodies.add(message.body)
                consumer.ack(message)
    return bodies


@pytest.mark.timeout(900)
def test_a_group_is_added_to_a_running_cluster_with_its_topics(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data", "--replicas", "1", controller=True, segment_size=1 << 20)
    try:
        cluster.start(WAIT_S)
        data = ("--data", str(cluster.data))
        cluster.run("topic", "create", "t", "--queues", "2", *data)
        cluster.run("group", "create", "readers", "--max-attempts", "3", *data)
        cluster.run("quota", "set", "Topic:t", "--messages", "9000", *data)
        told = cluster.run("cluster", "add-group", *data, timeout=WAIT_S).stdout
        assert told.startswith("broker-b is serving: master-b.\n")
        assert "broker-b  Created topic t.\n" in told
        assert "broker-b  Created group readers.\n" in told
        assert "broker-b  Created quota Topic:t.\n" in told
        assert documents(cluster, "cluster", "describe")["differences"] == []
        for name in ("master", "master-b"):
            at = cluster.address(name)
            wait_until("the route has both groups", lambda at=at: routed(at, "t") == GROUPS, WAIT_S)
        sent = sent_to_both(cluster.address("master"), "t", "a")
        queues = documents(cluster, "topic", "describe", "t")["queues"]
        assert {queue["broker"] for queue in queues if queue["messages"]} == set(GROUPS)
        assert consumed(cluster.address("master-b"), "t", sent) == sent
        rows = documents(cluster, "up", "status")["processes"]
        assert {row["name"]: row["state"] for row in rows}["master-b"] == "serving"
    finally:
        assert cluster.stop() == 0
    # The next start has both groups.
    try:
        cluster.start(WAIT_S)
        assert {node.name for node in cluster.nodes()} == {"namesrv", "master", "master-b"}
    finally:
        cluster.stop()
