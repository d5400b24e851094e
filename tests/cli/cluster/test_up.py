"""`cometmq up` with real processes: ready, used, killed, restarted, stopped. Ephemeral ports
only."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cometmq.operations.connection import Connection
from cometmq.operations.links import Links
from cometmq.proto import paths, v2
from cometmq.proto.native import is_available
from cometmq.tests.harness.cluster import Cluster, ClusterError, cometmq_command, wait_until

WAIT_S = 60.0
NewCluster = Callable[..., Cluster]
# Small segments: a recovery reads one, and these tests are about processes.
SMALL = {"COMETMQ_MAPPED_FILE_SIZE_COMMIT_LOG": str(16 << 20)}


def gone(pids: list[int]) -> bool:
    return not any(_runs(pid) for pid in pids)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True)
    file.write_text(text)


def json_of(cluster: Cluster, *arguments: str) -> Any:
    endpoint = cluster.address("master")
    return json.loads(cluster.run(*arguments, "--endpoint", endpoint, "-o", "json").stdout)


def test_the_ready_file_lists_endpoints_and_processes(shared_cluster: Cluster) -> None:
    ready = shared_cluster.ready()
    nodes = {node.name: node for node in shared_cluster.nodes()}
    assert {name: node.role for name, node in nodes.items()} == {
        "namesrv": "nameserver",
        "master": "master",
        "slave": "slave",
    }
    assert ready["endpoints"] == ";".join(
        f"127.0.0.1:{nodes[name].ports['client']}" for name in ("master", "slave")
    )
    assert set(nodes["namesrv"].ports) == {"namesrv", "namesrv_metrics"}
    assert set(nodes["master"].ports) == {"client", "ha", "metrics"}
    for node in nodes.values():
        assert _runs(node.pid)
        assert (node.data / "log").is_dir()
        assert node.command[-2:] != []
    assert (nodes["master"].data / "broker.conf").exists()
    assert (nodes["master"].data / "store" / "commitlog").is_dir()


def test_the_banner_shows_addresses_and_durability(shared_cluster: Cluster) -> None:
    def text() -> str:
        return shared_cluster.log_file.read_text()

    wait_until("the banner is there", lambda: "Ctrl-C" in text(), WAIT_S)
    for words in (shared_cluster.endpoints, "sync replication", "in sync"):
        assert words in text()
    # The native door speaks TLS on the same port: clients connect with their default settings.
    native = is_available()
    assert ("enableSsl(false)" in text()) != native
    assert ("native (TLS and plaintext)" in text()) == native


def test_every_process_is_healthy(shared_cluster: Cluster) -> None:
    ports = [shared_cluster.node(name).ports for name in ("namesrv", "master", "slave")]
    for port in (ports[0]["namesrv"], ports[1]["client"], ports[2]["client"]):
        assert shared_cluster.run("healthcheck", "--endpoint", f"127.0.0.1:{port}").returncode == 0


def open_paths(root: Path) -> list[str]:
    """Paths that the group or others may use, as `find ROOT -perm /077` prints them."""
    found = [root, *root.rglob("*")]
    return [str(path) for path in found if path.lstat().st_mode & 0o077 and not path.is_symlink()]


def test_files_are_private(shared_cluster: Cluster) -> None:
    topic = shared_cluster.create_topic("cli-private")
    shared_cluster.run(
        *("message", "send", topic, "text", "--key", "k"),
        *("--endpoint", shared_cluster.address("master")),
    )
    master = shared_cluster.node("master").data
    wait_until("topics.json", (master / "store" / "config" / "topics.json").exists, WAIT_S)
    for path in master.parent.iterdir():
        if path != shared_cluster.log_file:  # the test's own file
            assert open_paths(path) == []


def test_the_group_reads_a_store_with_mode_0640(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(0o755)
    (tmp_path / "broker.conf").write_text(
        f"storePathRootDir={store}\nstoreFileMode=0640\ngrpcServerPort=0\nhaListenPort=0\n"
        "metricsPromExporterPort=0\nmappedFileSizeCommitLog=1048576\nbindAddress=127.0.0.1\n"
    )
    command = [*cometmq_command(), "broker", "-c", str(tmp_path / "broker.conf")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until("the checkpoint", (store / "checkpoint").exists, WAIT_S)
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()
    modes: dict[bool, set[str]] = {True: set(), False: set()}
    for path in (store, *store.rglob("*")):
        modes[path.is_dir()].add(oct(path.stat().st_mode & 0o777))
    assert modes == {True: {"0o750"}, False: {"0o640"}}


def test_topics_are_created_listed_and_described(shared_cluster: Cluster) -> None:
    made = json_of(shared_cluster, "topic", "create", "cli-fifo", "--type", "fifo", "--queues", "3")
    assert (made["type"], made["read_queues"], made["created"]) == ("fifo", 3, True)
    assert (
        json_of(shared_cluster, "topic", "create", "cli-fifo", "--type", "fifo", "--queues", "3")[
            "created"
        ]
        is False
    )
    assert "cli-fifo" in [row["topic"] for row in json_of(shared_cluster, "topic", "list")]
    described = json_of(shared_cluster, "topic", "describe", "cli-fifo")
    assert [queue["queue"] for queue in described["queues"]] == [0, 1, 2]
    missing = shared_cluster.run(
        "topic", "describe", "cli-none", "--endpoint", shared_cluster.address("master"), check=False
    )
    assert missing.returncode == 4
    assert "TOPIC_NOT_FOUND" in missing.stderr


def test_groups_are_created_listed_and_described(shared_cluster: Cluster) -> None:
    made = json_of(
        shared_cluster, "group", "create", "cli-group", "--order", "true", "--max-attempts", "5"
    )
    assert (made["order"], made["max_attempts"], made["created"]) == (True, 5, True)
    assert "cli-group" in [row["group"] for row in json_of(shared_cluster, "group", "list")]
    assert json_of(shared_cluster, "group", "describe", "cli-group")["lag"] == 0
    missing = shared_cluster.run(
        "group", "describe", "cli-none", "--endpoint", shared_cluster.address("master"), check=False
    )
    assert missing.returncode == 4


def test_messages_are_sent_and_tailed_through_either_node(shared_cluster: Cluster) -> None:
    topic = shared_cluster.create_topic("cli-messages", queues=2)
    slave = shared_cluster.address("slave")
    sent = json.loads(
        shared_cluster.run(
            *("message", "send", topic, "grüße", "--key", "k1", "--tag", "A"),
            *("--property", "colour=red", "--count", "5", "--endpoint", slave, "-o", "json"),
        ).stdout
    )
    assert (sent["sent"], sent["failed"]) == (5, 0)
    lines = shared_cluster.run(
        *("message", "tail", topic, "--from", "beginning", "--count", "5"),
        *("--timeout", "20", "--endpoint", shared_cluster.address("master"), "-o", "json"),
    ).stdout.splitlines()
    seen = [json.loads(line) for line in lines]
    assert {one["message_id"] for one in seen} == {one["message_id"] for one in sent["messages"]}
    assert {(one["body"], one["tag"], one["properties"]["colour"]) for one in seen} == {
        ("grüße", "A", "red")
    }


def test_the_nameserver_routes_to_both_nodes_as_alternatives(shared_cluster: Cluster) -> None:
    topic = shared_cluster.create_topic("cli-routed", queues=2)
    wanted = [shared_cluster.node(name).ports["client"] for name in ("master", "slave")]
    request = v2.QueryRouteRequest(topic=v2.Resource(name=topic))
    port = shared_cluster.node("namesrv").ports["namesrv"]

    def is_routed() -> bool:
        with Connection(f"127.0.0.1:{port}", Links()) as connection:
            call = connection.method(paths.QUERY_ROUTE, v2.QueryRouteResponse)
            route = call(request, metadata=connection.metadata, timeout=10)
        found = [
            [address.port for address in queue.broker.endpoints.addresses]
            for queue in route.message_queues
        ]
        return found == [wanted, wanted]

    wait_until("the nameserver knows the topic", is_routed, WAIT_S)


def test_a_fifo_topic_requires_a_group_and_keeps_its_order(shared_cluster: Cluster) -> None:
    topic = shared_cluster.create_topic("cli-ordered", kind="fifo", queues=1)
    endpoint = ("--endpoint", shared_cluster.address("master"))
    without = shared_cluster.run("message", "send", topic, "x", *endpoint, check=False)
    assert without.returncode == 2
    assert "requires --group" in without.stderr
    sent = json_of(shared_cluster, "message", "send", topic, "x", "--group", "g", "--count", "3")
    assert [one["offset"] for one in sent["messages"]] == [0, 1, 2]


def test_sending_to_an_unknown_topic_is_not_found(shared_cluster: Cluster) -> None:
    done = shared_cluster.run(
        *("message", "send", "cli-nowhere", "x"),
        *("--endpoint", shared_cluster.address("master")),
        check=False,
    )
    assert done.returncode == 4
    assert "TOPIC_NOT_FOUND" in done.stderr


def test_the_group_becomes_in_sync(shared_cluster: Cluster) -> None:
    def members() -> bool:
        rows = json_of(shared_cluster, "cluster", "describe")["members"]
        return [row["in_sync"] for row in rows] == [True, True]

    wait_until("both replicas are in sync", members, WAIT_S)


def test_a_position_that_the_node_does_not_know_is_unknown(shared_cluster: Cluster) -> None:
    shared_cluster.create_topic("cli-positions")

    def members() -> dict[str, Any]:
        rows = json_of(shared_cluster, "cluster", "describe")["members"]
        found = {row["role"]: row for row in rows}
        return found if all(row["log_end"] for row in rows) else {}

    found = wait_until("both replicas have records", members, WAIT_S)
    leader, follower = found["leader"], found["follower"]
    assert isinstance(leader["confirm"], int)
    assert (follower["confirm"], type(follower["behind_bytes"])) == (None, int)
    at = ("--endpoint", shared_cluster.address("master"))
    table = shared_cluster.run("cluster", "describe", *at, "-o", "wide").stdout
    (line,) = (line for line in table.splitlines() if " follower " in line)
    assert line.split().count("unknown") == 1


def test_a_node_reports_the_origins_of_its_settings(shared_cluster: Cluster) -> None:
    rows = {row["key"]: row for row in json_of(shared_cluster, "config", "show", "--origin")}
    assert rows["grpcServerPort"]["origin"].startswith("flag")
    assert rows["brokerRole"]["value"] == "SYNC_MASTER"
    file = shared_cluster.node("master").data / "broker.conf"
    assert rows["brokerRole"]["origin"].startswith(f"file {file}:")
    assert rows["slaveTimeout"]["origin"] == "default"
    token = (shared_cluster.data / "cluster-token").read_text().strip()
    assert token not in json.dumps(rows)


def test_a_second_up_on_the_same_data_is_refused(shared_cluster: Cluster) -> None:
    done = shared_cluster.run("up", "--port", "0", "--data", str(shared_cluster.data), check=False)
    assert done.returncode == 1
    assert f"process {shared_cluster.supervisor_pid}" in done.stderr
    assert "--data" in done.stderr


@pytest.mark.real_start
def test_killed_processes_are_restarted_on_their_ports_and_ctrl_c_stops_all(
    new_cluster: NewCluster,
) -> None:
    cluster = new_cluster(restart=True, env=SMALL)
    before = {node.name: node for node in cluster.nodes()}
    for name in ("slave", "namesrv", "master"):
        cluster.kill9(name)
    wait_until(
        "all three serve again",
        lambda: {n.pid for n in cluster.nodes()}.isdisjoint({n.pid for n in before.values()}),
        WAIT_S,
    )
    after = {node.name: node for node in cluster.nodes()}
    assert {n: node.ports for n, node in after.items()} == {
        n: node.ports for n, node in before.items()
    }
    assert cluster.healthy(cluster.address("master"))
    assert "signal 9 (SIGKILL)" in cluster.log_file.read_text()
    assert cluster.stop() == 0
    assert gone([node.pid for node in after.values()])


def test_with_no_restart_processes_stay_down_until_up_restart(new_cluster: NewCluster) -> None:
    cluster = new_cluster(env=SMALL)
    topic = cluster.create_topic("kept")
    master = cluster.address("master")
    cluster.run("message", "send", topic, "one", "--endpoint", master)
    before = cluster.kill9("master")
    text = f"cometmq up restart master --data {cluster.data}"
    wait_until("up says how to start it", lambda: text in cluster.log_file.read_text(), WAIT_S)
    where = ("--data", str(cluster.data))
    ended = cluster.run("up", "status", *where, "-o", "json", check=False)
    assert ended.returncode == 3
    states = {row["name"]: row["state"] for row in json.loads(ended.stdout)["processes"]}
    assert states == {"namesrv": "serving", "master": "ended", "slave": "serving"}
    with taken_until_a_start_fails(cluster, int(master.rpartition(":")[2])):
        assert cluster.restart("master").pid != before
    tail = ("message", "tail", topic, "--from", "beginning", "--count", "1", "--timeout", "20")
    assert "one" in cluster.run(*tail, "--endpoint", master).stdout
    alive = cluster.node("slave").pid
    assert cluster.restart("slave").pid != alive
    unknown = cluster.run("up", "restart", "nobody", "--data", str(cluster.data), check=False)
    assert unknown.returncode == 4
    assert "The processes are namesrv, master, slave" in unknown.stderr
    by_id = cluster.run("up", "restart", "broker-a-1", "--data", str(cluster.data)).stdout
    assert by_id.startswith("slave is serving again")
    told = cluster.run("up", "status", *where).stdout
    assert "The cluster is ready." in told
    assert "broker-a-1" in told
    pids = [node.pid for node in cluster.nodes()]
    assert all(str(pid) in told for pid in pids)
    assert cluster.run("up", "stop", *where).stdout == "Stopped.\n"
    assert gone(pids)
    for verb in ("status", "stop"):
        away = cluster.run("up", verb, *where, check=False)
        assert away.returncode == 1
        assert "No `cometmq up` is running" in away.stderr


@contextlib.contextmanager
def taken_until_a_start_fails(cluster: Cluster, port: int) -> Iterator[None]:
    """Listen on the port of a dead process until its next start has failed."""
    other = socket.create_server(("127.0.0.1", port))

    def release() -> None:
        with other:
            text = f"Port {port} on 127.0.0.1 is in use by another process"
            wait_until("a start fails", lambda: text in cluster.log_file.read_text(), WAIT_S)

    releasing = threading.Thread(target=release)
    releasing.start()
    yield
    releasing.join()


@pytest.mark.timeout(900)
def test_a_child_that_cannot_start_is_retried_five_times(new_cluster: NewCluster) -> None:
    cluster = new_cluster("--single", restart=True, env=SMALL)
    conf = cluster.node("single").data / "broker.conf"
    good = conf.read_text()
    conf.write_text(good + "flushDiskType=OFTEN\n")
    cluster.kill9("single")
    wait_until(
        "the supervisor gives up",
        lambda: "It stays down after 5 attempts" in cluster.log_file.read_text(),
        5 * WAIT_S,  # five starts, each of which imports the broker
    )
    refused = cluster.run("up", "restart", "single", "--data", str(cluster.data), check=False)
    assert refused.returncode == 1
    assert "flushDiskType" in refused.stderr
    conf.write_text(good)
    assert cluster.healthy(f"127.0.0.1:{cluster.restart('single').ports['client']}")
    assert cluster.stop() == 0


@pytest.mark.real_start
def test_children_stop_when_the_supervisor_is_killed(new_cluster: NewCluster) -> None:
    cluster = new_cluster("--single", env=SMALL)
    pids = [node.pid for node in cluster.nodes()]
    os.kill(cluster.supervisor_pid, signal.SIGKILL)
    wait_until("the children have gone", lambda: gone(pids), WAIT_S)


@pytest.mark.real_start
def test_single_is_one_process_and_keeps_its_data(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster("--single", "--flush", "sync", env=SMALL)
    (node,) = cluster.nodes()
    assert (node.name, node.role) == ("single", "master")
    assert set(node.ports) == {"client", "ha", "metrics", "namesrv", "namesrv_metrics"}
    assert cluster.endpoints == cluster.address("single")
    topic = cluster.create_topic("kept")
    sent = json_of(cluster, "message", "send", topic, "x", "--count", "100")
    assert sent["sent"] == 100
    assert cluster.stop() == 0
    cluster.start()
    queues = json_of(cluster, "topic", "describe", topic)["queues"]
    assert sum(queue["messages"] for queue in queues) == 100


def free_block() -> int:
    """The first of eight ports in a row that are free now, below the ephemeral ports, which
    other tests use."""
    while True:
        first = random.randrange(20_000, 30_000)
        with contextlib.ExitStack() as probes:
            try:
                for port in range(first, first + 8):
                    probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first


def test_clusters_of_different_ports_run_side_by_side(new_cluster: NewCluster) -> None:
    for _ in range(2):
        first = free_block()
        (node,) = new_cluster("--single", port=first, env=SMALL).nodes()
        offsets = {name: port - first for name, port in node.ports.items()}
        assert offsets == {"client": 0, "namesrv": 1, "ha": 3, "metrics": 4, "namesrv_metrics": 7}


@pytest.mark.real_start
def test_a_port_in_use_is_an_error_sentence_and_stops_all_processes(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        _write(tmp_path / "namesrv" / "namesrv.conf", f"listenPort={port}\n")
        for name in ("master", "slave"):
            text = "grpcServerPort=0\nhaListenPort=0\nmetricsPromExporterPort=0\n"
            _write(tmp_path / name / "broker.conf", f"{text}namesrvAddr=127.0.0.1:{port}\n")
        done = subprocess.run(
            [*cometmq_command(), "up", "--data", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    assert done.returncode == 1
    assert f"namesrv cannot start: Port {port} on 127.0.0.1 is in use" in done.stderr
    assert "`cometmq up --port N`" in done.stderr
    assert "Traceback" not in done.stderr
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(p.info["cmdline"])]
    assert left == []


def test_an_invalid_file_stops_the_start_with_its_line(tmp_path: Path) -> None:
    _write(tmp_path / "single" / "broker.conf", "flushDiskType=OFTEN\n")
    cluster = Cluster(tmp_path, "--single")
    with pytest.raises(ClusterError, match=r"ended with 1\n.*single cannot start: .*flushDiskType"):
        cluster.start()
    cluster.stop()
