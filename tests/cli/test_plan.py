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


def test_port_moves_the_clients_ports_only(tmp_path: Path) -> None:
    made = plans(tmp_path, port=9000)
    assert made["master"].value("grpc_server_port") == "9000"
    assert made["slave"].value("grpc_server_port") == "9002"
    assert made["master"].value("ha_listen_port") == "10912"


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
    assert durability(list(plans(tmp_path).values())) == ("sync", "sync")
    again = plans(tmp_path, flush="async", replication="async")
    assert durability(list(again.values())) == ("async", "async")
    assert "SYNC_FLUSH" in file.read_text()


def test_single_is_one_process_with_two_files(tmp_path: Path) -> None:
    (single,) = plans(tmp_path, single=True).values()
    assert (single.name, single.role, single.subcommand) == ("single", "master", "single")
    assert (tmp_path / "single" / "namesrv.conf").exists()
    assert single.file_values["brokerRole"] == "ASYNC_MASTER"


@pytest.mark.parametrize(
    ("state", "replication", "words"),
    [
        ({}, "sync", ""),
        ({"in_sync": 2}, "sync", "2 of 2"),
        (
            {"in_sync": 1},
            "sync",
            "1 of 2: the master acknowledges alone until a slave has caught up",
        ),
        ({"in_sync": 1}, "async", "1 of 2"),
        (
            {"in_sync": 1, "write_refusal": "too few"},
            "sync",
            "1 of 2: writes are refused (too few)",
        ),
    ],
)
def test_the_in_sync_state_is_described(
    tmp_path: Path, state: dict[str, Any], replication: str, words: str
) -> None:
    assert in_sync(state, list(plans(tmp_path, replication=replication).values())) == words


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
        state={"in_sync": 2},
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
