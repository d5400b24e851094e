"""Programs with the official Go, Java and Node.js clients, built once into `.cache`."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import unittest
from pathlib import Path

from ..harness.jvm import JAVA

HERE = Path(__file__).parent / "clients"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "clients"
COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
BUILD_S = 240.0


class MissingTool(unittest.SkipTest):
    """A tool that builds or runs a program is not installed; in a test, pytest skips it."""


def require(*names: str) -> None:
    """Raise MissingTool unless all are installed."""
    missing = [name for name in names if not shutil.which(name)]
    if missing:
        raise MissingTool(f"{' and '.join(missing)} missing: they build and run this client")


def build(command: list[str], folder: Path) -> None:
    """Run a command in a folder; a failure includes its output."""
    CACHE.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-2_000:]


def keep(partial: Path, folder: Path) -> None:
    """Give a complete folder its name, unless another run made the same meanwhile."""
    try:
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(partial)


def fetched(jars: Path, project: Path, *options: str) -> Path:
    """Fetch the jars of a Maven project into a folder, once; return the folder."""
    if not jars.is_dir():
        partial = jars.with_name(f"{jars.name}.{os.getpid()}")
        goal = [COPY_GOAL, "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
        build(["mvn", "-q", "-B", *options, *goal], project)
        keep(partial, jars)
    return jars


def compiled(classes: Path, jars: Path, folder: Path, *sources: str) -> Path:
    """Compile Java sources, once; return the folder, which no other version of them shares.

    A Java process of another run may read it.
    """
    digest = hashlib.sha256(b"".join((folder / source).read_bytes() for source in sources))
    kept = classes.with_name(f"{classes.name}-{digest.hexdigest()[:12]}")
    if not kept.is_dir():
        partial = kept.with_name(f"{kept.name}.{os.getpid()}")
        build(["javac", "-cp", f"{jars}/*", "-d", str(partial), *sources], folder)
        keep(partial, kept)
    return kept


def go() -> list[str]:
    """Build the Go program; return its command."""
    require("go")
    program = CACHE / "go-client"
    build(["go", "build", "-o", str(program), "."], HERE / "go")
    return [str(program)]


def java() -> list[str]:
    """Build the Java program; return its command."""
    require("mvn", "java", "javac")
    jars = fetched(CACHE / "java-jars", HERE / "java")
    classes = compiled(CACHE / "java-classes", jars, HERE / "java", "Client.java")
    return [*JAVA, "-cp", f"{classes}:{jars}/*", "Client"]


def node() -> list[str]:
    """Install the Node.js program; return its command."""
    require("node", "npm")
    files = [HERE / "node" / name for name in ("package.json", "client.js", "acl.js")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    folder = CACHE / f"node-client-{digest[:12]}"
    if not folder.is_dir():
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        partial.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(file, partial)
        build(["npm", "install", "--silent", "--no-audit", "--no-fund"], partial)
        keep(partial, folder)
    return ["node", str(folder / "client.js")]
