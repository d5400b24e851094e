"""The released Apache RocketMQ 5.5.0 broker as an oracle: reports the content of a store.

Maven fetches the published jars once into `.cache/apache-5.5.0`, where the driver
`ApacheStore.java` is compiled. Every call is a process on ports below the ephemeral range. A
missing tool (Maven, JDK, registry) skips the test with a reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cometmq.tests.harness import jvm
from cometmq.tests.interop.programs import COPY_GOAL, keep

HERE = Path(__file__).parent
CACHE = Path(__file__).resolve().parents[3] / ".cache" / "apache-5.5.0"
FETCH_S = 110.0
RUN_S = 100.0
JAVA_OPTIONS = (
    *("-Xmx512m", "-XX:MaxDirectMemorySize=512m", *jvm.OPTIONS),
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    # Shorter waits of the client, and no RSA key pair for an unused port.
    "-Drocketmq.client.rebalance.waitInterval=1000",
    "-Drocketmq.client.rebalance.minInterval=200",
    "-Dtls.server.mode=disabled",
)
HALTED = 9  # exit code of ApacheStore.java after a requested halt


def _say(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stdout + done.stderr)[-2000:]


def jars() -> Path:
    """Return the folder of the broker's jars, fetched on first use."""
    folder = CACHE / "lib"
    if folder.is_dir():
        return folder
    if not shutil.which("mvn"):
        pytest.skip("Maven is missing: it fetches the released Apache broker")
    partial = CACHE / f"lib.{os.getpid()}"
    done = subprocess.run(
        [
            *("mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), COPY_GOAL),
            *("-DincludeScope=runtime", f"-DoutputDirectory={partial}"),
        ],
        capture_output=True,
        text=True,
        timeout=FETCH_S,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"Maven cannot fetch the released Apache broker: {_say(done)}")
    keep(partial, folder)
    return folder


def classpath() -> str:
    """Return the class path of jars and driver; compile the driver if its source changed."""
    for tool in ("java", "javac"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is missing: a JDK runs the released Apache broker")
    library = f"{jars()}/*"
    source = HERE / "ApacheStore.java"
    classes = CACHE / f"classes-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not classes.is_dir():
        partial = CACHE / f"classes.{os.getpid()}"
        done = subprocess.run(
            ["javac", "-cp", library, "-d", str(partial), str(source)],
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
        assert done.returncode == 0, _say(done)
        keep(partial, classes)
    return f"{classes}:{library}"


def ask(
    store: Path, work: Path, plan: dict[str, Any], conf: dict[str, str], *, halt: bool = False
) -> dict[str, Any]:
    """Open `store` with Apache's broker and execute `plan`, which ApacheStore.java documents."""
    work.mkdir(parents=True)
    (work / "plan.json").write_text(json.dumps(plan))
    out = work / "out.json"
    command = ["java", *JAVA_OPTIONS, "-cp", classpath(), "ApacheStore"]
    command += ["--store", str(store), "--plan", str(work / "plan.json"), "--out", str(out)]
    command += ["--stop", "halt" if halt else "clean"]
    for key, value in conf.items():
        command += ["--conf", f"{key}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == (HALTED if halt else 0), _say(done)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def copy_of(root: Path, target: Path) -> Path:
    """Make a sparse copy: files of a gigabyte may hold only kilobytes."""
    subprocess.run(["cp", "-a", "--sparse=always", str(root), str(target)], check=True)
    return target
