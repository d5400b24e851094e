"""`cometmq backup` with real processes: a restored cluster has the same messages and offsets."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cometmq
from cometmq.cli.backup.manifest import manifest_of
from cometmq.operations.connection import Connection
from cometmq.operations.errors import Exit
from cometmq.operations.links import Links
from cometmq.operations.pulling import pull, queue_of
from cometmq.proto import v2
from cometmq.tests.harness.cluster import Cluster, wait_until

SEGMENT = 64 << 10
SHAPE = ("--groups", "2", "--replicas", "2")
MESSAGES = 60
CONSUMED = 25
WAIT_S = 90.0


def at(cluster: Cluster, *words: str, code: int | None = 0) -> str:
    """What a command prints."""
    done = cluster.run(*words, "--endpoint", cluster.endpoints, check=False)
    text = done.stdout + done.stderr
    assert code is None or done.returncode == code, text
    assert "Traceback" not in text
    return done.stdout


def document(cluster: Cluster, *words: str) -> Any:
    return json.loads(at(cluster, *words, "-o", "json"))


def without_rates(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the topics, without what depends on the moment."""
    return [{**row, "sent_per_s": 0.0} for row in document(cluster, "topic", "list")]


def filled(cluster: Cluster) -> None:
    """Send, consume some, and leave one message of each kind in progress."""
    at(cluster, "topic", "create", "orders", "--queues", "2")
    at(cluster, "topic", "create", "later", "--type", "delay", "--queues", "1")
    at(cluster, "topic", "create", "steps", "--type", "fifo", "--queues", "1")
    at(cluster, "group", "create", "billing", "--max-attempts", "7")
    at(cluster, "user", "create", "worker", "--secret", "worker-secret")
    at(cluster, "quota", "set", "User:worker", "--messages", "9")
    with cometmq.sync.Producer(cluster.endpoints) as producer:
        for number in range(MESSAGES):
            body = f"{number} ".encode() + b"x" * 4_000
            producer.send(
                "orders", body, tag=f"t{number % 3}", keys=[f"k{number}"], properties={"n": "1"}
            )
        producer.send("steps", b"first", group="g")
        producer.send("later", b"delayed", deliver_in=3_600)
    with cometmq.sync.SimpleConsumer(
        cluster.endpoints, group="billing", topics="orders"
    ) as consumer:
        consumed = 0
        while consumed < CONSUMED:
            for message in consumer.receive(max_messages=min(16, CONSUMED - consumed), wait=1):
                consumer.ack(message)
                consumed += 1

    def committed() -> bool:
        rows = document(cluster, "offset", "show", "billing")
        return bool(sum(row["consumer_offset"] for row in rows) == CONSUMED)

    wait_until("the offsets are committed", committed, WAIT_S)


def stored(cluster: Cluster) -> dict[tuple[str, str, int, int], v2.Message]:
    """The messages of all topics, by topic, broker, queue and offset."""
    found = {}
    with Connection(cluster.endpoints, Links()) as connection:
        for topic in ("orders", "steps"):
            for row in document(cluster, "topic", "describe", topic)["queues"]:
                queue = queue_of(topic, row["broker"], row["queue"])
                offset = row["min_offset"]
                while offset < row["max_offset"]:
                    batch = pull(connection, queue, offset, timeout_s=WAIT_S)
                    for message in batch.messages:
                        at_offset = message.system_properties.queue_offset
                        found[topic, row["broker"], row["queue"], at_offset] = message
                    offset = batch.next_offset
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("saved") / "data", *SHAPE, segment_size=SEGMENT)
    try:
        made.start(WAIT_S)
        filled(made)
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def saved(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of the running cluster, through a follower."""
    folder = tmp_path_factory.mktemp("backups") / "one"
    done = cluster.run("backup", "create", str(folder), "--endpoint", cluster.address("slave"))
    assert done.stdout.startswith(f"{folder}: cluster DefaultCluster, ")
    return folder


@pytest.mark.timeout(900)
def test_a_restored_cluster_has_the_same_messages_and_groups_continue(
    cluster: Cluster, saved: Path, tmp_path: Path
) -> None:
    assert {path.stat().st_mode & 0o777 for path in saved.rglob("*") if path.is_file()} == {0o600}
    assert "Every file has its checksum." in cluster.run("backup", "verify", str(saved)).stdout
    manifest = manifest_of(json.loads((saved / "manifest.json").read_text()))
    assert all(len(group.segments) > 2 for group in manifest.groups)
    before = stored(cluster)
    groups, topics = document(cluster, "group", "list"), without_rates(cluster)
    assert len(before) == MESSAGES + 1 and {key[1] for key in before} == {"broker-a", "broker-b"}

    data = tmp_path / "restored"
    words = ("backup", "restore", str(saved), "--data", str(data))
    refused = cluster.run(*words, check=False)
    assert refused.returncode == Exit.USAGE and "give --token-file" in refused.stderr
    token = str(cluster.data / "cluster-token")
    told = cluster.run(*words, "--token-file", token).stdout
    assert told == f"The backup is in {data}. Start the cluster: cometmq up --data {data}\n"
    assert (data / "master-b" / "store" / "commitlog" / f"{0:020d}").stat().st_size == SEGMENT

    again = Cluster(data, segment_size=None, controller=True)
    try:
        again.start(WAIT_S)
        assert len(again.nodes()) == 5
        assert stored(again) == before
        assert without_rates(again) == topics
        assert document(again, "group", "list") == groups
        assert document(again, "quota", "list") == document(cluster, "quota", "list")
        assert document(again, "user", "list") == document(cluster, "user", "list")
        (waits,) = document(again, "timer", "ls", "later")
        assert waits["message_id"] == document(cluster, "timer", "ls", "later")[0]["message_id"]
        rest: set[bytes] = set()
        with cometmq.sync.SimpleConsumer(
            again.endpoints, group="billing", topics="orders"
        ) as consumer:
            while len(rest) < MESSAGES - CONSUMED:
                for message in consumer.receive(max_messages=16, wait=1):
                    assert message.body not in rest
                    rest.add(message.body)
                    consumer.ack(message)
            assert not consumer.receive(wait=0)
        at(again, "message", "send", "orders", "new")
        assert len(stored(again)) == len(before) + 1
    finally:
        again.stop()


@pytest.mark.timeout(900)
def test_one_store_is_restored_for_a_broker_of_its_own(
    cluster: Cluster, saved: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    words = ("backup", "restore", str(saved), "--store", str(store))
    refused = cluster.run(*words, check=False)
    assert refused.returncode == Exit.USAGE and "broker-a, broker-b" in refused.stderr
    told = cluster.run(*words, "--broker", "broker-b").stdout
    assert f"brokerName=broker-b\nmappedFileSizeCommitLog={SEGMENT}\n" in told
    checked = cluster.run("store", "verify", str(store), check=False)
    assert "broken" not in checked.stdout, checked.stdout
    exists = cluster.run(*words, "--broker", "broker-b", check=False)
    assert exists.returncode == Exit.FAILED and "exists: give a new folder" in exists.stderr


def test_a_damaged_backup_is_not_restored(cluster: Cluster, saved: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(saved, damaged)
    segment = next((damaged / "broker-a" / "log").iterdir())
    data = bytearray(segment.read_bytes())
    data[1_000] ^= 1
    segment.write_bytes(data)
    store = tmp_path / "store"
    for words in (
        ("verify", str(damaged)),
        ("restore", str(damaged), "--broker", "broker-a", "--store", str(store)),
    ):
        failed = cluster.run("backup", *words, check=False)
        assert failed.returncode == Exit.FAILED
        assert f"The backup is damaged: {segment} " in failed.stderr
    segment.unlink()
    assert "incomplete" in cluster.run("backup", "verify", str(damaged), check=False).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["damaged"]


def test_a_backup_that_fails_leaves_no_folder(cluster: Cluster, tmp_path: Path) -> None:
    failed = cluster.run(
        "backup", "create", str(tmp_path / "none"), "--endpoint", "127.0.0.1:1", check=False
    )
    assert failed.returncode == Exit.FAILED and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"groups": []},
        {"groups.0.broker": "../../etc"},
        {"groups.0.broker": ".."},
        {"groups.0.segments": []},
        {"groups.0.segments.0.start": -1},
        {"groups.0.segments.0.start": "../x"},
        {"groups.0.segments.1.start": 7},
        {"groups.0.segments.0.bytes": 1 << 40},
        {"groups.0.segment_size": 0},
        {"groups.1.broker": "broker-a"},
        {"definitions": None},
    ],
)
def test_a_manifest_with_an_impossible_value_is_refused(change: dict[str, object]) -> None:
    segments = [{"start": start, "bytes": 9, "crc32": 1} for start in (100, 200)]
    group = {"segment_size": 100, "offsets": {"bytes": 1, "crc32": 1}, "segments": segments}
    groups = [{**copy.deepcopy(group), "broker": name} for name in ("broker-a", "broker-b")]
    good: dict[str, Any] = {
        **{"format": 1, "cluster": "c", "created_ms": 1, "users": 0, "version": ""},
        **{"definitions": {"bytes": 1, "crc32": 1}, "groups": groups},
    }
    assert manifest_of(good).groups[1].log_end == 209
    ((path, value),) = change.items()
    *folders, last = path.split(".")
    target: Any = good
    for name in folders:
        target = target[int(name) if name.isdigit() else name]
    target[last] = value
    with pytest.raises(ValueError, match=r"\S"):
        manifest_of(good)
