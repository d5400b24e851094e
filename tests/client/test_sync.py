"""Blocking clients: threads, the shared event loop, forks."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

import cometmq
from cometmq.tests.harness.cluster import Cluster

from .conftest import Make

WAIT_S = 60.0
MANY = 12

FORK = """
import os, sys, cometmq
from cometmq.client.errors import Forked

endpoints, topic = sys.argv[1:]
producer = cometmq.sync.Producer(endpoints).start()
producer.send(topic, b"before")
child = os.fork()
if child == 0:
    raised_forked = 0
    try:
        producer.send(topic, b"child")
    except Forked:
        raised_forked += 1
    producer.close()
    try:
        cometmq.sync.Producer(endpoints).start()
    except Forked:
        raised_forked += 1
    os._exit(raised_forked)
_, status = os.waitpid(child, 0)
producer.send(topic, b"after")
producer.close()
print(os.waitstatus_to_exitcode(status))
"""


def test_clients_raise_forked_in_a_child(shared_cluster: Cluster, new_topic: Make) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, shared_cluster.endpoints, new_topic()],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.stdout.strip() == "2", done.stderr


def test_concurrency_many_blocking_handlers_run_at_once(
    shared_cluster: Cluster, new_topic: Make, new_group: Make
) -> None:
    topic, group = new_topic(), new_group()
    together = threading.Barrier(MANY, timeout=WAIT_S)
    done = threading.Semaphore(0)

    def handle(_: cometmq.Message) -> None:
        together.wait()
        done.release()

    with (
        cometmq.sync.Producer(shared_cluster.endpoints) as producer,
        cometmq.sync.PushConsumer(
            shared_cluster.endpoints, handle, group=group, topics=topic, concurrency=MANY
        ),
    ):
        producer.send_many(topic, [b"x"] * MANY)
        for _ in range(MANY):
            assert done.acquire(timeout=WAIT_S)


def test_a_blocking_call_on_the_shared_loop_raises_runtime_error(
    shared_cluster: Cluster, new_topic: Make, new_group: Make
) -> None:
    topic, group = new_topic(), new_group()
    raised: list[BaseException] = []
    done = threading.Event()
    with cometmq.sync.Producer(shared_cluster.endpoints) as producer:

        async def handle(_: cometmq.Message) -> None:
            try:
                producer.send(topic, b"deadlock")
            except RuntimeError as error:
                raised.append(error)
            done.set()

        with cometmq.sync.PushConsumer(shared_cluster.endpoints, handle, group=group, topics=topic):
            producer.send(topic, b"x")
            assert done.wait(WAIT_S)
    assert "its own event loop" in str(raised[0])


def test_a_blocking_checker_does_not_stop_the_shared_loop(
    shared_cluster: Cluster, new_topic: Make, new_group: Make
) -> None:
    topic, group = new_topic(kind="transaction"), new_group()
    other = new_topic()

    def check(_: cometmq.Message) -> cometmq.Resolution:
        producer.send(other, b"asked")  # blocks until the loop has sent it
        return cometmq.Resolution.COMMIT

    with (
        cometmq.sync.TransactionProducer(
            shared_cluster.endpoints, topics=[topic], checker=check
        ) as transactions,
        cometmq.sync.Producer(shared_cluster.endpoints) as producer,
        cometmq.sync.SimpleConsumer(
            shared_cluster.endpoints, group=group, topics=topic
        ) as consumer,
    ):
        transactions.transaction(topic, b"left")
        assert [one.body for one in consumer.receive(wait=20)] == [b"left"]
        assert len(transactions.send_many(other, [b"a", b"b"])) == 2, "all that a producer can"


def test_a_blocking_pull_consumer_assigns_queues(
    shared_cluster: Cluster, new_topic: Make, new_group: Make
) -> None:
    topic, group = new_topic(queues=2), new_group()
    with cometmq.sync.PullConsumer(shared_cluster.endpoints, group=group, topics=topic) as consumer:
        first = consumer.queues[0]
        consumer.assign([first])
        assert consumer.queues == [first]


def test_a_second_start_is_refused(shared_cluster: Cluster) -> None:
    with (
        cometmq.sync.Producer(shared_cluster.endpoints) as producer,
        pytest.raises(RuntimeError, match="already started"),
    ):
        producer.start()


def test_the_shared_loop_ends_with_its_last_client(
    shared_cluster: Cluster, new_topic: Make
) -> None:
    topic = new_topic()

    def threads() -> int:
        return sum(thread.name == "cometmq-sync" for thread in threading.enumerate())

    before = threads()
    with cometmq.sync.Producer(shared_cluster.endpoints) as outer:
        with cometmq.sync.Producer(shared_cluster.endpoints) as inner:
            inner.send(topic, b"x")
        outer.send(topic, b"x")
        assert threads() == 1
    assert threads() == before
    with pytest.raises(cometmq.errors.Closed):
        outer.send(topic, b"x")
    with outer:
        outer.send(topic, b"again")
