"""The image and docker-compose.yml: built, started, used, and a container killed.

Starts an engine if none runs (`engine.py`); if that is impossible, the tests are skipped with the
reason. `scripts/base_image` builds the base if no registry is reachable.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.tests.containers.engine import Engine, NoEngine, engine
from cometmq.tests.drills import containers

ROOT = Path(__file__).resolve().parents[2]
SERVICES = (*containers.NAMESERVERS, *containers.BROKERS, "proxy")


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Provide an engine that has the image."""
    try:
        with engine(tmp_path_factory.mktemp("docker") / "engine") as found:
            containers.build(found)
            yield found
    except NoEngine as reason:
        pytest.skip(str(reason))


def compose_config(token: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `docker compose config`, which needs no engine."""
    try:
        command = Engine(dict(os.environ)).compose() if shutil.which("docker") else None
    except NoEngine:
        command = None
    if command is None:
        pytest.skip("neither `docker compose` nor docker-compose is installed")
    empty = folder / "empty.env"  # .env may hold a token
    empty.touch()
    return subprocess.run(
        [*command, "--env-file", str(empty), "config"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COMETMQ_CLUSTER_TOKEN": token},
    )


def test_compose_refuses_the_file_without_a_token(tmp_path: Path) -> None:
    done = compose_config("", tmp_path)
    assert done.returncode != 0
    assert "run scripts/cluster_token first" in done.stderr


def test_compose_accepts_the_file(tmp_path: Path) -> None:
    done = compose_config("a-token", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("no-new-privileges:true") == len(SERVICES)
    assert done.stdout.count("read_only: true") == len(SERVICES)
    for service in SERVICES:
        assert f"  {service}:" in done.stdout
    assert done.stdout.count("published") + done.stdout.count("127.0.0.1:8081:8081") == 1


def drill(docker: Engine, *words: str, seconds: float) -> str:
    """Run `scripts/drill --compose` in a separate process; fail if a check failed."""
    command = (sys.executable, "-P", "-m", "cometmq.tests.drills.run", "--compose", "--no-build")
    return docker.beside(*command, *words, seconds=seconds)


@pytest.mark.timeout(900)
def test_the_cluster_survives_kills_in_containers(docker: Engine) -> None:
    """Kill a broker and a controller while raw senders and the official client use the proxy."""
    assert "passed" in drill(docker, "--faults", "kill", "--services", "a0,ns0", seconds=800)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_container_in_turn(docker: Engine) -> None:
    """Kill, stop, pause and disconnect each nameserver and broker; disconnect replicas."""
    assert "passed" in drill(docker, seconds=3500)


@pytest.mark.timeout(900)
def test_a_broker_of_testcontainers(docker: Engine) -> None:
    env = {**docker.env, "TESTCONTAINERS_RYUK_DISABLED": "true"}  # its reaper is a remote image
    beside = Engine(env, docker.inside)
    printed = beside.beside(
        sys.executable, "-P", "-m", "cometmq.tests.containers.container_program"
    )
    assert "too large: refused" in printed
    assert "nowhere" in printed
    assert "all of it worked" in printed
