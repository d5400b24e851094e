"""The console that a broker or a proxy runs with `console=true`."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil

from cometmq.tests.console.served import Served, told
from cometmq.tests.harness.cluster import Cluster, cometmq_command, wait_until


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


def test_a_proxy_runs_a_console_that_reads_the_brokers_behind_it(
    shared_cluster: Cluster, tmp_path: Path
) -> None:
    shared_cluster.create_topic("behind-a-proxy", queues=1)
    token = (shared_cluster.data / "cluster-token").read_text().strip()
    namesrv = shared_cluster.node("namesrv").ports["namesrv"]
    command = [*cometmq_command(), "proxy", "--bind-address", "127.0.0.1", "--cluster-token", token]
    command += ["--grpc-server-port", "0", "--metrics-prom-exporter-port", "0"]
    command += ["--namesrv-addr", f"127.0.0.1:{namesrv}"]
    command += ["--console", "true", "--console-port", "0"]
    log = tmp_path / "proxy.log"
    with log.open("wb") as file:
        proxy = subprocess.Popen(command, stdout=file, stderr=file)
    try:

        def started() -> psutil.Process | None:
            assert proxy.poll() is None, log.read_text()
            return console_of(proxy.pid)

        child = wait_until("the console listens", started)
        ((address, port),) = listening(child)
        assert address == "127.0.0.1"
        console = Served(port)
        topics = "/topics?q=behind-a-proxy"
        wait_until("it reads", lambda: console.ask("GET", topics).status == 200)
        assert "1 topic" in told(console.get(topics))
        wait_until("it draws the cluster", lambda: "broker 1" in told(console.get("/")))
        assert console.ask("POST", "/topics/new", "name=x").status == 403
        proxy.send_signal(signal.SIGTERM)
        assert proxy.wait(60) == 0, log.read_text()
        wait_until("the console ends with its proxy", lambda: ended(child))
    finally:
        if proxy.poll() is None:
            proxy.kill()
            proxy.wait()
