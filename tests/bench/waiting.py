"""Cost of waiting: ten thousand long polls of one group, and two hundred idle groups.

`python -m cometmq.tests.bench.waiting [--polls N] [--seconds S]` prints, for each door, the
broker's CPU (percent of a core) while no message arrives and no poll expires, and its anonymous
memory per poll; then the CPU with 200 groups that poll without messages. A separate process holds
the polls (`waiting_client.py`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from cometmq.proto.native import is_available

from ..harness.cluster import temporary
from .rows import Row, show
from .server import ASYNC, GROUP, TOPIC, prepared

CLIENT = Path(__file__).parent / "workers" / "waiting_client.py"
GROUPS = 200
KIB_A_POLL = {"grpcio": 40, "native": 12}
SETTLE_S = 2.0


@contextmanager
def polls(endpoint: str, groups: int, polls_each: int, seconds: float) -> Iterator[None]:
    """Hold the polls while the context is open."""
    process = subprocess.Popen(
        [
            *(sys.executable, str(CLIENT), endpoint, TOPIC, GROUP),
            *(str(groups), str(polls_each), str(seconds)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.strip() == "waiting", f"the polls were not taken: {line!r}"
        yield
    finally:
        process.kill()
        process.wait()


def cpu_percent(process: psutil.Process, seconds: float) -> float:
    """Return the CPU use over some seconds, in percent of one core."""
    time.sleep(SETTLE_S)
    before, begin = process.cpu_times(), time.monotonic()
    time.sleep(seconds)
    after, took = process.cpu_times(), time.monotonic() - begin
    return 100 * (after.user + after.system - before.user - before.system) / took


def anonymous(process: psutil.Process) -> int:
    """Return the anonymous memory in bytes."""
    return sum(each.private_dirty for each in process.memory_maps())


def rows(door: str, number: int, seconds: float) -> list[Row]:
    """Return the figures of one door."""
    with temporary("--single", *ASYNC, env={"COMETMQ_FRONT_DOOR": door}) as cluster:
        node, address = prepared(cluster).node("master"), cluster.address("master")
        process = psutil.Process(node.pid)
        idle = cpu_percent(process, seconds)
        before = anonymous(process)
        with polls(address, 1, number, 600):
            held = (anonymous(process) - before) / number / 1024
            cpu = cpu_percent(process, seconds)
    with temporary("--single", *ASYNC, env={"COMETMQ_FRONT_DOOR": door}) as cluster:
        node, address = prepared(cluster).node("master"), cluster.address("master")
        with polls(address, GROUPS, 1, 20):
            groups = cpu_percent(psutil.Process(node.pid), max(seconds, 22))
    limit = KIB_A_POLL[door]
    return [
        Row(f"{number:,} polls wait ({door}): CPU", cpu, "% of a core", f"none waits: {idle:.2f} %",
            None, "under 3", cpu < 3),
        Row(f"memory of each ({door})", held, "KiB", "", None, f"under {limit}", held < limit),
        Row(f"{GROUPS} idle groups ({door}): CPU", groups, "% of a core", "", None, "under 2",
            groups < 2),
    ]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--polls", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=8.0)
    arguments = parser.parse_args()
    doors = ["grpcio", *(["native"] if is_available() else [])]
    show([row for door in doors for row in rows(door, arguments.polls, arguments.seconds)])


if __name__ == "__main__":
    main()
