"""The console with 1,000 topics and 500 consumer groups: what a page asks and answers is bounded.

Durations depend on the machine, so the test counts: the calls of each page to the broker, by the
broker's own metrics, and the size of its answer. `docs/console.md` has measured times.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.request import urlopen

from cometmq.cli.connection import Connection
from cometmq.proto import paths, v1
from cometmq.tests.console.served import serve, told
from cometmq.tests.harness.cluster import Cluster, wait_until

TOPICS, GROUPS = 1_000, 500
CREATED_S = 60.0
#: Calls of one page with any number of objects: lists, counts of the rows shown, names of broker
#: groups. The overview's own calls come on top: a page takes much less than its period.
CALLS_MAX = 20
#: Bytes of a page: 50 rows and the frame.
BYTES_MAX = 64_000
PAGES = (
    *("/", "/topics", "/topics?q=many-0999", "/topics?page=20", "/topics/many-0500", "/groups"),
    *("/groups?sort=lag", "/groups/crowd-250", "/messages?topic=many-0001", "/dead-letters"),
    *("/timers", "/ha", "/store", "/clients", "/users", "/audit", "/configuration"),
)
_COUNT = re.compile(r"^rocketmq_rpc_latency_milliseconds_count\{[^}]*\} ([0-9.e+]+)$", re.M)


def calls_of(cluster: Cluster) -> float:
    """Return the calls that the leader has answered."""
    port = cluster.node("master").ports["metrics"]
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
        return sum(map(float, _COUNT.findall(page.read().decode())))


def test_a_page_asks_and_answers_as_little_with_many_topics_and_groups(
    shared_cluster: Cluster, tmp_path: Path
) -> None:
    with Connection(shared_cluster.address("master")) as connection:
        topics = [
            connection.start(
                *(paths.CREATE_TOPIC, v1.CreateTopicRequest(name=f"many-{n:04d}", queues=1)),
                *(v1.CreateTopicResponse, CREATED_S),
            )
            for n in range(TOPICS)
        ]
        groups = [
            connection.start(
                *(paths.CREATE_GROUP, v1.CreateGroupRequest(name=f"crowd-{n:03d}")),
                *(v1.CreateGroupResponse, CREATED_S),
            )
            for n in range(GROUPS)
        ]
        for result in (*topics, *groups):
            result()
    with serve(tmp_path, shared_cluster.address("master")) as console:
        wait_until("the cluster is read", lambda: "500 groups" in told(console.get("/")))
        found = told(console.get("/topics?q=many-"))
        assert "1,000 topics" in found
        for path in PAGES:
            before = calls_of(shared_cluster)
            page = console.get(path)
            assert calls_of(shared_cluster) - before <= CALLS_MAX, path
            assert len(page.encode()) <= BYTES_MAX, path
