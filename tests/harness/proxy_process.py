"""A process of `cometmq proxy` with a port for classic clients, before a cluster of processes."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cometmq.tests.harness.cluster import Cluster, cometmq_command, wait_until


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running proxy."""

    pid: int
    #: For classic clients, on 127.0.0.1.
    port: int
    log: Path


@contextmanager
def proxy_process(cluster: Cluster, folder: Path, **more: str) -> Iterator[Proxy]:
    """Run a proxy, with more options; at the end it must stop without an error."""
    ready, log = folder / "proxy.json", folder / "proxy.log"
    ports = next(node.ports for node in cluster.nodes() if "namesrv_remoting" in node.ports)
    flags = {
        "bind_address": "127.0.0.1",
        "grpc_server_port": "0",
        "metrics_prom_exporter_port": "0",
        "remoting_listen_port": "-1",
        "namesrv_addr": f"127.0.0.1:{ports['namesrv']}",
        "remoting_namesrv_addr": f"127.0.0.1:{ports['namesrv_remoting']}",
        "cluster_token": (cluster.data / "cluster-token").read_text().strip(),
        **more,
    }
    command = [*cometmq_command(), "proxy", "--ready-file", str(ready)]
    for flag, text in flags.items():
        command += [f"--{flag.replace('_', '-')}", text]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        wait_until("the proxy is ready", ready.exists)
        (one,) = json.loads(ready.read_text())["processes"]
        yield Proxy(process.pid, one["ports"]["remoting"], log)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, log.read_text()
