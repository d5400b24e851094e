"""NATS JetStream, built from its Go module, as a second server for comparisons.

`main.go` is server and publisher. The stream has one replica in files, and the server syncs it to
the disk at its default interval: an acknowledged publish is in the page cache, as an acknowledged
send with `flushDiskType=ASYNC_FLUSH`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROGRAM = HERE / "nats"
BUILD_S, STOP_S = 600.0, 20.0


class NatsMissing(Exception):
    """Go is not installed, or the modules cannot be downloaded; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Nats:
    """A running server."""

    address: str
    pid: int

    def publish(self, *options: str, seconds: float) -> dict[str, Any]:
        """Run the publisher once; return its figures, with the names of loadgen."""
        words = ["-address", self.address, "-pid", str(self.pid), "-seconds", str(seconds)]
        done = subprocess.run(
            [str(PROGRAM), "publish", *words, *options],
            capture_output=True,
            text=True,
            timeout=seconds + 60,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"nats publish {' '.join(options)}: {done.stderr}")
        found: dict[str, Any] = json.loads(done.stdout)
        if found["errors"]:
            raise RuntimeError(f"nats publish {' '.join(options)}: {found['errors']} errors")
        return found


def build() -> None:
    """Build the program. Raises NatsMissing."""
    if not shutil.which("go"):
        raise NatsMissing("Go is needed to build the NATS server")
    done = subprocess.run(
        ["go", "build", "-o", PROGRAM.name, "."],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    if done.returncode != 0:
        raise NatsMissing(f"the NATS server cannot be built: {done.stderr[-500:]}")


@contextmanager
def running() -> Iterator[Nats]:
    """Provide a server with one stream. Raises NatsMissing."""
    build()
    with tempfile.TemporaryDirectory(prefix="cometmq-nats-") as folder:
        process = subprocess.Popen(
            [str(PROGRAM), "serve", "-store", folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                raise NatsMissing(f"the NATS server ended with {process.wait(STOP_S)}")
            yield Nats(address, process.pid)
        finally:
            process.terminate()
            process.wait(STOP_S)
