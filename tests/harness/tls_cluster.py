"""A nameserver and brokers as processes with certificates of `cometmq auth dev-ca`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Self

import grpc

from cometmq.drills.process import accepts
from cometmq.tests.harness.cluster import cometmq_command, wait_until
from cometmq.tests.harness.pace import paced_ms
from cometmq.tests.harness.ports import free_ports
from cometmq.tests.harness.wire import Wire

NODE_NAME = "node.cometmq.internal"
#: Of the certificate of a caller that is a node or an operator.
CALLER = "operator"
_TIMERS_MS = {
    "controllerLeaseMs": 1000,
    "controllerBeatIntervalMs": 100,
    "haBeatIntervalMs": 100,
    "haReconnectMaxMs": 200,
    "registerBrokerPeriod": 200,
}
_TIMERS = {key: str(paced_ms(usual_ms)) for key, usual_ms in _TIMERS_MS.items()}


def dev_ca(folder: Path, *nodes: str) -> None:
    """Make or renew certificates."""
    command = [*cometmq_command(), "auth", "dev-ca", "--directory", str(folder), *nodes]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def credentials(
    folder: Path, name: str = "", authority: Path | None = None
) -> grpc.ChannelCredentials:
    """Return the credentials of a client with the certificate of a node, or without one."""
    roots = (authority or folder / "ca.pem").read_bytes()
    if not name:
        return grpc.ssl_channel_credentials(roots)
    key, chain = ((folder / f"{name}.{kind}").read_bytes() for kind in ("key", "pem"))
    return grpc.ssl_channel_credentials(roots, key, chain)


class TlsCluster:
    """Nodes `ns`, `b0`, `b1`, ...; ends its processes at the end of the `with`."""

    def __init__(self, folder: Path, settings: dict[str, str], brokers: int = 2) -> None:
        """`settings` are those of every node."""
        self.folder = folder
        self.certificates = folder / "tls"
        self.names = ["ns", *(f"b{number}" for number in range(brokers))]
        dev_ca(self.certificates, *self.names, CALLER)
        self._token = settings.get("clusterToken", "")
        self._settings = {name: dict(settings) for name in self.names}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        ports = free_ports(1 + 3 * brokers)
        self.namesrv = f"127.0.0.1:{ports[0]}"
        self._ports = {f"b{n}": ports[1 + 3 * n : 4 + 3 * n] for n in range(brokers)}

    def __enter__(self) -> Self:
        try:
            for name in self.names:
                self.start(name)
            wait_until("all replicas are in sync", self.in_sync)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def client(self, name: str) -> str:
        """Return the client address of a broker."""
        return f"127.0.0.1:{self._ports[name][0]}"

    def ha(self, name: str) -> str:
        """Return the replication address of a broker."""
        return f"127.0.0.1:{self._ports[name][1]}"

    def set(self, name: str, **settings: str) -> None:
        """Change settings of a node for its next start."""
        self._settings[name].update(settings)

    def start(self, name: str) -> None:
        """Start a node."""
        home = self.folder / name
        home.mkdir(exist_ok=True)
        file = home / "node.conf"
        conf = self._conf(name, home) | self._settings[name]
        file.write_text("".join(f"{key}={value}\n" for key, value in conf.items()))
        role = "namesrv" if name == "ns" else "broker"
        with (home / "log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*cometmq_command(), role, "-c", str(file)], stdout=log, stderr=log
            )

    def kill(self, name: str) -> None:
        """End a node as a crash would."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def restart(self, name: str) -> None:
        """Stop a node, start it again and wait until it serves and all replicas are in sync."""
        process = self._processes.pop(name)
        process.terminate()
        process.wait(30)
        self.start(name)
        # The others may still know it as in sync from before.
        host, _, port = (self.namesrv if name == "ns" else self.client(name)).rpartition(":")
        wait_until(f"{name} listens", lambda: accepts(host, int(port)))
        wait_until(f"all are in sync after the restart of {name}", self.in_sync)

    def log(self, name: str) -> str:
        """Return what a node has logged."""
        return (self.folder / name / "log").read_text()

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command with the certificate of an operator."""
        files = {
            "COMETMQ_TLS_CA": self.certificates / "ca.pem",
            "COMETMQ_TLS_CERTIFICATE": self.certificates / f"{CALLER}.pem",
            "COMETMQ_TLS_KEY": self.certificates / f"{CALLER}.key",
        }
        env = {
            **os.environ,
            "COMETMQ_CLUSTER_TOKEN": self._token,
            **{key: str(path) for key, path in files.items()},
            "COMETMQ_NAMESRV_ADDR": self.namesrv,
            "COMETMQ_ENDPOINT": self.client("b0"),
        }
        command = [*cometmq_command(), *arguments]
        return subprocess.run(
            command, env=env, check=check, capture_output=True, text=True, timeout=60
        )

    def status(self) -> list[dict[str, Any]]:
        """Return the replicas as `cometmq ha status` shows them; empty while it fails."""
        done = self.run("ha", "status", "-o", "json", check=False)
        found: Any = json.loads(done.stdout) if done.stdout.startswith(("{", "[")) else []
        return [row for group in _groups(found) for row in group["replicas"]]

    def in_sync(self) -> bool:
        """Return whether every broker is in sync."""
        rows = self.status()
        return len(rows) == len(self.names) - 1 and all(row["in_sync"] for row in rows)

    def leader(self) -> str:
        """Return the name of the leader; "" while there is none."""
        for row in self.status():
            if row["role"] == "leader":
                return f"b{row['broker_id']}"
        return ""

    def wire(self, name: str, *, certificate: str = "") -> Wire:
        """Return a TLS connection to the client port of a broker."""
        return Wire(self.client(name), credentials=credentials(self.certificates, certificate))

    def _conf(self, name: str, home: Path) -> dict[str, str]:
        files = {
            "tlsCertificate": str(self.certificates / f"{name}.pem"),
            "tlsKey": str(self.certificates / f"{name}.key"),
            "tlsCa": str(self.certificates / "ca.pem"),
            "bindAddress": "127.0.0.1",
            "controllerLeaseMs": _TIMERS["controllerLeaseMs"],
            "controllerBeatIntervalMs": _TIMERS["controllerBeatIntervalMs"],
        }
        if name == "ns":
            port = self.namesrv.rpartition(":")[2]
            data = str(home / "data")
            return {**files, "listenPort": port, "namesrvDataDir": data, "controller": "true"}
        client, ha, metrics = map(str, self._ports[name])
        return {
            **files,
            **_TIMERS,
            "brokerName": "group",
            "brokerId": name[1:],
            "brokerRole": "SYNC_MASTER",
            "brokerIP1": "127.0.0.1",
            "grpcServerPort": client,
            "haListenPort": ha,
            "metricsPromExporterPort": metrics,
            "namesrvAddr": self.namesrv,
            "enableControllerMode": "true",
            "storePathRootDir": str(home / "store"),
            "mappedFileSizeCommitLog": str(16 << 20),
        }


def _groups(found: Any) -> list[Any]:
    return found if isinstance(found, list) else found.get("groups", [found])
