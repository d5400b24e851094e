"""`cometmq backup restore` of a cluster with users: they log in to the restored cluster."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import cometmq
from cometmq.client.errors import Unauthorized
from cometmq.tests.harness.cluster import Cluster

WAIT_S = 120.0
SEGMENT = 64 << 10


@pytest.mark.timeout(900)
def test_restored_users_log_in_with_their_rights(tmp_path: Path) -> None:
    saved, data = tmp_path / "saved", tmp_path / "restored"
    first = Cluster(tmp_path / "first", "--single", "--auth", segment_size=SEGMENT)
    try:
        first.start(WAIT_S)
        for words in (
            ("topic", "create", "orders", "--queues", "1"),
            ("topic", "create", "secrets", "--queues", "1"),
            ("user", "create", "worker", "--secret", "worker-secret"),
            ("acl", "create", "--user", "worker", "--resource", "Topic:orders", "--actions", "Pub"),
            ("backup", "create", str(saved)),
        ):
            first.run(*words, "--endpoint", first.endpoints)
    finally:
        first.stop()
    token = first.data / "cluster-token"
    restore = ("backup", "restore", str(saved), "--data", str(data), "--replicas", "1")
    first.run(*restore, "--token-file", str(token))
    shutil.copy(first.data / "admin-credentials", data)
    second = Cluster(data, "--auth", "--replicas", "1", segment_size=None, controller=True)
    try:
        second.start(WAIT_S)
        listed = second.run("user", "list", "--endpoint", second.endpoints).stdout
        assert "admin" in listed and "worker" in listed
        worker = cometmq.Credentials("worker", "worker-secret")
        with cometmq.sync.Producer(second.endpoints, credentials=worker) as producer:
            assert producer.send("orders", b"from a restored user").message_id
            with pytest.raises(Unauthorized, match="no permission"):
                producer.send("secrets", b"no")
        stranger = cometmq.Credentials("worker", "another-secret")
        with (
            pytest.raises(Unauthorized, match="ignature"),
            cometmq.sync.Producer(second.endpoints, credentials=stranger) as producer,
        ):
            producer.send("orders", b"no")
    finally:
        second.stop()
