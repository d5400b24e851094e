"""Which processes a cluster has, and which of flag and file says what."""

from pathlib import Path
from typing import Any

import pytest

from cometmq.cli.cluster.banner import banner, durability, endpoints, in_sync
from cometmq.cli.cluster.layout import DataDirectory
from cometmq.cli.cluster.plan import Options, Plan, make_plans


def plans(path: Path, **options: Any) -> dict[str, Plan]:
    defaults = {"port": None, "single": False, "replication": None, "flush": None}
    data = DataDirectory(path)
    made = make_plans(data, Options(**{**defaults, **options}))
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
    (single,) = plans(tmp_path, port=9000, single=True).values()
    ports = [single.value(name) for name in ("listen_port", *names)]
    assert ports == ["9001", "9000", "9003", "9004", "127.0.0.1:9001"]


def test_port_zero_makes_every_port_ephemeral_and_leaves_the_files_without_ports(
    tmp_path: Path,
) -> None:
    made = plans(tmp_path, port=0)
    flags = [made[name].flags for name in ("namesrv", "master")]
    assert flags == [
        {"listen_port": "0"},
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
def test_the_in_sync_state_is_described(tmp_path: Path, state: dict[str, Any], words: str) -> None:
    assert in_sync(state, list(plans(tmp_path).values())) == words


def test_the_meaning_of_an_ok_comes_from_the_policy_in_force(tmp_path: Path) -> None:
    two = list(plans(tmp_path / "two", replication="sync").values())
    assert "async replication; OK means: in the master's page cache" in durability(
        leading(replication="async"), two
    )
    assert "survives the loss of one" in durability(leading(), two)
    alone = list(plans(tmp_path / "one", single=True).values())
    assert "survives a crash of the process" in durability(leading(), alone)


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
        state=leading(),
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
