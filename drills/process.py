"""One process of a drill, and the loopback net reserved for a drill."""

from __future__ import annotations

import random
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WAIT_S = 180.0  # for loaded machines
POLL_S = 0.02


class DrillError(AssertionError):
    """A drill could not be carried out; the message names the step."""


@dataclass(slots=True)
class Process:
    """One node and its process, if it runs."""

    name: str
    public: str
    private: str
    folder: Path
    popen: subprocess.Popen[bytes] | None = None
    paused: bool = False
    starts: int = 0
    env: dict[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    @property
    def is_broker(self) -> bool:
        return self.name.startswith("b")

    @property
    def number(self) -> int:
        return int(self.name.lstrip("bns"))

    @property
    def code(self) -> int | None:
        """Return the exit code."""
        return self.popen.returncode if self.popen is not None else None


def wait_until(what: str, test: Any, seconds: float = WAIT_S) -> Any:
    """Poll `test` until it returns a true value; return it. Raises DrillError."""
    end = time.monotonic() + seconds
    while True:
        answer = test()
        if answer:
            return answer
        if time.monotonic() > end:
            raise DrillError(f"not within {seconds:g} s: {what}")
        time.sleep(POLL_S)


def reserve_net() -> tuple[socket.socket, str]:
    """Reserve a net 127.x.y while the socket is open."""
    for _ in range(100):
        net = f"127.{random.randint(10, 250)}.{random.randint(1, 254)}"
        seat = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            seat.bind((f"{net}.1", 9))
        except PermissionError:
            seat.bind((f"{net}.1", 9009))
        except OSError:
            seat.close()
            continue
        return seat, net
    raise DrillError("no free net of 127/8")


def accepts(host: str, port: int) -> bool:
    """Return whether the address accepts connections."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0
