"""A real cluster in separate processes: `cometmq up`, started, killed and restarted from outside.

Shares only a data directory, the ready file and sockets with the caller. The operating system
chooses the ports. Only processes started by this object are signalled, by id; `stop` leaves none
behind. Uses the documented interfaces of `cometmq up`: the ready file (`endpoints`, `processes`),
`--no-restart`, and `cometmq up restart NAME --data DIR`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from cometmq.drills import process
from cometmq.drills.process import DrillError

START_S = process.WAIT_S
wait_until = process.wait_until
STOP_S = 120.0  # drain, flush and close of every process
# Parts of the errors for the client port and for the replication port.
_PORT_IN_USE = ("is in use by another process", "another process may use it")
# A node allocates three segments at once; with 1 GiB each many clusters would fill a disk.
SEGMENT_SIZE = 64 << 20
_SEGMENT_KEY = "COMETMQ_MAPPED_FILE_SIZE_COMMIT_LOG"
# A loaded machine lets a request wait for longer than the defaults of 200 ms and 1 s; it is not
# refused.
_PATIENCE = {
    "COMETMQ_WAIT_TIME_MILLS_IN_SEND_QUEUE": "10000",
    "COMETMQ_OS_PAGE_CACHE_BUSY_TIME_OUT_MILLS": "60000",
}


class ClusterError(DrillError):
    """The cluster did not reach a state in time; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Node:
    """One process of the cluster, as described in the ready file."""

    name: str
    role: str
    pid: int
    ports: dict[str, int]
    data: Path
    command: list[str]


def cometmq_command() -> list[str]:
    """Return the `cometmq` command of this interpreter."""
    return [str(Path(sys.executable).with_name("cometmq"))]


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
        nofile: int | None = None,
    ) -> None:
        """Without `segment_size` the default of the broker is used.

        With `controller` the nameserver elects leaders, as by default in `up`; most tests need
        fixed roles. `nofile` limits the open files of each process.
        """
        self._nofile = nofile
        self.data = data
        segments = {} if segment_size is None else {_SEGMENT_KEY: str(segment_size)}
        self._env = {**os.environ, **_PATIENCE, **segments, **(env or {})}
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
        if self._nofile:
            command = ["sh", "-c", f'ulimit -n {self._nofile}; exec "$@"', "sh", *command]
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
        except DrillError as error:
            raise ClusterError(f"{error}\n{self.tail()}") from None

    def tail(self, lines: int = 40) -> str:
        """Return the end of the processes' output."""
        if not self.log_file.exists():
            return "(no log)"
        text = self.log_file.read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    @property
    def supervisor_pid(self) -> int:
        """The process id of `cometmq up`."""
        assert self._supervisor is not None
        return self._supervisor.pid

    def ready(self) -> dict[str, Any]:
        """Return the current ready file."""
        found: dict[str, Any] = json.loads(self.ready_file.read_text())
        return found

    @property
    def endpoints(self) -> str:
        """Both access points, separated by a semicolon, as for official clients."""
        return str(self.ready()["endpoints"])

    def nodes(self) -> list[Node]:
        """Return every process of the ready file."""
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
        """Return the process with this name or, failing that, this role at start."""
        for key in ("name", "role"):
            for one in self.nodes():
                if getattr(one, key) == name_or_role:
                    return one
        raise KeyError(name_or_role)

    def address(self, name_or_role: str) -> str:
        """Return `host:port` of a broker's client port."""
        ports = self.node(name_or_role).ports
        port = ports.get("client") or ports.get("grpc") or next(iter(ports.values()))
        return f"127.0.0.1:{port}"

    def kill9(self, name_or_role: str) -> int:
        """Kill a process with SIGKILL; return its id when it has ended."""
        pid = self.node(name_or_role).pid
        os.kill(pid, signal.SIGKILL)
        self._wait(f"{name_or_role} ({pid}) is gone", lambda: not _runs(pid), STOP_S)
        return pid

    def restart(self, name_or_role: str, seconds: float = START_S) -> Node:
        """Restart a process through the supervisor; return when it serves."""
        name = self.node(name_or_role).name
        self._wait(f"{name} starts", lambda: self._has_started(name, seconds), seconds)
        after = self._wait(
            f"{name} has a new process",
            lambda: next((n for n in self.nodes() if n.name == name and _runs(n.pid)), None),
            seconds,
        )
        self._remember()
        address = self.address(name)
        self._wait(f"{name} serves", lambda: self.healthy(address), seconds)
        return Node(**{f: getattr(after, f) for f in Node.__slots__})

    def _has_started(self, name: str, seconds: float) -> bool:
        """Restart a process; return False while another process uses one of its ports.

        The system chose the ports. While the process is dead, the system may give one of them to a
        connection of another process.
        """
        arguments = ("up", "restart", name, "--data", str(self.data))
        done = self.run(*arguments, check=False, timeout=seconds)
        if done.returncode != 0 and not any(words in done.stderr for words in _PORT_IN_USE):
            raise self._failed(arguments, done)
        return done.returncode == 0

    def healthy(self, address: str) -> bool:
        """Return whether `cometmq healthcheck` succeeds at this address."""
        return self.run("healthcheck", "--endpoint", address, check=False).returncode == 0

    def run(
        self, *arguments: str, check: bool = True, timeout: float = START_S
    ) -> subprocess.CompletedProcess[str]:
        """Run `cometmq ARGUMENTS`; a failure includes its output."""
        done = subprocess.run(
            [*cometmq_command(), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
            env=self._with_credentials(),
        )
        if check and done.returncode != 0:
            raise self._failed(arguments, done)
        return done

    def _failed(
        self, arguments: tuple[str, ...], done: subprocess.CompletedProcess[str]
    ) -> ClusterError:
        return ClusterError(
            f"cometmq {' '.join(arguments)} ended with {done.returncode}\n"
            f"{done.stdout}{done.stderr}\n--- up ---\n{self.tail()}"
        )

    def _with_credentials(self) -> dict[str, str]:
        """Return the environment of a command, which signs with the keys of `--auth`."""
        file = self.data / "admin-credentials"
        if not file.exists():
            return dict(os.environ)
        keys = dict(line.split("=", 1) for line in file.read_text().split())
        access_key, secret_key = keys["accessKey"], keys["secretKey"]
        return {
            **os.environ,
            "COMETMQ_ACCESS_KEY": access_key,
            "COMETMQ_SECRET_KEY": secret_key,
        }

    def wait_in_sync(self, count: int = 2) -> Self:
        """Wait until a number of replicas are in sync."""
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
        """Stop as with Ctrl-C; kill what is left after `seconds`. Return the exit code."""
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
        """Record every process, so that none is left if the supervisor fails."""
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
    """Make a cluster for a `with` block, in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="cometmq-") as folder:
        cluster = Cluster(Path(folder) / "data", *options, env=env, segment_size=None)
        try:
            yield cluster.start()
        finally:
            cluster.stop()
