"""Ctrl-C and SIGTERM end a job at any moment without leftover processes or stack traces."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cometmq.tests.harness.cluster import cometmq_command, wait_until
from cometmq.tests.pipeline.written import sent, write_store

pytestmark = pytest.mark.timeout(600)
pytest.importorskip("pyspark", reason="pyspark is not installed")

START_S = 240.0


def children(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def words_of(one: psutil.Process) -> str:
    try:
        return " ".join(one.cmdline())
    except psutil.Error:
        return ""


def starts(found: list[psutil.Process]) -> bool:
    """The script that will be the JVM, or the JVM at its very beginning."""
    return bool(found)


def works(found: list[psutil.Process]) -> bool:
    """A task runs: Spark has its Python workers."""
    return any("pyspark.daemon" in words_of(one) for one in found)


@pytest.mark.parametrize(
    ("number", "moment", "code"),
    [
        (signal.SIGINT, starts, 130),
        pytest.param(signal.SIGTERM, starts, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, works, 130, marks=pytest.mark.slow),
        (signal.SIGTERM, works, 143),
    ],
)
def test_a_signal_ends_the_jvm_without_stack_traces(
    number: int, moment: Callable[[list[psutil.Process]], bool], code: int, tmp_path: Path
) -> None:
    store = write_store(tmp_path / "broker-a", [sent("t", n) for n in range(50)])
    # The tests may run in an environment that ignores SIGINT.
    command = ["env", "--default-signal=INT", *cometmq_command(), "pipeline", "replay", str(store)]
    # Nothing listens there: the task retries for a minute.
    command += [
        "--topic",
        "t",
        "--to",
        "u",
        "--endpoint",
        "127.0.0.1:1",
        "--master",
        "local[1]",
        "--driver-memory",
        "512m",
    ]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as job:
        wait_until("it is that far", lambda: moment(children(job.pid)), START_S)
        started = children(job.pid)
        job.send_signal(number)
        output, _ = job.communicate(timeout=120)
    assert job.returncode == code, output
    assert "Traceback" not in output
    assert "Exception" not in output
    assert "\tat " not in output
    left = [one for one in started if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert left == []
