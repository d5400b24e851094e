"""Administration of a cluster with two broker groups, through any node and through a proxy."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import cometmq
from cometmq.cli.cluster.broker_groups import Again, finish, merged
from cometmq.operations.broker_groups import Outcome
from cometmq.operations.connection import Connection
from cometmq.operations.errors import CliError, Exit
from cometmq.operations.links import Links
from cometmq.proto import paths, v2
from cometmq.tests.cli.two_groups import NAMES, TwoGroups, two_groups
from cometmq.tests.harness.cluster import START_S, cometmq_command, wait_until

MESSAGES = 40


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoGroups]:
    # A restarted nameserver answers at once; tests of the broker cover the wait.
    env = {"COMETMQ_WAIT_FOR_KNOWN_GROUPS": "0"}
    with two_groups(tmp_path_factory.mktemp("groups"), env=env) as found:
        yield found


def routed(endpoint: str, topic: str) -> list[str]:
    """The broker groups of a topic's route."""
    request = v2.QueryRouteRequest(topic=v2.Resource(name=topic))
    with Connection(endpoint, Links()) as connection:
        answer = connection.call(paths.QUERY_ROUTE, request, v2.QueryRouteResponse)
    return sorted({queue.broker.name for queue in answer.message_queues})


def consumed(endpoint: str, topic: str, group: str) -> set[bytes]:
    """What a consumer receives, until it has all messages or the time is up."""
    bodies: set[bytes] = set()
    end = time.monotonic() + START_S
    with cometmq.sync.SimpleConsumer(endpoint, group=group, topics=topic) as consumer:
        while len(bodies) < MESSAGES and time.monotonic() < end:
            for message in consumer.receive(max_messages=16, wait=1):
                bodies.add(message.body)
                consumer.ack(message)
    return bodies


def test_messages_of_a_topic_created_once_are_spread_over_both_groups(groups: TwoGroups) -> None:
    told = groups.out("topic", "create", "spread", "--queues", "2", endpoint=groups.proxy.endpoint)
    assert told == (
        "broker-a  Created topic spread: normal, 2 queues.\n"
        "broker-b  Created topic spread: normal, 2 queues.\n"
    )
    for endpoint in (groups.first, groups.second.endpoint):
        wait_until("the route has both groups", lambda at=endpoint: routed(at, "spread") == NAMES)
    sent = {str(n).encode() for n in range(MESSAGES)}
    with cometmq.sync.Producer(groups.second.endpoint) as producer:
        for body in sent:
            producer.send("spread", body, tag="all")
    found = groups.json("topic", "describe", "spread")
    assert [(queue["broker"], queue["queue"]) for queue in found["queues"]] == [
        (name, queue) for name in NAMES for queue in (0, 1)
    ]
    assert all(queue["messages"] for queue in found["queues"])
    query = ("message", "query", "--topic", "spread", "--tag", "all")
    everything = groups.json(*query, endpoint=groups.proxy.endpoint)
    assert {row["body"].encode() for row in everything} == sent
    assert {row["broker"] for row in everything} == set(NAMES)
    assert groups.json(*query, "--count", "3") == everything[-3:]
    last = everything[-1]
    tail = ("message", "tail", "spread", "--from", "beginning", "--count", str(MESSAGES))
    shown = groups.run(*tail, "-o", "json", endpoint=groups.second.endpoint)
    assert "(4 queues)" in shown.stderr
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert {row["body"].encode() for row in rows} == sent
    assert {row["broker"] for row in rows} == set(NAMES)
    assert groups.out(*tail).split()[0] in NAMES
    (same,) = groups.json("message", "query", "--id", last["offset_id"])
    assert (same["broker"], same["body"]) == (last["broker"], last["body"])
    assert consumed(groups.first, "spread", "spread-readers") == sent


def test_changes_reach_every_group_and_lists_name_them(groups: TwoGroups) -> None:
    at = groups.second.endpoint
    groups.run("topic", "create", "both", "--queues", "2", endpoint=at)
    groups.run("topic", "alter", "both", "--queues", "3", endpoint=at)
    groups.run("topic", "create", "one", "--broker", "broker-a", endpoint=at)
    rows = {row["topic"]: row for row in groups.json("topic", "list")}
    assert (rows["both"]["write_queues"], rows["both"]["brokers"]) == (3, NAMES)
    assert rows["one"]["brokers"] == ["broker-a"]
    described = groups.run("topic", "describe", "one")
    assert "cometmq: broker-b: topic one does not exist" in described.stderr
    groups.run("topic", "describe", "one", "--broker", "broker-b", code=Exit.NOT_FOUND)
    groups.run("topic", "describe", "none", code=Exit.NOT_FOUND)
    unknown = groups.run("topic", "create", "two", "--broker", "broker-c", code=Exit.NOT_FOUND)
    assert "broker group broker-c is not known here; this is broker-a" in unknown.stderr
    unset = groups.run("topic", "create", "two", "--broker", "", code=Exit.USAGE)
    assert "--broker must not be empty" in unset.stderr

    groups.run("group", "create", "readers", "--max-attempts", "5", endpoint=at)
    groups.run("group", "alter", "readers", "--broker", "broker-b", "--max-attempts", "6")
    groups.run("offset", "reset", "readers", "both", "earliest", endpoint=at)
    shown = groups.json("offset", "show", "readers")
    assert [row["broker"] for row in shown] == ["broker-a"] * 3 + ["broker-b"] * 3
    described = groups.json("group", "describe", "readers")
    assert [(each["max_attempts"], each["brokers"]) for each in described["settings"]] == [
        (5, ["broker-a"]),
        (6, ["broker-b"]),
    ]
    listed = [row for row in groups.json("group", "list") if row["group"] == "readers"]
    assert [(row["lag"], row["brokers"]) for row in listed] == [
        (0, ["broker-a"]),
        (0, ["broker-b"]),
    ]
    changed = groups.json("group", "alter", "readers", "--max-attempts", "7", endpoint=at)
    assert [(row["broker"], row["max_attempts"]) for row in changed] == [
        (name, 7) for name in NAMES
    ]

    groups.run("topic", "delete", "both", endpoint=at)
    groups.run("topic", "delete", "one", endpoint=at)
    groups.run("group", "delete", "readers", endpoint=at)
    assert not {"both", "one"} & {row["topic"] for row in groups.json("topic", "list")}
    assert "readers" not in {row["group"] for row in groups.json("group", "list")}
    members = groups.json("cluster", "describe")["groups"]
    assert [each["members"][0]["group"] for each in members] == NAMES


def test_users_policies_and_quotas_reach_every_group(groups: TwoGroups) -> None:
    created = groups.json("user", "create", "worker")
    assert [row["broker"] for row in created] == NAMES
    assert len({row["secretKey"] for row in created}) == 1
    policy = ("acl", "create", "--user", "worker", "--resource", "Topic:*", "--actions", "Pub")
    (row,) = groups.json(*policy)
    assert (row["resource"], row["brokers"]) == ("Topic:*", NAMES)
    (row,) = groups.json("quota", "set", "User:worker", "--messages", "5")
    assert (row["messages"], row["brokers"]) == (5, NAMES)
    groups.run("acl", "delete", "--user", "worker", "--broker", "broker-b")
    (row,) = groups.json("acl", "list")
    assert row["brokers"] == ["broker-a"]
    groups.run("acl", "delete", "--user", "worker")
    groups.run("user", "delete", "worker", "--broker", "broker-a")
    groups.run("user", "delete", "worker")
    groups.run("quota", "delete", "User:worker")
    assert groups.json("user", "list") == groups.json("quota", "list") == []


def test_differences_are_shown_and_reconciled(groups: TwoGroups) -> None:
    groups.run("topic", "create", "apart", "--queues", "2", "--type", "fifo", "--perm", "read")
    groups.run("topic", "alter", "apart", "--queues", "3", "--broker", "broker-b")
    groups.run("topic", "create", "only-b", "--queues", "2", "--broker", "broker-b")
    retries = ("--retry-policy", "customized", "--retry-delays", "1s,2s")
    groups.run("group", "create", "readers", "--order", "true", "--broker", "broker-b", *retries)
    groups.run("quota", "set", "Topic:*", "--messages", "9", "--broker", "broker-a")
    groups.run("user", "create", "half", "--secret", "half-secret", "--broker", "broker-b")
    policy = ("--user", "half", "--resource", "Topic:*", "--actions", "Pub")
    groups.run("acl", "create", *policy, "--broker", "broker-b")
    wanted = [
        ("broker-a", "topic", "apart", "change"),
        ("broker-a", "topic", "only-b", "create"),
        ("broker-a", "group", "readers", "create"),
        ("broker-a", "user", "half", "create"),
        ("broker-b", "quota", "Topic:*", "create"),
    ]

    def rows(found: list[dict[str, str]]) -> list[tuple[str, ...]]:
        return [(row["broker"], row["kind"], row["name"], row["action"]) for row in found]

    shown = groups.json("cluster", "describe")["differences"]
    assert rows(shown) == wanted
    assert shown[0]["settings"] == "read_queues 2 -> 3, write_queues 2 -> 3"
    assert rows(groups.json("cluster", "reconcile", "--dry-run")["changes"]) == wanted
    assert rows(groups.json("cluster", "describe")["differences"]) == wanted, "nothing has changed"

    partial = groups.run("cluster", "reconcile", endpoint=groups.proxy.endpoint, code=Exit.FAILED)
    assert "broker-b  Created quota Topic:*." in partial.stdout
    assert "cometmq user create half --secret SECRET_KEY --broker broker-a" in partial.stdout
    groups.run("user", "create", "half", "--secret", "half-secret", "--broker", "broker-a")
    groups.run("cluster", "reconcile", "--from", "broker-b")
    assert groups.out("cluster", "reconcile") == "The broker groups do not differ.\n"
    apart = groups.json("topic", "describe", "apart")
    assert (apart["type"], apart["write_queues"], apart["brokers"]) == ("fifo", 3, NAMES)
    readers = groups.json("group", "describe", "readers")
    assert (readers["order"], readers["retry_policy"]) == (True, "customized: 1s, 2s")
    (row,) = groups.json("acl", "list")
    assert row["brokers"] == NAMES

    groups.run("group", "alter", "readers", "--max-attempts", "3", "--broker", "broker-b")
    groups.run("cluster", "reconcile", "--from", "broker-b")
    assert groups.json("group", "describe", "readers", "--broker", "broker-a")["max_attempts"] == 3
    groups.run("cluster", "reconcile", "--from", "broker-c", code=Exit.USAGE)
    groups.run("user", "delete", "half")
    groups.run("quota", "delete", "Topic:*")


def counts(groups: TwoGroups, topic: str) -> dict[str, int]:
    """The messages of a topic by broker group."""
    found = dict.fromkeys(NAMES, 0)
    for queue in groups.json("topic", "describe", topic)["queues"]:
        found[queue["broker"]] += queue["messages"]
    return found


#: What a route permits while broker-b is drained.
RO = {("broker-a", v2.READ_WRITE), ("broker-b", v2.READ)}


def permitted(endpoint: str, topic: str = "moving") -> set[tuple[str, int]]:
    """The groups of the route of a topic, and what clients may do there."""
    request = v2.QueryRouteRequest(topic=v2.Resource(name=topic))
    with Connection(endpoint, Links()) as connection:
        answer = connection.call(paths.QUERY_ROUTE, request, v2.QueryRouteResponse)
    return {(queue.broker.name, queue.permission) for queue in answer.message_queues}


def test_producers_leave_a_drained_group_and_return(groups: TwoGroups) -> None:
    groups.run("topic", "create", "moving", "--queues", "2")
    wait_until("the route has both groups", lambda: routed(groups.first, "moving") == NAMES)

    def send(first: int) -> None:
        for number in range(first, first + MESSAGES // 2):
            producer.send("moving", str(number).encode())

    with cometmq.sync.Producer(groups.first) as producer:
        send(0)
        before = counts(groups, "moving")
        assert all(before.values())
        groups.run("group", "create", "leaving")
        groups.run("offset", "reset", "leaving", "moving", "earliest", "--broker", "broker-a")
        plan = groups.json("cluster", "drain", "broker-b", "--dry-run")["changes"]
        assert {"broker": "broker-b", "topic": "moving", "permission": "read"} in plan
        wait_until("broker-a knows broker-b", groups.both_are_known)
        partial = groups.run("cluster", "drain", "broker-b", code=Exit.UNHEALTHY)
        assert f"broker-b is not empty: {before['broker-b']} of leaving" in partial.stdout
        send(MESSAGES // 2)  # with the route from before, too
        for endpoint in (groups.first, groups.second.endpoint):
            wait_until("the route is read-only", lambda at=endpoint: permitted(at) == RO)
        after = counts(groups, "moving")
        assert after["broker-b"] == before["broker-b"]
        assert sum(after.values()) == MESSAGES
    created = groups.out("topic", "create", "later", "--queues", "2")
    assert "broker-b  Created topic later: normal, 2 queues, permission: read.\n" in created
    wait_until("the new route is read-only", lambda: permitted(groups.first, "later") == RO)
    groups.run("topic", "alter", "later", "--perm", "rw", "--broker", "broker-b")
    assert permitted(groups.first, "later") == RO
    described = groups.json("cluster", "describe")["groups"]
    assert [(each["broker"], each["drained"]) for each in described] == [
        ("broker-a", False),
        ("broker-b", True),
    ]
    assert "moving" not in groups.out("cluster", "reconcile", "--dry-run")
    consumed(groups.proxy.endpoint, "moving", "leaving")
    told = groups.out("cluster", "drain", "broker-b", "--wait", endpoint=groups.second.endpoint)
    assert told == "broker-b is empty: no group has a lag, and no delayed message waits.\n"
    assert groups.json("cluster", "drain", "broker-b")["empty"]
    refused = groups.run("cluster", "drain", "broker-a", code=Exit.FAILED)
    assert "No other group takes messages of " in refused.stderr
    groups.run("cluster", "drain", "broker-c", code=Exit.USAGE)
    groups.run("cluster", "drain", "broker-b", "--undo")
    permissions = {
        (row["topic"], row["permission"], tuple(row["brokers"]))
        for row in groups.json("topic", "list")
    }
    for topic in ("moving", "later"):
        assert (topic, "read, write", tuple(NAMES)) in permissions
    groups.run("topic", "delete", "later")
    groups.run("topic", "delete", "moving", "--accept-loss")
    groups.run("group", "delete", "leaving")


def test_the_printed_command_completes_what_a_group_that_was_down_missed(
    groups: TwoGroups,
) -> None:
    groups.run("topic", "create", "old")
    groups.second.stop()
    try:
        partial = groups.run("topic", "create", "late", "--queues", "2", code=Exit.FAILED)
        assert "broker-a  Created topic late: normal, 2 queues.\n" in partial.stdout
        assert "broker-b  Failed: " in partial.stdout
        printed = partial.stderr.split("To finish, run: ")[1].splitlines()[0]
        plan = groups.run("topic", "delete", "old", "--dry-run", code=Exit.FAILED)
        assert "groups that lose offsets" in plan.stdout and "is incomplete" in plan.stderr
        listed = groups.run("topic", "list", endpoint=groups.proxy.endpoint, code=Exit.FAILED)
        assert "late" in listed.stdout and "The output is incomplete" in listed.stderr
        deleted = groups.run("topic", "delete", "old", code=Exit.FAILED)
        assert "broker-a  Deleted topic old." in deleted.stdout
        assert "--broker broker-b" in deleted.stderr
    finally:
        groups.second.start()
        wait_until("both groups are known again", groups.both_are_known)
    program, *words = shlex.split(printed)
    assert (program, words[-2:]) == ("cometmq", ["--broker", "broker-b"])
    done = subprocess.run(
        [*cometmq_command(), *words], capture_output=True, text=True, check=False, timeout=START_S
    )
    assert (done.returncode, done.stdout) == (0, "Created topic late: normal, 2 queues.\n")
    rows = {row["topic"]: row["brokers"] for row in groups.json("topic", "list")}
    assert (rows["late"], rows["old"]) == (NAMES, ["broker-b"])
    groups.run("topic", "delete", "old")


def test_a_group_that_stays_down_after_a_restart_is_named_until_it_is_forgotten(
    groups: TwoGroups,
) -> None:
    groups.run("topic", "create", "far", "--broker", "broker-b")
    namesrv = ("--namesrv", f"127.0.0.1:{groups.cluster.node('single').ports['namesrv']}")

    def forget(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        words = ("cluster", "forget", "broker-b", *namesrv, *words)
        done = groups.cluster.run(*words, "--data", str(groups.cluster.data), check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    assert "has a live replica: stop its brokers first" in forget(code=Exit.FAILED).stderr
    groups.second.stop()
    groups.cluster.kill9("single")
    groups.cluster.restart("single")
    groups.first = groups.cluster.address("single")
    try:
        for words in (
            ("topic", "describe", "far"),
            ("message", "send", "far", "x"),
            ("message", "tail", "far", "--count", "1"),
            ("message", "get", "far", "0", "0"),
        ):
            told = groups.run(*words, code=None)
            assert told.returncode not in (Exit.DONE, Exit.NOT_FOUND), (words, told.stdout)
            text = told.stdout + told.stderr
            assert "broker-b" in text and "cluster forget" in text, (words, text)
        way = groups.cluster.run("doctor", "connect", groups.first, "--topic", "far", check=False)
        assert way.returncode == Exit.PROBLEMS and "broker group broker-b is not up" in way.stdout
        listed = groups.run("topic", "list", code=Exit.FAILED)
        assert "broker-b: broker group broker-b is not up. Start it, or" in listed.stderr
        status = groups.cluster.run(
            "ha", "status", *namesrv, "--data", str(groups.cluster.data), check=False
        )
        assert status.returncode == Exit.UNHEALTHY
        assert "no replica has registered: start the group" in status.stdout
        plan = forget("--dry-run").stdout
        assert "none" in plan
        assert forget().stdout.endswith("Removed broker-b from 1 nameservers.\n")
        assert "No nameserver knows the broker group broker-b" in forget(code=Exit.NOT_FOUND).stderr
        wait_until(
            "the topic does not exist",
            lambda: groups.run("topic", "describe", "far", code=None).returncode == Exit.NOT_FOUND,
        )
    finally:
        groups.second.start()
        wait_until("both groups are known again", groups.both_are_known)
    groups.run("topic", "delete", "far", code=None)


def test_the_first_user_is_created_in_every_group(tmp_path: Path) -> None:
    switched_on = {
        "COMETMQ_AUTHENTICATION_ENABLED": "true",
        "COMETMQ_AUTHORIZATION_ENABLED": "true",
    }
    keys = {"COMETMQ_ACCESS_KEY": "admin", "COMETMQ_SECRET_KEY": "admin-secret"}
    with two_groups(tmp_path, env=switched_on, proxy=False) as secured:
        assert "username cannot be null" in secured.run("topic", "list", code=1).stderr
        told = secured.out("auth", "init", "--secret", "admin-secret")
        assert told.splitlines() == [f"{name}  Created user admin (Super)." for name in NAMES]
        os.environ.update(keys)
        try:
            (row,) = secured.json("user", "list", endpoint=secured.second.endpoint)
            assert (row["user"], row["brokers"]) == ("admin", NAMES)
            secured.run("topic", "create", "orders")
            secured.run("user", "create", "worker", "--secret", "worker-secret")
            os.environ.update(COMETMQ_ACCESS_KEY="worker", COMETMQ_SECRET_KEY="worker-secret")
            denied = secured.run("topic", "create", "more", code=Exit.FAILED)
            assert "has no permission to access Cluster:" in denied.stderr
        finally:
            for name in keys:
                del os.environ[name]


def test_rows_that_differ_between_groups_stay_apart() -> None:
    here, there = (
        [{"topic": "b", "queues": 1}, {"topic": "a", "queues": 1}],
        [
            {"topic": "a", "queues": 2},
            {"topic": "b", "queues": 1},
        ],
    )
    assert merged([("x", here), ("y", there)]) == [
        {"topic": "a", "queues": 1, "brokers": ["x"]},
        {"topic": "a", "queues": 2, "brokers": ["y"]},
        {"topic": "b", "queues": 1, "brokers": ["x", "y"]},
    ]
    assert merged([("", here)]) == here, "a cluster of one group"


def test_the_finishing_command_is_the_running_one_for_the_failed_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["cometmq", "offset", "reset", "g", "t", "-1h", "--broker", "a", "--broker=b", "--yes"]
    monkeypatch.setattr(sys, "argv", words)
    lost: Outcome[object] = Outcome("b", error=CliError("unreachable"))
    absent: Outcome[object] = Outcome("c", error=CliError("no topic", Exit.NOT_FOUND))
    done: Outcome[object] = Outcome("a", answer="done")
    with pytest.raises(CliError) as raised:
        finish([done, lost, absent], again=Again(replaced={"-1h": "1700000000000"}))
    first, command, hint = str(raised.value).splitlines()
    assert first == "2 of 3 broker groups failed."
    assert command == "To finish, run: cometmq offset reset g t 1700000000000 --yes --broker b"
    assert "cometmq cluster reconcile" in hint
    finish([done])
