"""Which processes a cluster has, and which of flag and file says what."""

import socket
from pathlib import Path
from typing import Any

import pytest

from cometmq.cli.cluster.banner import banner, durability, endpoints, in_sync
from cometmq.cli.cluster.layout import DataDirectory
from cometmq.cli.cluster.plan import Options, Plan, make_plans
from cometmq.cli.cluster.ports import BROKER_FLAGS
from cometmq.operations.errors import CliError


def plans(path: Path, **options: Any) -> dict[str, Plan]:
    defaults = {"port": None, "single": False, "replication": None, "flush": None}
    data = DataDirectory(path)
    try:
        made = make_plans(data, Options(**{**defaults, **options}))
    finally:
        data.close()
    return {plan.name: plan for plan in made}


def test_the_default_cluster_has_a_nameserver_a_master_and_a_slave(tmp_path: Path) -> None:
    made = plans(tmp_path)
    assert {name: plan.role for name, plan in made.items()} == {
        "namesrv": "nameserver",
        "master": "master",
        "slave": "slave",
    }
    assert made["namesrv"].file_values["listenPort"] == "9876"
    master, slave = made["master"].file_values, made["slave"].file_values
    keys = ("grpcServerPort", "haListenPort", "metricsPromExporterPort", "brokerRole", "brokerId")
    assert [master[key] for key in keys] == ["8081", "10912", "5557", "SYNC_MASTER", "0"]
    assert [slave[key] for key in keys] == ["8083", "10914", "5559", "SLAVE", "1"]
    assert master["flushDiskType"] == "ASYNC_FLUSH"
    assert (
        master["clusterToken"]
        == slave["clusterToken"]
        == made["namesrv"].file_values["clusterToken"]
    )
    assert all(not plan.flags for plan in made.values())
    assert all(str(plan.data) == str(tmp_path / name) for name, plan in made.items())


def test_a_new_cluster_has_small_segments_and_an_old_one_keeps_its_size(tmp_path: Path) -> None:
    key = "mappedFileSizeCommitLog"
    new = plans(tmp_path / "new")
    assert [new[name].file_values[key] for name in ("master", "slave")] == [f"{64 << 20}"] * 2
    for size in ("", f"{1 << 20}"):
        old = tmp_path / f"old{size}"
        file = old / "master" / "broker.conf"
        file.parent.mkdir(parents=True)
        file.write_text(f"{key}={size}\n" if size else "brokerName=broker-a\n")
        (file.parent / "store").mkdir()
        made = plans(old)
        assert [made[name].file_values.get(key, "") for name in ("master", "slave")] == [size] * 2


def test_with_a_controller_the_nameserver_elects_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plans(tmp_path, controller=True)
    assert {name: plan.flags for name, plan in made.items()} == {
        "namesrv": {"controller": "true"},
        "master": {"enable_controller_mode": "true"},
        "slave": {"enable_controller_mode": "true"},
    }
    # As the group's policy: fixed roles, for one start or for ever, need no other file.
    assert made["slave"].file_values["brokerRole"] == "SLAVE"
    monkeypatch.setenv("COMETMQ_ENABLE_CONTROLLER_MODE", "false")
    assert "enable_controller_mode" not in plans(tmp_path, controller=True)["slave"].flags


def test_port_moves_every_port_of_a_new_and_of_an_existing_cluster(tmp_path: Path) -> None:
    plans(tmp_path)
    made = plans(tmp_path, port=9000)
    names = ("grpc_server_port", "ha_listen_port", "metrics_prom_exporter_port", "namesrv_addr")
    assert [made["master"].value(name) for name in names] == [
        *("9000", "9003", "9004", "127.0.0.1:9001")
    ]
    assert [made["slave"].value(name) for name in names] == [
        *("9002", "9005", "9006", "127.0.0.1:9001")
    ]
    assert made["namesrv"].value("listen_port") == "9001"
    assert made["namesrv"].value("namesrv_metrics_port") == "9007"
    (single,) = plans(tmp_path / "single", port=9000, single=True).values()
    ports = [single.value(name) for name in ("listen_port", *names)]
    assert ports == ["9001", "9000", "9003", "9004", "127.0.0.1:9001"]


def test_port_zero_makes_every_port_ephemeral_and_leaves_the_files_without_ports(
    tmp_path: Path,
) -> None:
    made = plans(tmp_path, port=0)
    flags = [made[name].flags for name in ("namesrv", "master")]
    assert flags == [
        {"listen_port": "0", "namesrv_metrics_port": "0"},
        {"grpc_server_port": "0", "ha_listen_port": "0", "metrics_prom_exporter_port": "0"},
    ]
    assert made["slave"].needs_namesrv
    assert not any("ort" in key for plan in made.values() for key in plan.file_values)


def test_a_restarted_child_keeps_its_ports(tmp_path: Path) -> None:
    master = plans(tmp_path, port=0)["master"]
    master.keep_ports({"client": "127.0.0.1:4001", "ha": "127.0.0.1:4002", "metrics": "h:4003"})
    assert master.ports == {"client": 4001, "ha": 4002, "metrics": 4003}
    words = master.arguments()
    assert words[words.index("--grpc-server-port") + 1] == "4001"
    assert words[words.index("--ha-listen-port") + 1] == "4002"


def test_options_override_the_file_and_omitted_options_come_from_it(
    tmp_path: Path,
) -> None:
    plans(tmp_path)
    file = tmp_path / "master" / "broker.conf"
    file.write_text(file.read_text().replace("ASYNC_FLUSH", "SYNC_FLUSH"))
    master = plans(tmp_path)["master"]
    roles = ("flush_disk_type", "broker_role")
    assert [master.value(flag) for flag in roles] == ["SYNC_FLUSH", "SYNC_MASTER"]
    again = plans(tmp_path, flush="async", replication="async")["master"]
    assert [again.value(flag) for flag in roles] == ["ASYNC_FLUSH", "ASYNC_MASTER"]
    assert "SYNC_FLUSH" in file.read_text()


def test_single_is_one_process_with_two_files(tmp_path: Path) -> None:
    (single,) = plans(tmp_path, single=True).values()
    assert (single.name, single.role, single.subcommand) == ("single", "master", "single")
    assert (tmp_path / "single" / "namesrv.conf").exists()
    assert single.file_values["brokerRole"] == "ASYNC_MASTER"


def leading(**state: Any) -> dict[str, Any]:
    """Return the state that a leader reports."""
    usual = {"role": "leader", "in_sync": 2, "flush": "async", "replication": "sync"}
    return {**usual, "write_refusal": "", **state}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({}, ""),
        ({"role": "follower", "refused": ""}, ""),
        (leading(), "2 of 2"),
        (leading(in_sync=1), "1 of 2: the master acknowledges alone until a slave has caught up"),
        (leading(in_sync=1, replication="async"), "1 of 2"),
        (leading(in_sync=1, write_refusal="few"), "1 of 2: writes are refused (few)"),
    ],
)
def test_the_in_sync_state_is_described(state: dict[str, Any], words: str) -> None:
    assert in_sync(state, 2) == words


def test_the_meaning_of_an_ok_comes_from_the_policy_in_force() -> None:
    assert "async replication; OK means: in the master's page cache" in durability(
        leading(replication="async"), 2
    )
    assert "survives the loss of one" in durability(leading(), 2)
    assert "survives a crash of the process" in durability(leading(), 1)


def test_the_banner_shows_addresses_and_how_to_connect(tmp_path: Path) -> None:
    made = list(plans(tmp_path, port=0).values())
    made[0].keep_ports({"namesrv": "127.0.0.1:4000"})
    made[1].keep_ports({"client": "127.0.0.1:4001", "ha": "h:4002", "metrics": "h:4003"})
    made[2].keep_ports({"client": "127.0.0.1:4011", "ha": "h:4012", "metrics": "h:4013"})
    assert endpoints(made) == "127.0.0.1:4001;127.0.0.1:4011"
    text = banner(
        version="1",
        plans=made,
        pids={"master": 77},
        bound={"door": "grpcio"},
        states={"broker-a": leading()},
        data=str(tmp_path),
        seconds=0.5,
    )
    for words in (
        "127.0.0.1:4001;127.0.0.1:4011",
        "process 77",
        "http://127.0.0.1:4003/metrics",
        "grpcio, plaintext",
        "async flush, sync replication",
        "2 of 2",
        "enableSsl(false)",
        "Python",
        "--endpoint 127.0.0.1:4001",
        str(tmp_path),
        "Ctrl-C",
    ):
        assert words in text, words


def test_the_banner_of_a_cluster_with_users_signs_what_it_proposes(tmp_path: Path) -> None:
    (plan,) = plans(tmp_path, port=0, single=True, auth=True).values()
    text = banner(
        version="1",
        plans=[plan],
        pids={},
        bound={"door": "native"},
        states={"broker-a": leading()},
        data="my data",
        seconds=0.5,
    )
    for words in (
        "cometmq topic create orders --data 'my data'\n",
        'Credentials("admin", SECRET_KEY))',
        'StaticSessionCredentialsProvider("admin", SECRET_KEY)).build()',
        'SessionCredentials{AccessKey: "admin", AccessSecret: SECRET_KEY}})',
    ):
        assert words in text, words


def test_the_banner_of_one_process_tells_its_remoting_ports_apart(tmp_path: Path) -> None:
    (plan,) = plans(tmp_path, port=0, single=True, remoting=True).values()
    plan.keep_ports({"remoting": "h:4001", "namesrv_remoting": "h:4002"})
    text = banner(
        version="1",
        plans=[plan],
        pids={"single": 77},
        bound={"door": "grpcio"},
        states={"broker-a": leading()},
        data=str(tmp_path),
        seconds=0.5,
    )
    assert "remoting 4001, nameserver's remoting 4002, " in text


def test_further_groups_replicas_and_nameservers_get_names_and_ports_of_their_own(
    tmp_path: Path,
) -> None:
    made = plans(tmp_path, groups=2, replicas=3, nameservers=3, controller=True)
    assert list(made) == [
        *("namesrv", "namesrv-2", "namesrv-3", "master", "slave", "slave-2"),
        *("master-b", "slave-b", "slave-b-2"),
    ]
    keys = ("brokerName", "brokerId", "brokerRole", "grpcServerPort", "haListenPort")
    assert [made["slave-b-2"].file_values[key] for key in keys] == [
        *("broker-b", "2", "SLAVE", "8091", "10922")
    ]
    nameservers = [f"127.0.0.1:{port}" for port in (9876, 9877, 9878)]
    assert made["master"].file_values["namesrvAddr"] == ";".join(nameservers)
    assert made["namesrv-2"].flags["controller_peers"] == f"{nameservers[0]},{nameservers[2]}"


def test_an_existing_cluster_gets_more_groups_and_replicas_and_keeps_its_ports(
    tmp_path: Path,
) -> None:
    def ports() -> dict[str, str]:
        keys = ("grpcServerPort", "haListenPort", "metricsPromExporterPort", "listenPort")
        return {
            name: ",".join(plan.file_values[key] for key in keys if key in plan.file_values)
            for name, plan in plans(tmp_path).items()
        }

    before = ports()
    plans(tmp_path, groups=2)
    plans(tmp_path, replicas=3)
    after = ports()
    assert after.items() > before.items()
    assert len(set(after.values())) == len(after) == 7


def test_a_block_of_ports_has_no_port_twice(tmp_path: Path) -> None:
    made = plans(tmp_path, port=20_000, groups=3, replicas=2, nameservers=3)
    flags = (*("listen_port", "namesrv_metrics_port"), *BROKER_FLAGS)
    found = [plan.flags[flag] for plan in made.values() for flag in flags if flag in plan.flags]
    assert sorted(map(int, found)) == list(range(20_000, 20_024))
    with pytest.raises(CliError, match="--port 65520 needs 24 ports"):
        plans(tmp_path, port=65_520)


def test_several_nameservers_know_their_free_ports_before_they_start(tmp_path: Path) -> None:
    made = plans(tmp_path, port=0, nameservers=3, controller=True)
    servers = [made[name] for name in ("namesrv", "namesrv-2", "namesrv-3")]
    addresses = [f"127.0.0.1:{plan.flags['listen_port']}" for plan in servers]
    assert servers[0].flags["controller_peers"] == ",".join(addresses[1:])
    assert made["master"].flags["namesrv_addr"] == ";".join(addresses)
    assert not made["master"].needs_namesrv
    for plan in servers:
        assert plan.reserved is not None
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(plan.reserved.getsockname())
            server.listen()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"groups": 1}, "has 2 broker groups: --groups can only add some"),
        ({"replicas": 1}, "has 2 replicas in a group: --replicas can only add some"),
        ({"nameservers": 1}, "has 3 nameservers, and their number cannot change"),
        ({"single": True}, "has several processes: omit --single"),
    ],
)
def test_a_cluster_does_not_become_smaller(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    plans(tmp_path, groups=2, nameservers=3)
    with pytest.raises(CliError, match=words):
        plans(tmp_path, **options)


def test_a_cluster_of_one_process_stays_one(tmp_path: Path) -> None:
    plans(tmp_path, single=True)
    (tmp_path / "single" / "store").mkdir()
    with pytest.raises(CliError, match="was made with --single: add --single"):
        plans(tmp_path)


def test_one_replica_is_asynchronous(tmp_path: Path) -> None:
    made = plans(tmp_path, replicas=1)
    assert list(made) == ["namesrv", "master"]
    assert made["master"].file_values["brokerRole"] == "ASYNC_MASTER"
    with pytest.raises(CliError, match="none to wait for"):
        plans(tmp_path, replication="sync")
    with pytest.raises(CliError, match="none to wait for"):
        plans(tmp_path / "single", single=True, replication="sync")
