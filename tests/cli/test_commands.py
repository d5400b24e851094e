"""The command line as a shell sees it: exit codes, sentences on stderr, no tracebacks."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-P", "-m", "cometmq.cli.main"]


def cometmq(*arguments: str, cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        check=False,
        cwd=cwd,
    )


@pytest.fixture
def closed_port() -> str:
    """An address where nothing listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{holder.getsockname()[1]}"


def test_help_needs_no_subcommand_and_lists_all(tmp_path: Path) -> None:
    done = cometmq("--help", cwd=str(tmp_path))
    assert done.returncode == 0
    for name in ("up", "broker", "namesrv", "topic", "group", "message", "healthcheck", "config"):
        assert f"  {name}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["nonsense"], 2, "No such command"),
        (["topic", "create"], 2, "Missing argument"),
        (["topic", "create", "t", "--type", "odd"], 2, "Invalid value"),
        (["topic", "create", "t", "--queues", "0"], 2, "Invalid value"),
        (["topic", "list", "--endpoint", "nowhere"], 2, "must be HOST:PORT"),
        (["message", "send", "t", "b", "--property", "x"], 2, "must be NAME=VALUE"),
        (
            ["message", "send", "t", "b", "--property", "a=1", "--property", "a=2"],
            *(2, "--property a is given twice"),
        ),
        (["broker", "-c", "missing.conf"], 2, "Cannot read missing.conf"),
        (["up", "--port", "-1"], 2, "Invalid value"),
        (["up", "--single", "--replication", "sync"], 2, "--single runs one replica"),
        (["up", "restart", "master", "--data", "nowhere"], 1, "No `cometmq up` is running on"),
        (["up", "--data", "d", "--ready-file", "no/such/dir/file"], 1, "Cannot write no/such"),
        (["config", "show", "-c", "missing.conf"], 2, "Cannot read missing.conf"),
    ],
)
def test_errors_have_a_sentence_and_an_exit_code(
    tmp_path: Path, arguments: list[str], code: int, sentence: str
) -> None:
    done = cometmq(*arguments, cwd=str(tmp_path))
    assert (done.returncode, done.stdout) == (code, "")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_pipeline_commands_without_the_extra_name_its_installation(tmp_path: Path) -> None:
    for name in ("pyarrow", "pyspark"):  # as on a machine without these packages
        missing = f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')\n"
        (tmp_path / f"{name}.py").write_text(missing)
    (tmp_path / "archive").mkdir()
    for words in (("check", "archive"), ("compact", "archive")):
        done = subprocess.run(
            [*COMMAND, "pipeline", *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
        assert done.returncode == 1, done.stderr
        assert "pip install 'cometmq[spark]'" in done.stderr, words
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("pipeline", "check", "nowhere"),
        ("pipeline", "compact", "nowhere"),
        ("pipeline", "dlq", "nowhere"),
        ("pipeline", "reconcile", "nowhere", "--with", "there"),
        ("pipeline", "insights", "nowhere", "out"),
    ],
)
def test_a_job_without_its_directory_is_an_error_sentence(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = cometmq(*words, cwd=str(tmp_path))
    assert done.returncode == 1, done.stderr
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unreachable_endpoint_is_an_error_sentence(closed_port: str) -> None:
    done = cometmq("topic", "list", "--endpoint", closed_port)
    assert done.returncode == 1
    assert f"Cannot connect to {closed_port}" in done.stderr
    assert "cometmq up" in done.stderr


def test_an_unhealthy_node_is_exit_code_3(closed_port: str) -> None:
    done = cometmq("healthcheck", "--endpoint", closed_port, "-o", "json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["healthy"] is False


def test_config_show_prints_the_origins_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "flushDiskType=SYNC_FLUSH\nlistenPort=1\nflushDiskTypo=x\nclusterToken=s3cret-of-the-tests\n"
    )
    done = cometmq("config", "show", "-c", str(file), "--origin", "-o", "json")
    assert done.returncode == 0
    rows = {row["key"]: row for row in json.loads(done.stdout)}
    assert rows["flushDiskType"]["value"] == "SYNC_FLUSH"
    assert rows["flushDiskType"]["origin"] == f"file {file}:1"
    assert rows["brokerName"]["origin"] == "default"
    assert "s3cret" not in done.stdout
    assert "did you mean 'flushDiskType'?" in done.stderr
    assert "'listenPort' is ignored" in done.stderr
    strict = cometmq("config", "show", "-c", str(file), "--strict")
    assert strict.returncode == 2
    only = cometmq("config", "show", "brokerName", "-c", str(file))
    assert "broker-a" in only.stdout
    assert cometmq("config", "show", "nothing", "-c", str(file)).returncode == 4


def test_contradictory_settings_are_refused_at_start(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "bindAddress=127.0.0.1\nbrokerId=1\nbrokerRole=SYNC_MASTER\n"
        f"storePathRootDir={tmp_path}/store\n"
    )
    done = cometmq("broker", "-c", str(file))
    assert done.returncode == 1
    assert "brokerRole=SLAVE" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_nameserver_stops_on_a_signal_with_exit_code_0(closed_port: str) -> None:
    process = subprocess.Popen(
        [*COMMAND, "namesrv", "--listen-port", "0", "--bind-address", "127.0.0.1"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "nameserver.started" in line:
            break
    address = lines[-1].rsplit("address=", 1)[1].split()[0]
    assert cometmq("healthcheck", "--endpoint", address).returncode == 0
    both = cometmq("healthcheck", "--endpoint", f"{address};{closed_port}")
    assert (both.returncode, both.stdout) == (3, f"{address} is serving.\n"), "one of two"
    assert f"{closed_port} is not healthy" in both.stderr
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_server_stops_when_its_supervisor_ends() -> None:
    process = subprocess.Popen(
        [*COMMAND, "namesrv", "--supervised", "--bind-address", "127.0.0.1"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write('{"listen_port": "0"}\n')
    process.stdin.flush()
    while "nameserver.started" not in process.stderr.readline():
        pass
    process.stdin.close()
    process.stdin = None
    process.communicate(timeout=30)
    assert process.returncode == 0
