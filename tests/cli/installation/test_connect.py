"""`cometmq doctor connect` as a process: it names the first broken leg and its cure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import grpc
import pytest

from cometmq.tests.harness.cluster import Cluster, temporary
from cometmq.tests.harness.relay import Relay

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


@contextmanager
def http_server() -> Iterator[int]:
    """Run an HTTP/1 server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@contextmanager
def grpc_server() -> Iterator[int]:
    """Run a server of HTTP/2 without CometMQ's services."""
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield port
    server.stop(0).wait()


@contextmanager
def relay_in_thread() -> Iterator[tuple[Relay, str]]:
    """Run a relay; yield it and its address, which accepts no connection afterwards."""
    loop, relay = asyncio.new_event_loop(), Relay(0)
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        address = asyncio.run_coroutine_threadsafe(relay.start(), loop).result()
        yield relay, address
        asyncio.run_coroutine_threadsafe(relay.stop(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.timeout(900)
def test_what_answers_at_an_advertised_address_instead_of_the_broker_is_named(
    cluster: Cluster, new_cluster: Callable[..., Cluster]
) -> None:
    def broken(what: str, *words: str) -> None:
        found = connect(misled, misled.endpoints, *words, code=5)
        assert found["legs"][-1]["leg"] == "addresses", found
        told = found["legs"][-1]["found"]
        assert address in told
        assert what in told
        assert "advertise=HOST:PORT" in found["cure"]
        assert "ha status" not in found["cure"]

    with relay_in_thread() as (relay, address), http_server() as http, grpc_server() as other:
        misled = new_cluster("--single", env={"COMETMQ_ADVERTISE": address})
        relay.to = misled.node("single").ports["client"]
        for one in (misled, cluster):
            one.run("topic", "create", "in-both", "--endpoint", one.address("single"))
        for topic in ((), ("--topic", "in-both")):
            connect(misled, misled.endpoints, *topic, code=0)
        for port, what in (
            (http, "it does not speak HTTP/2"),
            (other, "no broker or proxy"),
            (misled.node("single").ports["namesrv"], "no broker or proxy"),
            (cluster.node("single").ports["client"], "it belongs to another cluster"),
        ):
            relay.to = port
            broken(what)
        # The topic, the group name and the cluster name are those of the other cluster too.
        broken("it belongs to another cluster", "--topic", "in-both")
    broken("Connection refused")
