"""Lag is a count of messages, never -1: over the API, on the metrics page and in the console."""

from __future__ import annotations

import json
import re
from urllib.request import urlopen

import cometmq
from cometmq.operations.connection import Connection
from cometmq.operations.links import Links
from cometmq.proto import paths, v1
from cometmq.tests.console.consuming import receive
from cometmq.tests.console.served import Served, told
from cometmq.tests.harness.cluster import Cluster, wait_until

_LAG = re.compile(
    r'^rocketmq_consumer_lag_messages\{[^}]*consumer_group="([^"]+)".*\} (\S+)$', re.M
)


def described(cluster: Cluster, group: str) -> v1.DescribeGroupResponse:
    request = v1.DescribeGroupRequest(name=group)
    with Connection(cluster.endpoints, Links()) as connection:
        return connection.call(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse)


def lags(cluster: Cluster, group: str) -> list[int]:
    """Return every lag of a group: of all, in flight, in retry topics, by queue."""
    found = described(cluster, group)
    sums = found.progress
    return [sums.lag, sums.in_flight, sums.retries, *(queue.lag for queue in found.queues)]


def measured(cluster: Cluster) -> dict[str, float]:
    """Return the lag of each group, from the metrics page of the leader."""
    port = cluster.node("master").ports["metrics"]
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
        return {name: float(value) for name, value in _LAG.findall(page.read().decode())}


def test_a_group_that_never_committed_lags_by_the_messages_that_it_has_not_read(
    console: Served, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("unread", queues=1)
    for name in ("idle", "holders"):
        shared_cluster.create_group(name)
    with cometmq.sync.Producer(shared_cluster.endpoints, topics=["unread"]) as producer:
        for n in range(3):
            producer.send("unread", str(n).encode())
    assert lags(shared_cluster, "idle") == [0, 0, 0]
    assert "Lag 0" in told(console.get("/groups/idle"))
    receive(shared_cluster, "unread", "holders", 1)  # and acknowledges nothing
    wait_until("it lags", lambda: described(shared_cluster, "holders").progress.lag == 3)
    assert min(lags(shared_cluster, "holders")) == 0
    assert "holders 3 1 " in told(console.get("/groups?q=holders"))
    endpoint = ("--endpoint", shared_cluster.endpoints)
    shown = shared_cluster.run("group", "list", *endpoint, "-o", "json")
    listed = {row["group"]: row["lag"] for row in json.loads(shown.stdout)}
    assert (listed["holders"], listed["idle"]) == (3, 0), "the command shows the lag of the page"
    wait_until("it is measured", lambda: "holders" in measured(shared_cluster))
    assert min(measured(shared_cluster).values()) >= 0


def test_a_deleted_topic_leaves_no_lag_behind(console: Served, shared_cluster: Cluster) -> None:
    shared_cluster.create_topic("gone-soon", queues=2)
    shared_cluster.create_group("bereft")
    with cometmq.sync.Producer(shared_cluster.endpoints, topics=["gone-soon"]) as producer:
        for n in range(4):
            producer.send("gone-soon", str(n).encode())
    receive(shared_cluster, "gone-soon", "bereft", 2)
    wait_until("it lags", lambda: described(shared_cluster, "bereft").progress.lag == 4)
    assert console.act("/topics/gone-soon/delete", {"typed": "gone-soon"}).status == 303
    wait_until("it does not lag", lambda: not any(lags(shared_cluster, "bereft")))
    assert "Lag 0" in told(console.get("/groups/bereft"))
    wait_until("it is read", lambda: "bereft 0 0 0 " in told(console.get("/groups?q=bereft")))
    assert min(measured(shared_cluster).values(), default=0) >= 0
    shared_cluster.create_topic("gone-soon", queues=1)  # with offsets from the start
    assert min(lags(shared_cluster, "bereft")) == 0
    assert "Lag 0" in told(console.get("/groups/bereft"))
