"""A forked process is what a started one is, whatever a caller can see of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cometmq.cli.cluster.forking import ForkedProcess, ForkServer
from cometmq.cli.cluster.process_image import can_fork_beside
from cometmq.tests.harness.cluster import Cluster, wait_until

pytestmark = [
    pytest.mark.real_start,
    pytest.mark.skipif(not can_fork_beside(), reason="this machine has no fork server"),
]

REPORT = """
import json, os, resource, signal, sys
print(json.dumps({
    "argv": sys.argv[1:], "name": __name__, "directory": os.getcwd(), "parent": os.getppid(),
    "group": os.getpgid(0) == os.getpid(), "environment": dict(os.environ),
    "descriptors": sorted(int(n) for n in os.listdir("/dev/fd"))[:5],
    "umask": os.umask(0), "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "signals": {s.name: str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM,
                signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)},
    "mask": str(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "shown": open("/proc/self/cmdline").read().split("\\0"),
    "kernel": sorted(open("/proc/self/environ").read().split("\\0")),
    "streams": [[s.encoding, s.errors, s.line_buffering, s.fileno()]
                for s in (sys.stdin, sys.stdout, sys.stderr)],
}))
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer(["cometmq.cli.main"], fork=False)
    yield made
    made.close()


def forked(server: ForkServer, command: list[str], out: Path, **more: Any) -> ForkedProcess:
    """Start a process whose output goes to a file."""
    reader, writer = os.pipe()
    with out.open("wb") as file:
        descriptors = {0: reader, 1: file.fileno(), 2: file.fileno()}
        environment = more.pop("environment", dict(os.environ))
        pid = server.start(command, environment, descriptors, **more)
    os.close(reader)
    return ForkedProcess(pid, os.fdopen(writer, "wb"))


def ended(process: ForkedProcess) -> int:
    wait_until("the process has ended", lambda: process.poll() is not None)
    assert process.returncode is not None
    return process.returncode


@pytest.mark.parametrize("code", [0, 3])
def test_a_forked_process_is_like_a_started_one(
    server: ForkServer, tmp_path: Path, code: int
) -> None:
    program = tmp_path / "report.py"
    program.write_text(REPORT)
    command = [sys.executable, str(program), str(code), "a b"]
    environment = {**os.environ, "COMETMQ_EXAMPLE": "é"}
    started = subprocess.run(
        command,
        stdin=subprocess.PIPE,
        capture_output=True,
        check=False,
        env=environment,
        cwd=tmp_path,
        umask=0o27,
        process_group=0,
    )
    process = forked(
        *(server, command, tmp_path / "out"),
        environment=environment,
        directory=str(tmp_path),
        umask=0o27,
        own_group=True,
    )
    assert ended(process) == started.returncode == code
    expected = json.loads(started.stdout)
    assert json.loads((tmp_path / "out").read_text()) == expected
    assert expected["parent"] == os.getpid()


def test_a_variable_that_is_read_before_main_starts_the_command(
    server: ForkServer, tmp_path: Path
) -> None:
    program = tmp_path / "flags.py"
    program.write_text("import sys; print(sys.flags.optimize)")
    process = forked(
        *(server, [sys.executable, str(program)], tmp_path / "out"),
        environment={**os.environ, "PYTHONOPTIMIZE": "2"},
    )
    assert ended(process) == 0
    assert (tmp_path / "out").read_text() == "2\n"


@pytest.mark.parametrize(
    "program",
    [
        "import sys; print('out'); sys.exit('a reason')",
        "import atexit; atexit.register(print, 'at the end'); print('first')",
        "import threading, time; threading.Thread(target=lambda: print('thread')).start()",
        "raise KeyError('unknown')",
        "import sys; sys.exit(True)",
    ],
)
def test_a_forked_process_ends_as_a_started_one(
    server: ForkServer, tmp_path: Path, program: str
) -> None:
    file = tmp_path / "program.py"
    file.write_text(program)
    command = [sys.executable, str(file)]
    started = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, text=True
    )
    process = forked(server, command, tmp_path / "out")
    assert ended(process) == started.returncode
    said = (tmp_path / "out").read_text()
    assert said.splitlines()[:1] == started.stdout.splitlines()[:1]
    assert said.splitlines()[-1:] == started.stdout.splitlines()[-1:]


def test_signals_end_a_forked_process_as_a_started_one(server: ForkServer, tmp_path: Path) -> None:
    program = tmp_path / "wait.py"
    program.write_text("import sys; print('waits', flush=True); sys.stdin.read()")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        out = tmp_path / number.name
        process = forked(server, [sys.executable, str(program)], out)
        wait_until("it waits", lambda out=out: "waits" in out.read_text())
        process.send_signal(number)
        assert ended(process) == -number


def test_a_server_of_changed_files_replaces_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "cometmq_example"
    package.mkdir()
    (package / "__init__.py").write_text("")
    module = package / "part.py"
    module.write_text("VALUE = 'old'")
    program = tmp_path / "show.py"
    program.write_text("from cometmq_example.part import VALUE\nprint(VALUE)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = ForkServer(["cometmq_example.part"], fork=False)
    outputs = []
    for value in ("old", "a new one"):
        module.write_text(f"VALUE = {value!r}")
        os.utime(module, (time.time(), hash(value) % 1_000_000))
        process = forked(server, [sys.executable, str(program)], tmp_path / "out")
        assert ended(process) == 0, (tmp_path / "out").read_text()
        outputs.append((tmp_path / "out").read_text().strip())
    server.close()
    assert outputs == ["old", "a new one"]


def test_the_processes_of_up_outlive_the_fork_server_and_start_again_without_it(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path / "data", "--single", restart=True)
    cluster.start()
    try:
        children = psutil.Process(cluster.supervisor_pid).children()
        (fork_server,) = [p for p in children if any("fork_server" in w for w in p.cmdline())]
        first = cluster.node("single").pid
        assert {p.pid for p in children} == {fork_server.pid, first}
        fork_server.kill()
        assert cluster.healthy(cluster.address("single"))
        os.kill(first, signal.SIGKILL)
        wait_until("it serves again", lambda: cluster.node("single").pid != first)
        assert cluster.healthy(cluster.address("single"))
    finally:
        assert cluster.stop() == 0
    assert not psutil.pid_exists(fork_server.pid)
