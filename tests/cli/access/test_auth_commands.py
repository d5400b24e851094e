"""`cometmq user`, `acl`, `auth` and their mqadmin names, on a cluster of `cometmq up --auth`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cometmq.cli.root import cli
from cometmq.operations.errors import CliError
from cometmq.tests.harness.cluster import Cluster, cometmq_command, temporary


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with temporary("--single", "--auth") as found:
        yield found


def run(cluster: Cluster, *words: str, code: int = 0, cwd: Path | None = None, **env: str) -> str:
    """Run a command without credentials of the environment; return its output."""
    done = subprocess.run(
        [*cometmq_command(), *words, "--endpoint", cluster.address("single")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
        env={**os.environ, **env},
    )
    text = done.stdout + done.stderr
    assert done.returncode == code, text
    assert "Traceback" not in text
    return text


def test_doctor_security_checks_a_running_broker(cluster: Cluster) -> None:
    data = ("--data", str(cluster.data))
    shown = run(cluster, "doctor", "security", "-o", "json", *data)
    rows = {row["what"]: row for row in json.loads(shown)}
    assert {rows[name]["verdict"] for name in ("authentication", "authorization")} == {"good"}
    assert "1 of type Super" in rows["users"]["found"]
    assert "cometmq quota set" in rows["quotas"]["advice"]


def test_commands_sign_with_the_keys_of_the_data_directory(
    cluster: Cluster, tmp_path: Path
) -> None:
    keys = cluster.data / "admin-credentials"
    assert keys.stat().st_mode & 0o777 == 0o600
    refused = run(cluster, "topic", "list", code=1, cwd=tmp_path)
    assert "username cannot be null. (UNAUTHORIZED). A call is signed with the keys of" in refused
    run(cluster, "topic", "create", "orders", "--data", str(cluster.data), cwd=tmp_path)
    assert "orders" in run(cluster, "topic", "list", cwd=cluster.data)
    assert "orders" in run(cluster, "topic", "list", cwd=cluster.data.parent), "its data folder"
    wrong = run(
        *(cluster, "topic", "list"),
        code=1,
        COMETMQ_ACCESS_KEY="admin",
        COMETMQ_SECRET_KEY="wrong-secret",
    )
    assert "check signature failed." in wrong
    one = run(cluster, "topic", "list", code=2, COMETMQ_ACCESS_KEY="admin")
    assert "Set both COMETMQ_ACCESS_KEY and COMETMQ_SECRET_KEY" in one


def test_users_are_created_changed_and_deleted(cluster: Cluster) -> None:
    at = cluster.data
    made = run(cluster, "user", "create", "service", cwd=at)
    assert made.startswith("Created user service (Normal).\naccessKey  service\nsecretKey  ")
    assert "exists already" in run(cluster, "user", "create", "service", code=1, cwd=at)
    assert "(Normal, disabled)" in run(cluster, "user", "disable", "service", cwd=at)
    assert "(Normal)" in run(cluster, "user", "enable", "service", cwd=at)
    rotated = json.loads(run(cluster, "user", "rotate", "service", "-o", "json", cwd=at))
    assert rotated["accessKey"] == "service"
    assert rotated["secretKey"] not in made
    listed = json.loads(run(cluster, "user", "list", "-o", "json", cwd=at))
    assert [row["user"] for row in listed] == ["admin", "service"]
    last = run(cluster, "user", "delete", "admin", code=1, cwd=at)
    assert "the last enabled user of type Super" in last
    assert run(cluster, "user", "delete", "service", cwd=at) == "Deleted user service (Normal).\n"
    run(cluster, "user", "disable", "service", code=4, cwd=at)


def test_a_topic_with_a_type_needs_the_right_to_create_only(
    cluster: Cluster, tmp_path: Path
) -> None:
    at = cluster.data
    run(cluster, "user", "create", "maker", "--secret", "maker-secret", cwd=at)
    policy = ("--resource", "Cluster:*", "--actions", "Create", "--decision", "allow")
    run(cluster, "acl", "create", "--user", "maker", *policy, cwd=at)
    keys = {"COMETMQ_ACCESS_KEY": "maker", "COMETMQ_SECRET_KEY": "maker-secret"}

    def create(kind: str, code: int = 0) -> str:
        words = ("topic", "create", "made", "--type", kind)
        return run(cluster, *words, code=code, cwd=tmp_path, **keys)

    create("fifo")
    create("fifo")
    assert "Topic made exists with type fifo" in create("normal", code=1)
    refused = run(cluster, "topic", "describe", "made", code=1, cwd=tmp_path, **keys)
    assert "no permission" in refused


def test_a_user_with_rights_on_a_topic_looks_at_it_and_checks_the_way(cluster: Cluster) -> None:
    at = cluster.data
    run(cluster, "topic", "create", "looked-at", cwd=at)
    run(cluster, "user", "create", "clerk", "--secret", "clerk-secret", cwd=at)
    policy = ("--resource", "Topic:looked-at", "--actions", "Pub,Sub")
    run(cluster, "acl", "create", "--user", "clerk", *policy, cwd=at)
    keys: dict[str, Any] = {
        "COMETMQ_ACCESS_KEY": "clerk",
        "COMETMQ_SECRET_KEY": "clerk-secret",
    }
    run(cluster, "message", "send", "looked-at", "seen", **keys)
    tail = ("message", "tail", "looked-at", "--from", "beginning", "--count", "1")
    assert "seen" in run(cluster, *tail, "--timeout", "20", **keys)
    way = [*cometmq_command(), "doctor", "connect", cluster.address("single")]
    done = subprocess.run(
        [*way, "--topic", "looked-at"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **keys},
    )
    assert done.stdout.endswith("The way is good.\n"), done.stdout + done.stderr
    run(cluster, "topic", "create", "hidden", cwd=at)
    hidden = run(cluster, "message", "tail", "hidden", "--count", "1", code=1, **keys)
    allowed = "cometmq acl create --user clerk --resource Topic:hidden --actions Pub"
    assert f"An administrator allows it with: {allowed}\n" in hidden


def test_policies_decide_and_are_explained(cluster: Cluster) -> None:
    at = cluster.data
    run(cluster, "user", "create", "limited", "--secret", "a-secret-key", cwd=at)
    who = ("--user", "limited")
    shown = run(
        *(cluster, "acl", "create", *who, "--resource", "Topic:limited", "--actions", "Pub,Sub"),
        *("--from", "10.0.0.0/8"),
        cwd=at,
    )
    assert "10.0.0.0/8" in shown
    ask = ("auth", "check", "limited", "Pub", "Topic:limited")
    allowed = run(cluster, *ask, "--from", "10.1.2.3", cwd=at)
    assert allowed == (
        "allowed: the most specific policy: allow Pub,Sub on Topic:limited from 10.0.0.0/8\n"
    )
    assert run(cluster, *ask, "--from", "11.1.2.3", cwd=at) == "denied: no policy matches\n"
    run(cluster, "acl", "create", *who, "--resource", "*", "--actions", "All", cwd=at)
    listed = json.loads(run(cluster, "acl", "list", *who, "-o", "json", cwd=at))
    assert [row["resource"] for row in listed] == ["Topic:limited", "*"]
    left = run(cluster, "acl", "delete", *who, "--resource", "*", cwd=at)
    assert "Topic:limited" in left
    run(cluster, "acl", "create", *who, "--resource", "Queue:a", "--actions", "Pub", code=2, cwd=at)


def test_the_names_of_mqadmin_work(cluster: Cluster) -> None:
    at = cluster.data
    run(cluster, "createUser", "-u", "alias", "-p", "a-secret-key", "-t", "Normal", cwd=at)
    run(cluster, "updateUser", "-u", "alias", "-s", "disable", cwd=at)
    assert "alias" in run(cluster, "getUser", "-u", "alias", cwd=at)
    assert "alias" in run(cluster, "listUser", "-f", "ali", cwd=at)
    run(
        *(cluster, "createAcl", "-s", "User:alias", "-r", "Topic:a,Group:*", "-a", "Pub,Sub"),
        *("-d", "Deny", "-i", "10.0.0.1"),
        cwd=at,
    )
    shown = run(cluster, "getAcl", "-s", "User:alias", cwd=at)
    assert "Topic:a" in shown
    assert "deny" in shown
    assert "Group:*" in run(cluster, "listAcl", "-s", "alias", cwd=at)
    run(cluster, "deleteAcl", "-s", "User:alias", "-r", "Topic:a", cwd=at)
    run(cluster, "deleteUser", "-u", "alias", cwd=at)
    run(cluster, "getAcl", "-s", "alias", code=2, cwd=at)


def test_the_first_user_is_created_by_auth_init(tmp_path: Path) -> None:
    with temporary("--single", env={"COMETMQ_AUTHENTICATION_ENABLED": "true"}) as open_cluster:
        refused = run(open_cluster, "topic", "list", code=1, cwd=tmp_path)
        assert "username cannot be null." in refused
        run(open_cluster, "auth", "init", "--write", str(tmp_path / "admin-credentials"))
        run(open_cluster, "topic", "list", cwd=tmp_path)
        run(open_cluster, "auth", "init", "--name", "second", code=1)


def test_the_generated_key_of_the_first_user_is_not_lost_if_the_groups_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlisted(_connection: object) -> None:
        raise CliError("unreachable")

    monkeypatch.setattr("cometmq.cli.access.auth._groups_once_the_user_is_known", unlisted)
    file = tmp_path / "admin-credentials"
    with temporary("--single", env={"COMETMQ_AUTHENTICATION_ENABLED": "true"}) as open_cluster:
        words = ("auth", "init", "--endpoint", open_cluster.address("single"))
        told = CliRunner().invoke(cli, [*words, "--write", str(file)])
        assert told.exit_code == 0, told.output
        run(open_cluster, "topic", "list", cwd=tmp_path)
    secret = file.read_text().split("secretKey=")[1].strip()
    assert f"secretKey  {secret}" in told.stdout
    assert "whether there are other broker groups: unreachable" in told.stderr


@pytest.mark.parametrize("command", ["broker", "namesrv", "proxy", "single"])
def test_an_open_port_needs_authentication_or_a_decision(command: str, tmp_path: Path) -> None:
    words = [*cometmq_command(), command, "--bind-address", "0.0.0.0"]
    words += ["--namesrv-addr", "127.0.0.1:1"] if command == "proxy" else []
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "bindAddress=0.0.0.0 with authentication off" in done.stderr
    assert not list(tmp_path.iterdir()), "nothing was created"


def test_quotas_are_set_listed_and_deleted(cluster: Cluster) -> None:
    at = cluster.data
    run(cluster, "quota", "set", "topic:orders", "--messages", "5", "--bytes", "100", cwd=at)
    run(cluster, "quota", "set", "Topic:orders", "--bytes", "0", "--polls", "7", cwd=at)
    listed = json.loads(run(cluster, "quota", "list", "-o", "json", cwd=at))
    expected = {"messages": 5, "bytes": "-", "connections": "-", "polls": 7, "stored": "-"}
    assert listed == [{"subject": "Topic:orders", **expected}]
    assert "Give a limit" in run(cluster, "quota", "set", "Topic:orders", code=2, cwd=at)
    assert "is invalid" in run(cluster, "quota", "set", "x", "--polls", "1", code=1, cwd=at)
    said = run(cluster, "quota", "delete", "Topic:orders", cwd=at)
    assert said == "Deleted the quota of Topic:orders.\n"
    assert "no quotas" in run(cluster, "quota", "list", cwd=at)
    assert "has no quota" in run(cluster, "quota", "delete", "Topic:orders", code=4, cwd=at)
    assert '"call": "PutQuota", "target": "topic:orders"' in audit(cluster)


def audit(cluster: Cluster) -> str:
    (file,) = cluster.data.glob("*/log/audit.log")
    return file.read_text()
