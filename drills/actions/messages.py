"""Drills 30-33 and 37: topics, offsets, timers, transactions and consumers across a failover."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import grpc

from ...client import sync
from ...client.errors import CometError
from ...client.transactions import Resolution
from ...proto import paths, v1, v2
from .. import ask, history
from ..stage import READERS, TOPIC, Stage
from ..wire import normal_message
from .moves import quiet

DELAYED, HALVES = "drill-delayed", "drill-halves"


def topic_then_kill(s: Stage) -> None:
    """30: create a topic, send to it, and kill the leader at the OK."""
    s.load()
    s.more_acks(100)
    for number in range(3):
        name = f"young-{number}"
        leader = s.plant.wait_leader()
        address = s.plant.client_address(leader, direct=True)
        s.retry("create the topic", partial(ask.create_topic, address, name, kind=v2.NORMAL))
        s.plant.wait_in_sync(len(s.plant.brokers))
        sent = s.retry("send", partial(_send, address, name))
        s.plant.kill(leader)
        now = s.plant.wait_leader(but=leader)
        seen = s.plant.wait("the topic", partial(_describe, s, now, name), 15.0)
        offsets = sum(queue.max_offset for queue in seen.queues)
        s.check(f"{name} exists with its message", offsets >= 1, f"{sent.code} {offsets}")
        s.plant.start_node(leader)
        s.plant.wait_in_sync(2)
    s.finish()


class _Sent:
    def __init__(self, code: int) -> None:
        self.code = code


def _send(address: str, topic: str, *, body: bytes = b"x", delay_s: float = 0.0) -> _Sent:

    message = normal_message(topic, f"01{time.monotonic_ns():032X}", body)
    if delay_s:
        message.system_properties.message_type = v2.DELAY
        due_ms = int((time.time() + delay_s) * 1000)
        message.system_properties.delivery_timestamp.FromMilliseconds(due_ms)
    request = v2.SendMessageRequest(messages=[message])
    answer = ask.call(address, paths.SEND_MESSAGE, request, v2.SendMessageResponse, 5.0)
    return _Sent(answer.status.code)


def _describe(s: Stage, name: str, topic: str) -> v1.DescribeTopicResponse | None:
    address = s.plant.client_address(name, direct=True)
    found: v1.DescribeTopicResponse | None = ask.quietly(
        address, paths.DESCRIBE_TOPIC, v1.DescribeTopicRequest(name=topic), v1.DescribeTopicResponse
    )
    there = found is not None and sum(queue.max_offset for queue in found.queues) >= 1
    return found if there else None


def offsets_survive(s: Stage) -> None:
    """31: consume with commits, kill the leader: few duplicates, nothing skipped."""
    s.load()
    s.more_acks(400)
    quiet(s, 1.0)
    leader = s.plant.wait_leader()
    s.plant.wait_in_sync(len(s.plant.brokers))
    s.plant.kill(leader)
    at = time.monotonic()
    s.plant.wait_leader(but=leader)
    s.more_acks(400)
    quiet(s, 1.0)
    s.finish()
    old = _again(s, at)
    s.check("what was acknowledged 1.5 s before the kill does not come again", not old, old[:5])


def _again(s: Stage, kill_s: float) -> list[str]:
    """Return messages acknowledged well before the kill and delivered again after it."""
    done: dict[str, float] = {}
    again = []
    for path in s.histories:
        for event in history.read(path):
            if event["e"] == "done":
                done.setdefault(event["id"], event["t"])
            elif event["e"] == "got" and event["t"] > kill_s > done.get(event["id"], kill_s) + 1.5:
                again.append(event["id"])
    return again


def delayed_survive(s: Stage) -> None:
    """32: delayed messages become due during a failover."""
    s.load()
    leader = s.plant.wait_leader()
    address = s.plant.client_address(leader, direct=True)
    s.retry("create the topic", lambda: ask.create_topic(address, DELAYED, kind=v2.DELAY))
    sent = [f"d{number}" for number in range(40)]
    begin = time.monotonic()
    for number, body in enumerate(sent):
        delay_s = 3.0 + number * 0.05
        s.retry("send", partial(_send, address, DELAYED, body=body.encode(), delay_s=delay_s))
    s.plant.wait_in_sync(2)
    quiet(s, max(0.0, 3.5 - (time.monotonic() - begin)))
    s.plant.kill(leader)
    s.plant.wait_leader(but=leader)
    s.more_acks(100)
    got = _consume(s, DELAYED, set(sent))
    s.check("every delayed message was delivered", got >= set(sent), sorted(set(sent) - got)[:5])
    s.finish()


def _consume(s: Stage, topic: str, wanted: set[str], seconds: float = 40.0) -> set[str]:
    """Receive through all replicas until every wanted message has arrived."""
    got: set[str] = set()
    group = f"{READERS}-{topic}"
    with sync.SimpleConsumer(s.plant.endpoints, group=group, topics=topic, wait=2.0) as client:
        end = time.monotonic() + seconds
        while not got >= wanted and time.monotonic() < end:
            try:
                some = client.receive(invisible_for=20.0)
                client.ack_all(some)
            except CometError:
                continue
            got.update(one.body.decode().split("|")[0] for one in some)
    return got


def halves_survive(s: Stage) -> None:
    """33: half messages, and a failover between prepare and commit."""
    s.load()
    leader = s.plant.wait_leader()
    address = s.plant.client_address(leader, direct=True)
    s.retry("create the topic", lambda: ask.create_topic(address, HALVES, kind=v2.TRANSACTION))
    with sync.TransactionProducer(
        s.plant.endpoints, topics=[HALVES], checker=lambda _: Resolution.COMMIT, timeout=60.0
    ) as producer:
        for number in range(5):
            producer.transaction(HALVES, b"c%d" % number).commit()
            producer.transaction(HALVES, b"r%d" % number).rollback()
            producer.transaction(HALVES, b"h%d" % number)  # left to the broker's check
        quiet(s, 0.5)  # op messages are written in batches, here every 200 ms
        s.plant.wait_in_sync(len(s.plant.brokers))
        s.plant.kill(leader)
        s.plant.wait_leader(but=leader)
        s.more_acks(100)
        wanted = {f"{kind}{number}" for kind in "ch" for number in range(5)}
        got = _consume(s, HALVES, wanted)
        s.check("the committed and the checked ones came", got >= wanted, sorted(wanted - got))
        rolled = {body for body in got if body.startswith("r")}
        s.check("nothing that was rolled back came", not rolled, rolled)
    s.compare_ends = False  # the leader writes half messages again if their producer is gone
    s.finish()


def readers_without_leader(s: Stage) -> None:
    """37: no leader and no candidate: consumers drain, producers get a clear error."""
    s.load()
    s.more_acks(300)
    leader, follower = s.plant.wait_leader(), s.plant.followers()[0]
    s.plant.kill("ns0")
    s.plant.kill(leader)
    quiet(s, 0.5, leases=2)
    s.check("no acknowledged send", s.acks_within(1.0) == 0)
    code = _refusal(s, follower)
    s.check("a clear error for producers", code in (v2.HA_NOT_AVAILABLE, 0), code)
    wanted = len(set(_acknowledged(s.histories)))
    counter = history.Counter("got")
    s.plant.wait(
        "readers drain from the follower", lambda: counter.poll(s.histories) >= wanted * 0.98, 30.0
    )
    s.plant.start_node("ns0")
    s.plant.start_node(leader)
    s.plant.wait_in_sync(2)
    s.more_acks(100)
    s.finish()


def _acknowledged(paths_: list[Path]) -> list[str]:
    return [event["id"] for path in paths_ for event in history.read(path) if event["e"] == "ok"]


def _refusal(s: Stage, name: str) -> int:
    """Return the code of a send without a leader; 0 if it was held until the deadline."""
    try:
        return _send(s.plant.client_address(name, direct=True), TOPIC).code
    except grpc.RpcError:
        return 0
