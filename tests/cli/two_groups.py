"""A cluster of two broker groups and a proxy, each a process: `up --single`, `broker`, `proxy`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cometmq.operations.connection import Connection
from cometmq.operations.errors import CliError
from cometmq.operations.links import Links
from cometmq.proto import paths, v1
from cometmq.tests.harness.cluster import SEGMENT_SIZE, STOP_S, Cluster, cometmq_command, wait_until

NAMES = ["broker-a", "broker-b"]
_PORTS = ("--grpc-server-port", "0", "--metrics-prom-exporter-port", "0")
_COMMON = ("--bind-address", "127.0.0.1", *_PORTS)
#: The log line of a server that serves.
_STARTED = re.compile(r"(?:broker|proxy)\.started .*client=(\S+)")


class Server:
    """A `cometmq` server process of its own; it can be stopped and started again."""

    def __init__(self, folder: Path, words: list[str], env: Mapping[str, str]) -> None:
        self._folder = folder
        self._words = words
        self._env = {**os.environ, **env}
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint = ""

    def start(self) -> None:
        """Start; return when it serves."""
        file = self._folder / "log"
        with file.open("wb") as log:
            self._process = subprocess.Popen(
                [*cometmq_command(), *self._words, *_COMMON],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
            )
        process = self._process

        def serves() -> str:
            text = file.read_text()
            assert process.poll() is None, text
            found = _STARTED.search(text)
            return found[1] if found else ""

        self.endpoint = wait_until(f"{self._words[0]} serves", serves)

    def stop(self) -> None:
        """Stop with SIGTERM."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(STOP_S)

    def kill9(self) -> None:
        """Kill with SIGKILL; return when it has ended."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_S)


class TwoGroups:
    """The processes, and commands at one of their endpoints."""

    def __init__(self, cluster: Cluster, second: Server, proxy: Server | None) -> None:
        self.cluster = cluster
        self.first = cluster.address("single")
        self.second = second
        self._proxy = proxy

    @property
    def proxy(self) -> Server:
        """The proxy."""
        assert self._proxy is not None
        return self._proxy

    def both_are_known(self) -> bool:
        """Return whether every node forwards to the leaders of both groups."""
        servers = [self.first, self.second.endpoint]
        servers += [self._proxy.endpoint] if self._proxy is not None else []
        return all(_reaches(endpoint, name) for endpoint in servers for name in NAMES)

    def run(
        self, *words: str, endpoint: str = "", code: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run `cometmq WORDS` at an endpoint, by default the first group's node."""
        done = self.cluster.run(*words, "--endpoint", endpoint or self.first, check=False)
        text = done.stdout + done.stderr
        assert code is None or done.returncode == code, text
        assert "Traceback" not in text
        return done

    def out(self, *words: str, endpoint: str = "") -> str:
        """What a command prints on stdout."""
        return self.run(*words, endpoint=endpoint).stdout

    def json(self, *words: str, endpoint: str = "") -> Any:
        """The document that a command prints."""
        return json.loads(self.out(*words, "-o", "json", endpoint=endpoint))


def _reaches(endpoint: str, name: str) -> bool:
    """Return whether a group answers, with a call that a group without users always serves."""
    absent = v1.PutUserRequest(name="nobody", is_super=True, must_exist=True, broker=name)
    with Connection(endpoint, Links()) as connection:
        try:
            connection.call(paths.PUT_USER, absent, v1.UserResponse)
        except CliError as error:
            return "user nobody does not exist" in str(error)
    return False


@contextmanager
def two_groups(
    folder: Path, *, env: Mapping[str, str] | None = None, proxy: bool = True
) -> Iterator[TwoGroups]:
    """Run the cluster for a `with` block; `env` has settings of both groups."""
    cluster = Cluster(folder / "a", "--single", env=env).start()
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        namesrv = f"127.0.0.1:{cluster.node('single').ports['namesrv']}"
        token = (cluster.data / "cluster-token").read_text().strip()

        def server(*words: str) -> Server:
            home = folder / words[0]
            home.mkdir()
            settings = {**(env or {}), "COMETMQ_CLUSTER_TOKEN": token}
            made = Server(home, [*words, "--namesrv-addr", namesrv], settings)
            stack.callback(made.stop)
            made.start()
            return made

        second = server(
            *("broker", "--broker-name", NAMES[1], "--ha-listen-port", "0"),
            *("--store-path-root-dir", str(folder / "store-b")),
            *("--mapped-file-size-commit-log", str(SEGMENT_SIZE)),
        )
        groups = TwoGroups(cluster, second, server("proxy") if proxy else None)
        wait_until("both groups are known", groups.both_are_known)
        yield groups
