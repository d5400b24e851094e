"""`cometmq doctor connect` as a process: it names the first broken leg and its cure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from cometmq.tests.harness.cluster import Cluster, temporary

LEGS = [
    *("name", "tcp", "protocol", "broker", "topic", "route"),
    *("addresses", "telemetry", "send", "receive"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with temporary("--single") as found:
        yield found


def connect(cluster: Cluster, *words: str, code: int) -> Any:
    done = cluster.run("doctor", "connect", *words, "-o", "json", check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


def test_every_leg_of_a_good_way_is_checked_and_nothing_is_left(cluster: Cluster) -> None:
    found = connect(cluster, cluster.endpoints, code=0)
    assert [row["leg"] for row in found["legs"]] == LEGS
    assert {row["result"] for row in found["legs"]} == {"good"}
    assert found["cure"] is None
    for noun in ("topic", "group"):
        listed = cluster.run(noun, "list", "--endpoint", cluster.endpoints).stdout
        assert "cometmq-doctor" not in listed
    told = cluster.run("doctor", "connect", cluster.endpoints).stdout
    assert told.endswith("The way is good.\n")


def test_the_first_broken_leg_is_named(cluster: Cluster) -> None:
    ports = cluster.node("single").ports

    def broken(*words: str) -> tuple[str, str]:
        found = connect(cluster, *words, code=5)
        *before, last = found["legs"]
        assert {row["result"] for row in before} <= {"good"}
        assert last["result"] == "broken"
        return last["leg"], found["cure"]

    cases: list[tuple[tuple[str, ...], str, str]] = [
        (("a..b:8081",), "name", "DNS"),
        (("127.0.0.1:1",), "tcp", "start the broker"),
        ((f"127.0.0.1:{ports['metrics']}",), "protocol", "client port (8081)"),
        ((f"127.0.0.1:{ports['client']}", "--tls"), "protocol", "tls"),
        ((f"127.0.0.1:{ports['namesrv']}",), "broker", "client port"),
        ((f"127.0.0.1:{ports['client']}", "--topic", "absent"), "topic", "Create the topic"),
    ]
    for words, leg, cure in cases:
        found_leg, found_cure = broken(*words)
        assert found_leg == leg, words
        assert cure.lower() in found_cure.lower()
    done = cluster.run("doctor", "connect", "127.0.0.1", check=False)
    assert done.returncode == 2
    assert "must be HOST:PORT" in done.stderr


def test_an_advertised_address_that_is_not_reached_is_diagnosed(
    new_cluster: Callable[..., Cluster],
) -> None:
    cluster = new_cluster("--single", env={"COMETMQ_ADVERTISE": "127.0.0.1:1"})
    found = connect(cluster, cluster.endpoints, code=5)
    assert found["legs"][-1]["leg"] == "addresses"
    assert "127.0.0.1:1" in found["legs"][-1]["found"]
    assert "advertise=HOST:PORT" in found["cure"]


def test_another_server_at_an_advertised_address_is_diagnosed(
    new_cluster: Callable[..., Cluster],
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{other.server_port}"
        cluster = new_cluster("--single", env={"COMETMQ_ADVERTISE": address})
        found = connect(cluster, cluster.endpoints, code=5)
        other.shutdown()
    assert found["legs"][-1]["leg"] == "addresses"
    assert f"{address} (another server" in found["legs"][-1]["found"]
