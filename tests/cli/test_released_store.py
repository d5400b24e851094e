"""A store directory of every release is opened by today's broker: nothing of it is lost.

`tests/proto/released/VERSION-store.tar.gz` was written by the release: 40 messages of `orders`, 10
of them consumed by `billing`, one of `steps`, an empty topic `later`, in segments of 64 KiB.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

import cometmq
from cometmq.tests.harness.cluster import Cluster

STORES = sorted((Path(__file__).parents[1] / "proto" / "released").glob("*-store.tar.gz"))
SEGMENT = 64 << 10
SETTINGS = {"COMETMQ_MAX_INDEX_NUM": "2000", "COMETMQ_MAX_HASH_SLOT_NUM": "500"}


@pytest.mark.parametrize("path", STORES, ids=lambda path: path.name)
def test_a_store_of_a_release_is_opened_and_its_groups_continue(path: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    store = data / "single" / "store"
    store.mkdir(parents=True)
    with tarfile.open(path) as archive:
        archive.extractall(store, filter="data")
    cluster = Cluster(data, "--single", env=SETTINGS, segment_size=SEGMENT)

    def document(*words: str) -> Any:
        return json.loads(cluster.run(*words, "--endpoint", cluster.endpoints, "-o", "json").stdout)

    try:
        cluster.start()
        topics = {row["topic"]: row for row in document("topic", "list")}
        assert {name: row["type"] for name, row in topics.items()} == {
            **{"orders": "normal", "steps": "fifo", "later": "delay"}
        }
        group = document("group", "describe", "billing")
        assert (group["max_attempts"], group["lag"]) == (7, 30)
        found = document("message", "query", "--topic", "orders", "--key", "k7")
        assert [row["body"][:2] for row in found] == ["7x"]
        bodies: set[bytes] = set()
        with cometmq.sync.SimpleConsumer(
            cluster.endpoints, group="billing", topics="orders"
        ) as consumer:
            while len(bodies) < 30:
                for message in consumer.receive(max_messages=16, wait=1):
                    assert message.properties["n"] == message.body.rstrip(b"x").decode()
                    bodies.add(message.body)
                    consumer.ack(message)
            assert not consumer.receive(wait=0)
        cluster.run("message", "send", "orders", "new", "--endpoint", cluster.endpoints)
        queues = document("topic", "describe", "orders")["queues"]
        assert sum(queue["messages"] for queue in queues) == 41
    finally:
        cluster.stop()


def test_there_is_a_store_of_a_release() -> None:
    assert STORES
