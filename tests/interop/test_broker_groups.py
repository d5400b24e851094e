"""The official Python client on `cometmq up --groups 2 --replicas 2 --nameservers 3` and a proxy.

One cluster of seven processes for the file. The processes that a test kills are restarted in it.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cometmq.operations.connection import Connection
from cometmq.operations.errors import CliError, Exit
from cometmq.operations.links import Links
from cometmq.proto import paths, v1, v2
from cometmq.tests.cli.two_groups import Server
from cometmq.tests.harness.cluster import Cluster, wait_until
from cometmq.tests.harness.official import Official
from cometmq.tests.harness.official_program import OfficialProgram

pytestmark = pytest.mark.timeout(1800)

GROUPS = ["broker-a", "broker-b"]
REPLICAS = ["master", "slave", "master-b", "slave-b"]
SHAPE = ("--groups", "2", "--replicas", "2", "--nameservers", "3")
MESSAGES = 40
STEP = 100
WAIT_S = 120.0


class Groups:
    """The cluster, and a proxy in front of it."""

    def __init__(self, cluster: Cluster, proxy: Server) -> None:
        self.cluster, self.proxy = cluster, proxy

    def doors(self) -> dict[str, str]:
        """The endpoints of every node that clients may use, by name."""
        nodes = {name: self.cluster.address(name) for name in REPLICAS}
        return {**nodes, "proxy": self.proxy.endpoint}

    def json(self, *words: str) -> Any:
        """The document that a command prints."""
        return json.loads(self.run(*words, "-o", "json").stdout)

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command that finds the cluster by its data directory."""
        return self.cluster.run(*words, "--data", str(self.cluster.data), check=check)

    def create(self, topic: str, door: str) -> None:
        """Create a topic through one node; return when every node routes to both groups."""
        done = self.cluster.run("topic", "create", topic, "--queues", "2", "--endpoint", door)
        assert done.stdout == "".join(
            f"{name}  Created topic {topic}: normal, 2 queues.\n" for name in GROUPS
        )
        self.wait_routed(topic)

    def wait_routed(self, topic: str) -> None:
        """Return when every node routes a topic to both groups."""
        for name, at in self.doors().items():
            wait_until(f"{name} routes to both", lambda at=at: routed(at, topic) == GROUPS, WAIT_S)

    def used(self, topic: str) -> set[str]:
        """The groups that have messages of a topic."""
        queues = self.json("topic", "describe", topic)["queues"]
        return {queue["broker"] for queue in queues if queue["messages"]}

    def wait_whole(self) -> None:
        """Return when every process serves and every group has a leader and two replicas in sync.

        Every node, too, reaches both leaders.
        """
        wait_until("every process serves", self._is_whole, WAIT_S)
        for at in self.doors().values():
            wait_until("both leaders are known", lambda at=at: reaches_both(at), WAIT_S)

    def ended(self) -> int:
        """The number of processes that have ended."""
        done = self.run("up", "status", "-o", "json", check=False)
        assert done.returncode in (Exit.DONE, Exit.UNHEALTHY), done.stdout + done.stderr
        return [row["state"] for row in json.loads(done.stdout)["processes"]].count("ended")

    def _is_whole(self) -> bool:
        done = self.run("up", "status", "-o", "json", check=False)
        if done.returncode:
            return False
        rows = json.loads(done.stdout)["processes"]
        leaders = [row["group"] for row in rows if row["role"] == "leader"]
        return sorted(leaders) == GROUPS and all(row["state"] == "serving" for row in rows)


def routed(endpoint: str, topic: str) -> list[str]:
    """The broker groups of a topic's route, as a node gives it."""
    request = v2.QueryRouteRequest(topic=v2.Resource(name=topic))
    with Connection(endpoint, Links()) as connection:
        answer = connection.call(paths.QUERY_ROUTE, request, v2.QueryRouteResponse)
    return sorted({queue.broker.name for queue in answer.message_queues})


def reaches_both(endpoint: str) -> bool:
    """Return whether a node forwards to the leaders of both groups."""
    with Connection(endpoint, Links()) as connection:
        for name in GROUPS:
            request = v1.ListTopicsRequest(broker=name)
            try:
                connection.call(paths.LIST_TOPICS, request, v1.ListTopicsResponse)
            except CliError:
                return False
    return True


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Groups]:
    folder = tmp_path_factory.mktemp("groups")
    cluster = Cluster(folder / "data", *SHAPE, controller=True, segment_size=1 << 20)
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start(WAIT_S)
        nameservers = ";".join(
            f"127.0.0.1:{node.ports['namesrv']}"
            for node in cluster.nodes()
            if node.role == "nameserver"
        )
        token = (cluster.data / "cluster-token").read_text().strip()
        (folder / "proxy").mkdir()
        words = ["proxy", "--namesrv-addr", nameservers]
        proxy = Server(folder / "proxy", words, {"COMETMQ_CLUSTER_TOKEN": token})
        stack.callback(proxy.stop)
        proxy.start()
        found = Groups(cluster, proxy)
        found.wait_whole()
        yield found


def test_a_client_of_any_one_node_uses_both_groups(
    groups: Groups, start_agent: Callable[[str, str], Official]
) -> None:
    topics = {door: f"created-by-{door}" for door in groups.doors()}
    for door, topic in topics.items():
        groups.create(topic, groups.doors()[door])
    sent: set[str] = set()
    for name, at in groups.doors().items():
        producer = start_agent("official", at)
        producer.call("producer", topics=list(topics.values()))
        bodies = [f"{name} {number}" for number in range(MESSAGES)]
        for topic in topics.values():
            producer.call("send_many", topic=topic, bodies=bodies)
        sent |= set(bodies)
    assert [groups.used(topic) for topic in topics.values()] == [set(GROUPS)] * len(topics)
    for name, at in groups.doors().items():
        consumer = start_agent("sdk" if name == "slave" else "official", at)
        # Another node created the topic.
        topic = topics["proxy" if name != "proxy" else "slave-b"]
        consumer.call("push", group=f"readers-at-{name}", topics={topic: "*"})
        wait_until(f"all messages at {name}", lambda c=consumer: bodies_at(c) >= sent, WAIT_S)
        assert bodies_at(consumer) == sent


def bodies_at(consumer: Official) -> set[str]:
    """The bodies that a push consumer has received."""
    return {one["body"] for one in consumer.call("pushed")}


def test_a_create_without_one_group_is_completed_by_the_printed_command(
    groups: Groups, start_agent: Callable[[str, str], Official]
) -> None:
    for name in ("master-b", "slave-b"):
        groups.cluster.kill9(name)
    wait_until("both replicas have ended", lambda: groups.ended() == 2, WAIT_S)
    printed = {
        door: create_partially(groups, f"without-b-{door}", door) for door in ("master", "proxy")
    }
    for name in ("master-b", "slave-b"):
        groups.cluster.restart(name, WAIT_S)
    groups.wait_whole()
    for door, command in printed.items():
        topic = f"without-b-{door}"
        program, *words = shlex.split(command)
        assert (program, words[-2:]) == ("cometmq", ["--broker", "broker-b"])
        assert groups.cluster.run(*words).stdout == f"Created topic {topic}: normal, 2 queues.\n"
        groups.wait_routed(topic)
        producer = start_agent("official", groups.doors()[door])
        producer.call("producer", topics=[topic])
        producer.call("send_many", topic=topic, bodies=[f"{n}" for n in range(MESSAGES)])
        assert groups.used(topic) == set(GROUPS)


def create_partially(groups: Groups, topic: str, door: str) -> str:
    """Create a topic while broker-b is down; return the printed command that finishes it."""
    done = groups.cluster.run(
        *("topic", "create", topic, "--queues", "2", "--endpoint", groups.doors()[door]),
        check=False,
    )
    assert done.returncode == Exit.FAILED, done.stdout + done.stderr
    assert f"broker-a  Created topic {topic}: normal, 2 queues.\n" in done.stdout
    assert "broker-b  Failed: " in done.stdout
    assert "1 of 2 broker groups failed." in done.stderr
    return done.stderr.split("To finish, run: ")[1].splitlines()[0]


def test_message_groups_keep_their_order_and_transactions_end_through_any_node(
    groups: Groups, start_agent: Callable[[str, str], Official]
) -> None:
    create = groups.cluster.create_topic
    ordered = create("ordered", kind="fifo", queues=2)
    transactions = create("ends", kind="transaction", queues=2)
    readers = groups.cluster.create_group("ordered-readers", order=True)
    for topic in (ordered, transactions):
        groups.wait_routed(topic)
    names = [f"group {number}" for number in range(8)]
    numbers = [f"{number}" for number in range(5)]
    committed = set()
    for door, at in groups.doors().items():
        producer = start_agent("official", at)
        producer.call("producer", topics=[ordered, transactions])
        for end in ("commit", "rollback") * 2:  # one of each for either group
            done = producer.call("transact", end=end, topic=transactions, body=door)
            committed |= {done} if end == "commit" else set()
    for name in names:
        for number in numbers:
            producer.call("send", topic=ordered, body=number, group=name)
    assert groups.used(ordered) == groups.used(transactions) == set(GROUPS)
    consumer = start_agent("official", groups.cluster.address("slave"))
    consumer.call("push", group=readers, topics={ordered: "*"}, name="ordered")
    consumer.call("push", group="end-readers", topics={transactions: "*"}, name="ends")

    def pushed(name: str) -> list[dict[str, Any]]:
        return list(consumer.call("pushed", name=name))

    wait_until("ordered", lambda: len(pushed("ordered")) >= len(names) * len(numbers), WAIT_S)
    wait_until("committed", lambda: {one["id"] for one in pushed("ends")} >= committed, WAIT_S)
    found = pushed("ordered")
    assert {name: [one["body"] for one in found if one["group"] == name] for name in names} == (
        dict.fromkeys(names, numbers)
    )
    assert {one["id"] for one in pushed("ends")} == committed


def test_every_process_is_killed_in_turn_and_nothing_is_lost(
    groups: Groups, tmp_path: Path
) -> None:
    topic, group = "killed-in-turn", "killed-in-turn-readers"
    groups.create(topic, groups.doors()["proxy"])
    groups.cluster.create_group(group)
    doors = groups.cluster.endpoints
    with ExitStack() as stack:
        producer, consumer = (
            stack.enter_context(OfficialProgram(tmp_path / role, role, doors, topic, *words))
            for role, *words in (("producer", "0", "1000000"), ("consumer", group))
        )
        victims = [node.name for node in groups.cluster.nodes()]
        assert sorted(victims) == sorted([*REPLICAS, "namesrv", "namesrv-2", "namesrv-3"])
        for victim in [*victims, "the proxy"]:
            sends, deliveries = producer.seen("acknowledged"), consumer.seen("received")
            if victim == "the proxy":
                groups.proxy.kill9()
            else:
                groups.cluster.kill9(victim)
            # New messages are acknowledged and received while the process is down.
            wait_until(
                f"sends without {victim}",
                lambda before=sends: len(producer.seen("acknowledged") - before) >= STEP,
                WAIT_S,
            )
            wait_until(
                f"deliveries without {victim}",
                lambda before=deliveries: len(consumer.seen("received") - before) >= STEP,
                WAIT_S,
            )
            if victim == "the proxy":
                groups.proxy.start()
            else:
                groups.cluster.restart(victim, WAIT_S)
            groups.wait_whole()
        producer.close()
        wait_until(
            "every acknowledged message is received",
            lambda: consumer.seen("received") >= producer.seen("acknowledged"),
            WAIT_S,
        )
