"""`cometmq proxy` as a process: its ready file, its health, and the tools through its one port."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from pathlib import Path

from cometmq.tests.harness.cluster import Cluster, cometmq_command, wait_until


def test_the_tools_work_through_a_proxy(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "d").start()
    ready = tmp_path / "proxy.json"
    log = tmp_path / "proxy.log"
    namesrv = cluster.node("namesrv").ports["namesrv"]
    token = (cluster.data / "cluster-token").read_text().strip()
    command = [
        *cometmq_command(),
        "proxy",
        "--ready-file",
        str(ready),
        "--bind-address",
        "127.0.0.1",
    ]
    command += ["--grpc-server-port", "0", "--metrics-prom-exporter-port", "0"]
    command += ["--namesrv-addr", f"127.0.0.1:{namesrv}", "--cluster-token", token]
    with log.open("wb") as file:
        proxy = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        wait_until("the proxy is ready", ready.exists)
        document = json.loads(ready.read_text())
        (process,) = document["processes"]
        assert (process["role"], process["pid"]) == ("proxy", proxy.pid)
        endpoint = document["endpoints"]
        run = cluster.run
        run("topic", "create", "orders", "--endpoint", endpoint)
        run("message", "send", "orders", "hello", "--endpoint", endpoint)
        listed = run("topic", "list", "--endpoint", endpoint, "-o", "json").stdout
        assert "orders" in listed
        metrics = f"http://127.0.0.1:{process['ports']['metrics']}"
        for path, wanted in (("/readyz", b""), ("/metrics", b"cometmq_proxy_groups{")):
            with urllib.request.urlopen(metrics + path, timeout=10) as answer:
                assert wanted in answer.read()
    finally:
        proxy.send_signal(signal.SIGTERM)
        assert proxy.wait(60) == 0, log.read_text()
        cluster.stop()
