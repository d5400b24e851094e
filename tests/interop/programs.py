"""Programs with the official Go, Java and Node.js clients, built once into `.cache`."""

from __future__ import annotations

import os
import shutil
import subprocess
import unittest
from pathlib import Path

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


def go() -> list[str]:
    """Build the Go program; return its command."""
    require("go")
    program = CACHE / "go-client"
    build(["go", "build", "-o", str(program), "."], HERE / "go")
    return [str(program)]


def java() -> list[str]:
    """Build the Java program; return its command."""
    require("mvn", "java", "javac")
    jars, classes = CACHE / "java-jars", CACHE / "java-classes"
    if not jars.is_dir():
        partial = jars.with_name(f"java-jars.{os.getpid()}")
        goal = [COPY_GOAL, "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
        build(["mvn", "-q", "-B", *goal], HERE / "java")
        partial.rename(jars)
    build(["javac", "-cp", f"{jars}/*", "-d", str(classes), "Client.java"], HERE / "java")
    return ["java", "-Xmx256m", "-cp", f"{classes}:{jars}/*", "Client"]


def node() -> list[str]:
    """Install the Node.js program; return its command."""
    require("node", "npm")
    folder = CACHE / "node-client"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "client.js"):
        shutil.copy(HERE / "node" / name, folder / name)
    if not (folder / "node_modules").is_dir():
        build(["npm", "install", "--silent", "--no-audit", "--no-fund"], folder)
    return ["node", str(folder / "client.js")]
