"""Cluster of docker-compose.yml for drills: containers, faults, and a workload.

Every client uses the published port of the proxy. Directed disconnections are packet filter rules
in the network namespaces of the containers (as root, which starting an engine requires as well).
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any, Self

from ... import __version__
from .. import history, verdict
from ..process import wait_until
from ..stage import OFFICIAL_LOAD, READERS, TOPIC
from .engine import Engine

#: The clone with docker-compose.yml: that of this module, or the present directory.
_CLONE = Path(__file__).resolve().parents[2]
ROOT = _CLONE if (_CLONE / "docker-compose.yml").exists() else Path.cwd()
PROJECT = ("-p", "cometmqdrill")
NAMESERVERS = ("ns0", "ns1", "ns2")
GROUPS = {"broker-a": ("a0", "a1"), "broker-b": ("b0", "b1")}
PROXIES = ("proxy", "proxy1")
BROKERS = tuple(name for names in GROUPS.values() for name in names)
SEGMENT = 4 << 20
DISK = "size=256m,uid=10001,mode=0700"
UP_S, SETTLE_S, UNLOAD_S = 240.0, 240.0, 120.0
ENDPOINT = "127.0.0.1:8081"


def build(docker: Engine) -> None:
    """Build the image from this tree."""
    docker.run("bash", "scripts/image", cwd=ROOT)


def small_disks(folder: Path) -> tuple[str, str]:
    """Return compose files in which each broker's volume is a small disk in memory. A service
    `keep` holds them while brokers are stopped, and fills them."""
    volumes = {
        name: {"driver_opts": {"type": "tmpfs", "device": "tmpfs", "o": DISK}} for name in BROKERS
    }
    keep = {
        "image": f"cometmq:{__version__}",
        "entrypoint": ["sleep", "infinity"],
        "volumes": [f"{name}:/{name}" for name in BROKERS],
    }
    waits = {"environment": {"COMETMQ_CLEAN_FILE_FORCIBLY_ENABLE": "false"}}
    services = {"keep": keep, **dict.fromkeys(BROKERS, waits)}
    path = folder / "small-disks.yml"
    path.write_text(json.dumps({"services": services, "volumes": volumes}))
    return "docker-compose.yml", str(path)


class Containers:
    """The composed cluster and its faults."""

    def __init__(self, docker_engine: Engine, folder: Path, *files: str) -> None:
        """`files`: compose files; without any docker-compose.yml."""
        import docker  # an extra: drills

        self.engine, self.folder = docker_engine, folder
        folder.mkdir(parents=True, exist_ok=True)
        docker_engine.run("bash", "scripts/secrets", str(folder / "secrets"), cwd=ROOT)
        named = [word for file in files for word in ("-f", file)]
        self._compose = [*docker_engine.compose(), *PROJECT, *named]
        self._environment = {
            "COMETMQ_MAPPED_FILE_SIZE_COMMIT_LOG": str(SEGMENT),
            "COMETMQ_SECRETS": str(folder / "secrets"),
            # docker-compose 1 gives up on an engine that has not answered within 60 s.
            "COMPOSE_HTTP_TIMEOUT": "300",
        }
        host = docker_engine.env.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        self._client = docker.DockerClient(base_url=host, timeout=120)
        self.events = history.History(folder / "events.jsonl", "drill")
        self.histories: list[Path] = []
        self.ok = history.Counter("ok")
        self._senders: list[subprocess.Popen[bytes]] = []
        self._readers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self._senders, *self._readers]:
            if process.poll() is None:
                process.kill()
                process.wait()
        try:
            (self.folder / "logs.txt").write_text(self.compose("logs", "--no-color"))
        finally:
            self.compose("down", "--volumes", "--timeout", "5")
            self._client.close()

    def compose(self, *words: str) -> str:
        """Run a compose command."""
        changed = Engine({**self.engine.env, **self._environment}, self.engine.inside)
        return changed.run(*self._compose, *words, cwd=ROOT)

    def up(self) -> Self:
        """Start everything; return when both groups have a leader and two in-sync replicas."""
        self.compose("up", "--detach")
        wait_until("the proxy is healthy", lambda: self.healthy("proxy"), UP_S)
        wait_until("both groups are whole", self.whole, UP_S)
        return self

    def container(self, service: str) -> Any:
        """Return the SDK's container of a service."""
        filters = {
            "label": [
                f"com.docker.compose.project={PROJECT[1]}",
                f"com.docker.compose.service={service}",
            ]
        }
        (found,) = self._client.containers.list(all=True, filters=filters)
        return found

    def healthy(self, service: str) -> bool:
        """Return the result of its health check."""
        state = self.container(service).attrs["State"]
        return bool(state.get("Health", {}).get("Status") == "healthy")

    def cometmq(self, service: str, *words: str) -> tuple[int, str]:
        """Run a command inside a container; return exit code and standard output."""
        done = self.container(service).exec_run(["cometmq", *words], demux=True)
        return int(done.exit_code), (done.output[0] or b"").decode()

    def state(self) -> dict[str, Any]:
        """Return `cometmq ha status` by group, from the first container that answers."""
        for service in (*NAMESERVERS, *BROKERS):
            if self.container(service).status != "running":
                continue
            _, text = self.cometmq(service, "ha", "status", "-o", "json")
            try:
                return {one["group"]: one for one in json.loads(text)}
            except ValueError:
                continue
        return {}

    def whole(self) -> bool:
        """Return whether every group has a leader and both replicas in sync."""
        found = self.state()
        return set(found) >= set(GROUPS) and all(
            one["leader"] != "none" and len(one["in_sync"]) == 2 for one in found.values()
        )

    def leader(self, group: str) -> str:
        """Return the service that leads a group; empty without a leader."""
        number = str(self.state().get(group, {}).get("leader", ""))
        return GROUPS[group][int(number)] if number.isdigit() else ""

    # Faults.

    def kill(self, service: str) -> None:
        """Run docker kill."""
        self.events.write("kill", service)
        self.container(service).kill()

    def stop(self, service: str) -> None:
        """Run docker stop."""
        self.events.write("stop", service)
        self.container(service).stop(timeout=20)

    def start(self, service: str) -> None:
        """Run docker start."""
        self.events.write("start", service)
        self.container(service).start()

    def pause(self, service: str) -> None:
        """Stop the process of a container.

        Not by docker pause: the freezer of cgroups v1 fails or never ends ("unable to freeze") if a
        health check starts in the container at that moment.
        """
        self.events.write("pause", service)
        self.container(service).kill("SIGSTOP")

    def unpause(self, service: str) -> None:
        """Let its process continue."""
        self.events.write("resume", service)
        self.container(service).kill("SIGCONT")

    def fill(self, service: str) -> None:
        """Fill the disk of a broker of `small_disks`."""
        self.events.write("fill", service)
        self.container("keep").exec_run(["sh", "-c", f"cat /dev/zero >/{service}/filling"])

    def empty(self, service: str) -> None:
        """Free the space that `fill` took."""
        self.events.write("empty", service)
        self.container("keep").exec_run(["rm", f"/{service}/filling"])

    def disconnect(self, service: str) -> None:
        """Disconnect a container from the network."""
        self.events.write("isolate", service)
        self._network().disconnect(self.container(service))

    def connect(self, service: str) -> None:
        """Connect it again."""
        self.events.write("heal", service)
        self._network().connect(self.container(service), aliases=[service])

    def _network(self) -> Any:
        return self._client.networks.get(f"{PROJECT[1]}_default")

    def drop(self, sender: str, receiver: str) -> None:
        """Drop packets from `sender` to `receiver` until `heal`."""
        self.events.write("cut", f"{sender}>{receiver}")
        self._filter(receiver, "-A", self._address(sender))

    def heal(self, sender: str, receiver: str) -> None:
        """Remove the rules of `drop`."""
        self.events.write("heal", f"{sender}>{receiver}")
        self._filter(receiver, "-D", self._address(sender))

    def _address(self, service: str) -> str:
        networks = self.container(service).attrs["NetworkSettings"]["Networks"]
        return str(networks[f"{PROJECT[1]}_default"]["IPAddress"])

    def _filter(self, service: str, what: str, source: str) -> None:
        pid = self.container(service).attrs["State"]["Pid"]
        words = ["iptables", what, "INPUT", "-s", source, "-j", "DROP"]
        self.engine.run("nsenter", f"--net=/proc/{pid}/ns/net", *words)

    # The workload.

    def load(self, run: str) -> None:
        """Start raw senders, readers and the official client on the published port."""
        self.events.write("load", run)
        raw = ("-m", "cometmq.drills.load")
        self._senders = [
            self._client_process(run, "raw", *raw, "--senders", "6", "--pause", "0.02"),
            self._client_process(run, "official", "-m", OFFICIAL_LOAD, "--senders", "2"),
        ]
        readers = ("--senders", "0", "--readers", "2", "--group", READERS)
        self._readers = [self._client_process(run, "readers", *raw, *readers)]
        self.more_acks(20)

    def _client_process(self, run: str, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a client that writes its history and its errors to files named after it."""
        history_path = self.folder / f"history-{name}-{run}.jsonl"
        home = self.folder / f"home-{name}"
        home.mkdir(exist_ok=True)
        self.histories.append(history_path)
        common = ("--endpoints", ENDPOINT, "--topic", TOPIC, "--run", run)
        with (self.folder / f"client-{name}.txt").open("ab") as log:
            return subprocess.Popen(
                [
                    *(*self.engine.inside, sys.executable, "-P", *words, *common),
                    *("--history", str(history_path)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=home,
                env={**os.environ, "HOME": str(home), "GRPC_VERBOSITY": "NONE"},
            )

    def more_acks(self, count: int, seconds: float = SETTLE_S) -> None:
        """Wait for a number of further acknowledged sends."""
        wanted = self.ok.poll(self.histories) + count
        wait_until(
            f"{count} more acknowledged sends",
            lambda: self.ok.poll(self.histories) >= wanted,
            seconds,
        )

    def unload(self) -> None:
        """Stop the senders, wait until everything is delivered, and stop the readers."""
        self.events.write("unload", "")
        self._stop_clients(self._senders)
        wait_until(
            "every acknowledged message is delivered",
            lambda: verdict.all_delivered(self.histories),
            SETTLE_S,
        )
        self._stop_clients(self._readers)

    def _stop_clients(self, clients: list[subprocess.Popen[bytes]]) -> None:
        """Stop the processes; each resolves its unknown outcomes first."""
        for process in clients:
            process.send_signal(signal.SIGTERM)
        for process in clients:
            process.wait(UNLOAD_S)
        clients.clear()

    def compare(self, result: verdict.Verdict) -> None:
        """Stop the brokers, copy their logs, and run the checker."""
        stores = {}
        wait_until("both groups are whole", self.whole, SETTLE_S)
        time.sleep(1.0)
        leaders = {self.leader(group) for group in GROUPS}
        # As in stage.py: no election follows, and the leaders' last records reach their followers.
        for service in (*NAMESERVERS, *sorted(BROKERS, key=lambda name: name not in leaders)):
            self.container(service).stop(timeout=20)
        for service in BROKERS:
            stores[service] = self._copied(service)
        promises = verdict.Promises.read(self.histories)
        found = [
            record
            for names in GROUPS.values()
            for record in verdict.records(stores[names[0]], TOPIC)
        ]
        events = list(history.read(self.folder / "events.jsonl"))
        faults = [event["t"] for event in events if event["e"] in verdict.BREAKING | {"stop"}]
        tails = verdict.archived(stores.values(), TOPIC)
        verdict.check_log(result, promises, found, tails, faults)
        result.reordered = []  # a sender's messages go to two groups without a common order
        for names in GROUPS.values():
            verdict.check_stores(result, {name: stores[name] for name in names})
        verdict.measure(result, promises, events)

    def _copied(self, service: str) -> Path:
        parts, _ = self.container(service).get_archive("/data/store")
        target = self.folder / "copies" / service
        target.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(b"".join(parts))) as archive:
            archive.extractall(target, filter="data")
        return target / "store"
