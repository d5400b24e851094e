"""The SDK compared with `loadgen` and the official Python client, on one broker in the same run.

`python -m cometmq.tests.bench.sdk [--seconds S]` prints rows: batched sends as a share of
loadgen's rate with batches of 32; CPU of one send with 64 in flight as a share of the official
client's; receive and acknowledge as a share of loadgen's rate, and its CPU per message. Each
client runs in a separate process (`sdk_worker.py`), against one `cometmq up --single` in
page-cache mode.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ..harness.cluster import temporary
from .rows import Row, show
from .server import ASYNC, GROUP, TOPIC, loadgen, prepared

WORKER = Path(__file__).parent / "workers" / "sdk_worker.py"
OFFICIAL = Path(__file__).parent / "workers" / "sdk_official_worker.py"


def worker(script: Path, endpoint: str, what: str, seconds: float) -> dict[str, Any]:
    """Run a client in a separate process; return messages, seconds, CPU seconds."""
    done = subprocess.run(
        [sys.executable, str(script), endpoint, TOPIC, GROUP, what, str(seconds)],
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{script.name} {what}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def rows(seconds: float, door: str) -> list[Row]:
    """Return the four figures through one door."""
    with temporary("--single", *ASYNC, env={"COMETMQ_FRONT_DOOR": door}) as cluster:
        node, address = prepared(cluster).node("master"), cluster.address("master")

        def load(*options: str) -> float:
            return float(loadgen(address, node.pid, *options, seconds=seconds)["messages_per_s"])

        bound = load("-inflight", "8", "-batch", "32")
        batched = worker(WORKER, address, "batched", seconds)
        single = worker(WORKER, address, "single", seconds)
        official = worker(OFFICIAL, address, "single", seconds)
        received = worker(WORKER, address, "receive", seconds)
        bound_receive = load("-mode", "recv", "-inflight", "8", "-batch", "32")
    rate, mine, theirs = _rate(batched), _cpu_us(single), _cpu_us(official)
    share, cpu = _rate(received) / bound_receive, _cpu_us(received)
    return [
        Row(
            f"SDK, batched sends ({door})",
            rate,
            "/s",
            f"loadgen {bound:.0f}/s; {_cpu_us(batched):.0f} us CPU",
            rate / bound,
            "at least 0.6",
            rate / bound >= 0.6 if door == "native" else None,
        ),
        Row(
            f"SDK, one send, 64 in flight ({door})",
            mine,
            "us CPU",
            f"official client {theirs:.0f} us, {_rate(official):.0f}/s; ours {_rate(single):.0f}/s",
            mine / theirs,
            "at most 0.5",
            mine / theirs <= 0.5,
        ),
        Row(
            f"SDK, receive and acknowledge ({door})",
            _rate(received),
            "/s",
            f"loadgen {bound_receive:.0f}/s",
            share,
            "at least 0.8",
            share >= 0.8,
        ),
        Row(f"its CPU ({door})", cpu, "us CPU", "", None, "at most 30", cpu <= 30),
    ]


def _rate(run: dict[str, Any]) -> float:
    return float(run["messages"]) / float(run["seconds"])


def _cpu_us(run: dict[str, Any]) -> float:
    return float(run["cpu_s"]) * 1e6 / max(1, int(run["messages"]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--door", action="append", choices=("native", "grpcio"))
    arguments = parser.parse_args()
    found = []
    for door in arguments.door or ("native", "grpcio"):
        found += rows(arguments.seconds, door)
    show(found)


if __name__ == "__main__":
    main()
