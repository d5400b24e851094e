"""The console that a broker runs with `console=true`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from cometmq.tests.console.served import Served, told
from cometmq.tests.harness.cluster import Cluster, wait_until


def console_of(pid: int) -> psutil.Process | None:
    """Return the console that a process has started, and that listens."""
    for child in psutil.Process(pid).children():
        if "console" in child.cmdline() and listening(child):
            return child
    return None


def listening(process: psutil.Process) -> list[tuple[str, int]]:
    """Return the addresses on which a process listens."""
    found = process.net_connections("tcp")
    return [(one.laddr.ip, one.laddr.port) for one in found if one.status == psutil.CONN_LISTEN]


def ended(process: psutil.Process) -> bool:
    """Return whether a process has ended, its parent perhaps not having read its code."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_broker_runs_a_read_only_console_on_loopback_and_ends_it(tmp_path: Path) -> None:
    env = {"COMETMQ_CONSOLE": "true", "COMETMQ_CONSOLE_PORT": "0"}
    cluster = Cluster(tmp_path / "data", "--single", env=env)
    try:
        broker = cluster.start().nodes()[0].pid
        child = wait_until("the console listens", lambda: console_of(broker))
        ((address, port),) = listening(child)
        assert address == "127.0.0.1"
        console = Served(port)
        wait_until("it reads", lambda: cluster.endpoints in console.get("/"))
        assert "New topic" not in told(console.get("/topics"))
        assert console.ask("POST", "/topics/new", "name=x").status == 403
        os.kill(broker, signal.SIGKILL)
        wait_until("the console ends with its broker", lambda: ended(child))
    finally:
        cluster.stop()
