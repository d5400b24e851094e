"""Commands that find a cluster of `cometmq up` by its data directory, without other options."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cometmq.operations.local_cluster import found_file
from cometmq.tests.harness.cluster import Cluster, cometmq_command, temporary

AGAIN_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with temporary("--controller") as found:
        yield found.wait_in_sync()


def run(*words: str, cwd: Path, code: int = 0, env: Mapping[str, str] | None = None) -> str:
    """Run a command in a directory, with no context and no variable of CometMQ but those given."""
    inherited = {name: value for name, value in os.environ.items() if "COMETMQ" not in name}
    inherited["XDG_CONFIG_HOME"] = str(cwd / "no-configuration")
    done = subprocess.run(
        [*cometmq_command(), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
        env={**inherited, **(env or {})},
    )
    text = done.stdout + done.stderr
    assert done.returncode == code, text
    assert "Traceback" not in text
    return text


def run_soon(*words: str, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a command until its exit code is 0: a leader that stalls may be replaced."""
    end = time.monotonic() + AGAIN_S
    while True:
        try:
            return run(*words, cwd=cwd, env=env)
        except AssertionError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def test_commands_in_the_directory_of_a_cluster_use_its_ports_and_token(cluster: Cluster) -> None:
    for place in (cluster.data, cluster.data.parent):
        (group,) = json.loads(run_soon("ha", "status", "-o", "json", cwd=place))
        assert [row["in_sync"] for row in group["replicas"]] == [True, True]
        run_soon("topic", "create", "orders", cwd=place)
    assert json.loads(run_soon("haStatus", "-o", "json", cwd=cluster.data))[0]["replicas"]
    run_soon("ha", "switchover", "--dry-run", cwd=cluster.data)
    run_soon("healthcheck", cwd=cluster.data)


def test_commands_with_the_data_option_use_its_ports_and_token(
    cluster: Cluster, tmp_path: Path
) -> None:
    where = ("--data", str(cluster.data))
    # Variables of another cluster do not change what the option names.
    other = {"COMETMQ_ENDPOINT": "127.0.0.1:1", "COMETMQ_NAMESRV_ADDR": "127.0.0.1:1"}
    run_soon("topic", "create", "by-option", *where, cwd=tmp_path, env=other)
    run_soon("ha", "status", *where, cwd=tmp_path, env={**other, "COMETMQ_CLUSTER_TOKEN": "wrong"})


def test_the_commands_of_ha_print_their_plan_or_refuse(cluster: Cluster) -> None:
    def ha(*words: str, code: int = 0) -> str:
        return run(*words, cwd=cluster.data, code=code)

    leader = cluster.node("master").data / "broker.conf"

    def state() -> list[object]:
        (group,) = json.loads(ha("ha", "status", "-o", "json"))
        return [group[name] for name in ("leader", "epoch", "version")]

    before = state()
    assert "at least 2 in sync" in ha("ha", "policy", "--sync", "--min-in-sync", "2", "--dry-run")
    assert "--accept-loss" in ha("ha", "force-elect", "--to", "1", "--dry-run")
    assert "--accept-loss" in ha("ha", "reseed", "--id", "1", "--dry-run", code=1)
    assert "broker 1 ends at" in ha("ha", "failover", "--dry-run"), "the most advanced replica"
    assert "still runs" in ha("ha", "exited", "-c", str(leader), code=1)
    assert state() == before


def test_commands_without_anything_to_do_give_the_reason(cluster: Cluster) -> None:
    run("group", "create", "readers", cwd=cluster.data)
    for more in ((), ("--dry-run",)):
        told = run("dlq", "redrive", "readers", *more, cwd=cluster.data)
        assert told == "Group readers has no dead letters to send again.\n"
    told = run("cluster", "drain", "broker-a", cwd=cluster.data, code=2)
    assert "The cluster has one broker group: no other can take its producers." in told


def test_environment_variables_override_the_current_directory(cluster: Cluster) -> None:
    told = run("topic", "list", cwd=cluster.data, code=1, env={"COMETMQ_ENDPOINT": "127.0.0.1:1"})
    assert "Cannot connect to 127.0.0.1:1." in told
    told = run("ha", "status", cwd=cluster.data, code=1, env={"COMETMQ_CLUSTER_TOKEN": "wrong"})
    assert "the cluster token is missing or wrong" in told


def test_a_directory_of_no_cluster_is_refused(tmp_path: Path) -> None:
    told = run("topic", "list", "--data", str(tmp_path), cwd=tmp_path, code=2)
    assert told == f"cometmq: {tmp_path} is not a data directory of `cometmq up`.\n"


def test_a_secret_of_the_current_directory_is_for_this_machine_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cluster-token").write_text("secret\n")
    monkeypatch.chdir(tmp_path)
    assert found_file("cluster-token", "127.0.0.1:8081;localhost:8083") is not None
    assert found_file("cluster-token", "127.0.0.1:8081;10.0.0.1:8083") is None


def test_the_addresses_of_a_stopped_cluster_are_gone(cluster: Cluster, tmp_path: Path) -> None:
    with temporary("--single") as stopped:
        addresses = stopped.data / "up.json"
        assert json.loads(addresses.read_text()) == stopped.ready()
        stopped.stop()
        assert not addresses.exists()
