"""The official Go, Java and Node.js clients of their registries, with their default settings.

Java and Go speak TLS unless they are told not to: they connect because the native door speaks it on
the same port. Each client sends, receives and acknowledges against a cluster of master and slave. Built
once into `.cache`; what the machine lacks is a skip that says so.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.tests.harness.cluster import Cluster

HERE = Path(__file__).parent / "clients"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "clients"
COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
BUILD_S, RUN_S, COUNT = 240.0, 120.0, 20

pytestmark = [
    pytest.mark.timeout(500),  # the first run fetches and builds
    pytest.mark.skipif(
        importlib.util.find_spec("cometmq_native") is None,
        reason="the native door is not installed (scripts/native_door builds it where Rust is)",
    ),
]


def tool(*names: str) -> None:
    missing = [name for name in names if not shutil.which(name)]
    if missing:
        pytest.skip(f"{' and '.join(missing)} missing: they build and run this client")


def build(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-2_000:]


def go() -> list[str]:
    tool("go")
    program = CACHE / "go-client"
    build(["go", "build", "-o", str(program), "."], HERE / "go")
    return [str(program)]


def java() -> list[str]:
    tool("mvn", "java", "javac")
    jars, classes = CACHE / "java-jars", CACHE / "java-classes"
    if not jars.is_dir():
        partial = jars.with_name(f"java-jars.{os.getpid()}")
        goal = [COPY_GOAL, "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
        build(["mvn", "-q", "-B", *goal], HERE / "java")
        partial.rename(jars)
    build(["javac", "-cp", f"{jars}/*", "-d", str(classes), "Client.java"], HERE / "java")
    return ["java", "-Xmx256m", "-cp", f"{classes}:{jars}/*", "Client"]


def node() -> list[str]:
    tool("node", "npm")
    folder = CACHE / "node-client"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "client.js"):
        shutil.copy(HERE / "node" / name, folder / name)
    if not (folder / "node_modules").is_dir():
        build(["npm", "install", "--silent", "--no-audit", "--no-fund"], folder)
    return ["node", str(folder / "client.js")]


@pytest.mark.parametrize("client", [go, java, node], ids=lambda client: client.__name__)
def test_a_client_with_default_settings_sends_and_receives(
    client: Callable[[], list[str]], shared_cluster: Cluster, tmp_path: Path
) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    command = client()
    topic = shared_cluster.create_topic(f"other-{client.__name__}")
    group = shared_cluster.create_group(f"other-{client.__name__}-group")
    # Both nodes are tried: the one that leads, and the one that passes everything on.
    for number, name in enumerate(("master", "slave")):
        done = subprocess.run(
            [*command, shared_cluster.address(name), topic, group, str(COUNT)],
            capture_output=True,
            text=True,
            timeout=RUN_S,
            env={
                **os.environ,
                "HOME": str(tmp_path),
                "JAVA_TOOL_OPTIONS": f"-Duser.home={tmp_path}",
            },
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-2_000:]
        seen = json.loads(done.stdout.splitlines()[-1])
        assert sorted(seen["sent"]) == sorted(seen["got"]), f"round {number}"
        assert sorted(seen["got"].values()) == sorted(
            f"{client.__name__}-{n}" for n in range(COUNT)
        )
