"""Container engine for the tests: the running one, or one started for the test.

An engine started for the test runs in its own network and mount namespaces, with its data in a
temporary directory. It changes nothing outside (no bridge, no packet filter rule) and ends with
the test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..process import wait_until

ENGINE_S = 60.0
START = """
ip link set lo up
mount -t tmpfs tmpfs /run
echo 1 > /proc/sys/net/ipv4/ip_forward
exec dockerd --data-root "$1/data" --exec-root "$1/exec" --pidfile "$1/pid" -H "unix://$1/socket"
"""


class NoEngine(Exception):
    """No engine runs and none can be started; the message names what is missing."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Address of an engine, and commands beside its published ports."""

    env: dict[str, str]
    inside: tuple[str, ...] = ()

    def run(self, *command: str, seconds: float = 600.0, cwd: Path | None = None) -> str:
        """Run a command with this engine; return its output. A failure includes the output."""
        done = subprocess.run(
            command,
            env=self.env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, (
            f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}"
        )
        return done.stdout

    def beside(self, *command: str, seconds: float = 120.0) -> str:
        """Run a command where the published ports of containers are on 127.0.0.1."""
        return self.run(*self.inside, *command, seconds=seconds)

    def compose(self) -> list[str]:
        """Return the compose command of this machine."""
        plugin = subprocess.run(
            ["docker", "compose", "version"], env=self.env, capture_output=True, check=False
        )
        if plugin.returncode == 0:
            return ["docker", "compose"]
        if shutil.which("docker-compose"):
            return ["docker-compose"]
        raise NoEngine("neither `docker compose` nor docker-compose is installed")


def _answers(env: dict[str, str]) -> bool:
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    return subprocess.run(command, env=env, capture_output=True, check=False).returncode == 0


@contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    """Provide an engine for a `with` block."""
    if not shutil.which("docker"):
        raise NoEngine("the docker command is not installed")
    if _answers(dict(os.environ)):
        yield Engine(dict(os.environ))
        return
    missing = [c for c in ("dockerd", "iptables", "ip", "unshare") if not shutil.which(c)]
    if missing or os.geteuid() != 0:
        raise NoEngine(f"no Docker engine runs; to start one: root, and {missing or 'the rest'}")
    folder.mkdir(parents=True)
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        ["unshare", "--net", "--mount", "bash", "-ec", START, "dockerd", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        env = {**os.environ, "DOCKER_HOST": f"unix://{folder}/socket"}
        wait_until("dockerd answers", lambda: _answers(env) or process.poll() is not None, ENGINE_S)
        if process.poll() is not None:
            raise NoEngine("dockerd ended:\n" + (folder / "log").read_text()[-2000:])
        yield Engine(env, ("nsenter", f"--net=/proc/{process.pid}/ns/net"))
    finally:
        process.terminate()
        process.wait(60)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)  # hundreds of megabytes of image layers
