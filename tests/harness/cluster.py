"""A real cluster in processes of its own: `cometmq up`, started, killed and restarted from outside.

Promises: nothing is shared with the caller but a data directory, the ready file and sockets; ports
are chosen by the operating system; only processes that this object started are signalled, by id;
`stop` leaves none behind. The faces it relies on are those that `cometmq up` documents: the ready
file (`endpoints`, `processes`), `--no-restart`, and `cometmq up restart NAME --data DIR`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

START_S = 60.0  # a loaded machine of two cores; the benchmark, not this limit, measures the start
STOP_S = 30.0  # drain, flush and close of every process
POLL_S = 0.02
# A node allocates three segments at once: those of many clusters with 1 GiB each would fill a disk.
SEGMENT_SIZE = 64 << 20
_SEGMENT_KEY = "COMETMQ_MAPPED_FILE_SIZE_COMMIT_LOG"


class ClusterError(AssertionError):
    """The cluster did not do what was asked in time; the message carries the end of its log."""


@dataclass(frozen=True, slots=True)
class Node:
    """One process of the cluster, as the ready file describes it."""

    name: str
    role: str
    pid: int
    ports: dict[str, int]
    data: Path
    command: list[str]


def cometmq_command() -> list[str]:
    """The `cometmq` command of the interpreter that runs this."""
    return [str(Path(sys.executable).with_name("cometmq"))]


def wait_until(what: str, test: Any, seconds: float = START_S) -> Any:
    """Poll `test` until it returns something true; that is the answer. Raises ClusterError."""
    end = time.monotonic() + seconds
    while True:
        answer = test()
        if answer:
            return answer
        if time.monotonic() > end:
            raise ClusterError(f"not within {seconds:g} s: {what}")
        time.sleep(POLL_S)


class Cluster:
    """`cometmq up` on ephemeral ports under `data`; options are those of the command."""

    def __init__(
        self,
        data: Path,
        *options: str,
        port: int = 0,
        restart: bool = False,
        env: Mapping[str, str] | None = None,
        segment_size: int | None = SEGMENT_SIZE,
        controller: bool = False,
    ) -> None:
        """Without `segment_size` it is the broker's own default, as users have it. With `controller`
        the nameserver elects leaders, as it does for users; most tests mean fixed roles."""
        self.data = data
        segments = {} if segment_size is None else {_SEGMENT_KEY: str(segment_size)}
        self._env = {**os.environ, **segments, **(env or {})}
        self.ready_file = data / "ready.json"
        self.log_file = data / "up.log"
        roles = "--controller" if controller else "--no-controller"
        said = {"--controller", "--no-controller"} & set(options)
        self._options = [*options, *([] if said else [roles]), "--port", str(port)]
        if not restart:
            self._options.append("--no-restart")
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._seen: set[int] = set()

    def start(self, seconds: float = START_S) -> Self:
        """Start and wait until the first send would succeed."""
        self.data.mkdir(parents=True, exist_ok=True)
        self.ready_file.unlink(missing_ok=True)
        command = [*cometmq_command(), "up", "--data", str(self.data)]
        command += ["--ready-file", str(self.ready_file), *self._options]
        with self.log_file.open("ab") as log:
            self._supervisor = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
            )
        self._wait("cometmq up is ready", self._ready, seconds)
        self._remember()
        return self

    def _ready(self) -> bool:
        assert self._supervisor is not None
        if self._supervisor.poll() is not None:
            raise ClusterError(
                f"cometmq up ended with {self._supervisor.returncode}\n{self.tail()}"
            )
        return self.ready_file.exists()

    def _wait(self, what: str, test: Any, seconds: float) -> Any:
        try:
            return wait_until(what, test, seconds)
        except ClusterError as error:
            raise ClusterError(f"{error}\n{self.tail()}") from None

    def tail(self, lines: int = 40) -> str:
        """The end of what the processes printed."""
        if not self.log_file.exists():
            return "(no log)"
        text = self.log_file.read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    @property
    def supervisor_pid(self) -> int:
        """The process id of `cometmq up` itself."""
        assert self._supervisor is not None
        return self._supervisor.pid

    def ready(self) -> dict[str, Any]:
        """The ready file as it is now."""
        found: dict[str, Any] = json.loads(self.ready_file.read_text())
        return found

    @property
    def endpoints(self) -> str:
        """Both access points, separated by a semicolon, as official clients take them."""
        return str(self.ready()["endpoints"])

    def nodes(self) -> list[Node]:
        """Every process the ready file names."""
        return [
            Node(
                one["name"],
                one["role"],
                int(one["pid"]),
                {key: int(value) for key, value in one["ports"].items()},
                Path(one["data"]),
                list(one["command"]),
            )
            for one in self.ready()["processes"]
        ]

    def node(self, name_or_role: str) -> Node:
        """The process with this name or, failing that, this role at start."""
        for key in ("name", "role"):
            for one in self.nodes():
                if getattr(one, key) == name_or_role:
                    return one
        raise KeyError(name_or_role)

    def address(self, name_or_role: str) -> str:
        """`host:port` of the clients' port of one broker process."""
        ports = self.node(name_or_role).ports
        port = ports.get("client") or ports.get("grpc") or next(iter(ports.values()))
        return f"127.0.0.1:{port}"

    def kill9(self, name_or_role: str) -> int:
        """Kill one process as a crash would; returns when it is gone, with its id."""
        pid = self.node(name_or_role).pid
        os.kill(pid, signal.SIGKILL)
        self._wait(f"{name_or_role} ({pid}) is gone", lambda: not _runs(pid), STOP_S)
        return pid

    def restart(self, name_or_role: str, seconds: float = START_S) -> Node:
        """Ask the supervisor to start it again; returns when it serves again."""
        before = self.node(name_or_role)
        self.run("up", "restart", before.name, "--data", str(self.data), timeout=seconds)
        after = self._wait(
            f"{before.name} has a new process",
            lambda: next((n for n in self.nodes() if n.name == before.name and _runs(n.pid)), None),
            seconds,
        )
        self._remember()
        address = self.address(before.name)
        self._wait(f"{before.name} serves", lambda: self.healthy(address), seconds)
        return Node(**{f: getattr(after, f) for f in Node.__slots__})

    def healthy(self, address: str) -> bool:
        """Whether `cometmq healthcheck` says that the node at this address is well."""
        return self.run("healthcheck", "--endpoint", address, check=False).returncode == 0

    def run(
        self, *arguments: str, check: bool = True, timeout: float = START_S
    ) -> subprocess.CompletedProcess[str]:
        """Run `cometmq ARGUMENTS`; a failure shows what it printed."""
        done = subprocess.run(
            [*cometmq_command(), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if check and done.returncode != 0:
            raise ClusterError(
                f"cometmq {' '.join(arguments)} ended with {done.returncode}\n"
                f"{done.stdout}{done.stderr}\n--- up ---\n{self.tail()}"
            )
        return done

    def wait_in_sync(self, count: int = 2) -> Self:
        """Wait until so many replicas are in sync; before that a master answers alone."""
        self._wait(f"{count} replicas are in sync", lambda: self._in_sync() >= count, START_S)
        return self

    def _in_sync(self) -> int:
        arguments = ("cluster", "describe", "-o", "json", "--endpoint", self.address("master"))
        found = json.loads(self.run(*arguments).stdout)
        return sum(bool(member["in_sync"]) for member in found["members"])

    def create_topic(self, name: str, *, kind: str = "normal", queues: int = 8) -> str:
        """Create a topic through the first access point; returns its name."""
        self.run(
            *("topic", "create", name, "--type", kind, "--queues", str(queues)),
            *("--endpoint", self.address("master")),
        )
        return name

    def create_group(self, name: str, *, order: bool = False, attempts: int = 16) -> str:
        """Create a consumer group through the first access point; returns its name."""
        self.run(
            *("group", "create", name, "--order", str(order).lower()),
            *("--max-attempts", str(attempts), "--endpoint", self.address("master")),
        )
        return name

    def stop(self, seconds: float = STOP_S) -> int:
        """End as Ctrl-C does; whatever is left after `seconds` is killed. Returns the exit code."""
        if self._supervisor is None:
            return 0
        self._remember()
        code = self._end_supervisor(seconds)
        for pid in self._seen:
            if _runs(pid):
                os.kill(pid, signal.SIGKILL)
        self._supervisor = None
        return code

    def _end_supervisor(self, seconds: float) -> int:
        assert self._supervisor is not None
        if self._supervisor.poll() is None:
            self._supervisor.send_signal(signal.SIGINT)
        try:
            return self._supervisor.wait(seconds)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()
            raise ClusterError(f"cometmq up did not stop in {seconds:g} s\n{self.tail()}") from None

    def _remember(self) -> None:
        """Every process of ours, so that none is left whatever happens to the supervisor."""
        assert self._supervisor is not None
        if _runs(self._supervisor.pid):
            children = psutil.Process(self._supervisor.pid).children(recursive=True)
            self._seen.update(child.pid for child in children)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def temporary(*options: str, env: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """A cluster for the length of a `with` block, in a directory that goes with it."""
    with tempfile.TemporaryDirectory(prefix="cometmq-") as folder:
        cluster = Cluster(Path(folder) / "data", *options, env=env, segment_size=None)
        try:
            yield cluster.start()
        finally:
            cluster.stop()
