"""The image and docker-compose.yml, for real: built, brought up, used, and a container killed.

Where no engine runs, the test starts one of its own (`engine.py`); where that cannot be, it is skipped
with the reason. `scripts/base_image` makes the base where no registry is reachable.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.tests.docker.engine import Engine, NoEngine, engine
from cometmq.tests.harness.cluster import wait_until
from cometmq.tests.harness.official import Official

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ("-p", "cometmqtest")
UP_S = 120.0


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine that has the image."""
    try:
        with engine(tmp_path_factory.mktemp("docker") / "engine") as found:
            found.run("bash", "scripts/wheels", cwd=ROOT)
            found.run("bash", "scripts/base_image", cwd=ROOT)
            found.run("docker", "build", "-t", "cometmq", ".", cwd=ROOT)
            yield found
    except NoEngine as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def composed(docker: Engine) -> Iterator[list[str]]:
    """The cluster, up and healthy; the compose command for more."""
    compose = [*docker.compose(), *PROJECT]
    try:
        docker.run(*compose, "up", "--detach", cwd=ROOT)
        for service in ("nameserver", "master", "slave"):
            wait_until(f"{service} is healthy", lambda s=service: healthy(docker, compose, s), UP_S)
        yield compose
    finally:
        print(docker.run(*compose, "logs", "--no-color", cwd=ROOT)[-8000:])
        docker.run(*compose, "down", "--volumes", cwd=ROOT)


def container(docker: Engine, compose: list[str], service: str) -> str:
    return docker.run(*compose, "ps", "-q", service, cwd=ROOT).strip().splitlines()[-1]


def healthy(docker: Engine, compose: list[str], service: str) -> bool:
    name = container(docker, compose, service)
    state = json.loads(docker.run("docker", "inspect", name))[0]["State"]
    return bool(state.get("Health", {}).get("Status") == "healthy")


def test_compose_accepts_the_file() -> None:
    """Needs a compose command and no engine."""
    try:
        compose = Engine(dict(os.environ)).compose() if shutil.which("docker") else None
    except NoEngine:
        compose = None
    if compose is None:
        pytest.skip("neither `docker compose` nor docker-compose is installed")
    done = subprocess.run(
        [*compose, "config"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for service in ("nameserver", "master", "slave"):
        assert f"  {service}:" in done.stdout
    assert done.stdout.count("service_healthy") == 2


@pytest.mark.timeout(900)
def test_the_cluster_runs_in_containers(
    docker: Engine, composed: list[str], tmp_path: Path
) -> None:
    def master(*command: str) -> str:
        return docker.run(*composed, "exec", "-T", "master", "cometmq", *command, cwd=ROOT)

    master("topic", "create", "smoke")
    master("group", "create", "smokers")
    client = Official("127.0.0.1:8081", tmp_path / "home", docker.inside)
    try:
        client.call("producer", topics=["smoke"])
        sent = client.call("send_many", topic="smoke", bodies=[f"{n}" for n in range(50)])
        client.call("simple", group="smokers", topics={"smoke": "*"})
        got: set[str] = set()

        def read() -> bool:
            some = [one["id"] for one in client.call("receive")]
            client.call("ack", ids=some)
            got.update(some)
            return got >= set(sent)

        wait_until("everything through the published port", read, UP_S)
    finally:
        client.close()


@pytest.mark.timeout(900)
def test_the_slave_serves_reads_when_the_masters_container_dies(
    docker: Engine, composed: list[str], tmp_path: Path
) -> None:
    docker.run(*composed, "exec", "-T", "slave", "cometmq", "topic", "create", "after", cwd=ROOT)
    client = Official("127.0.0.1:8083", tmp_path / "home", docker.inside)
    try:
        client.call("producer", topics=["after"])
        sent = client.call("send_many", topic="after", bodies=[f"{n}" for n in range(20)])
        docker.run("docker", "kill", container(docker, composed, "master"))
        client.call("simple", group="smokers", topics={"after": "*"}, await_s=3)
        got: set[str] = set()

        def read() -> bool:
            got.update(one["id"] for one in client.call("receive"))
            return got >= set(sent)

        wait_until("everything from the slave", read, UP_S)
    finally:
        client.close()
