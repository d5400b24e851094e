"""Duration of every page of the console with 1,000 topics, 500 groups and 2,500 consumers.

`python -m cometmq.tests.bench.console_pages [--rounds N]` prints rows: by page the median and the
slowest of its requests, over loopback, and the slowest of all against the goal of 200 ms. Broker,
console and client share the machine: its load is printed, because a busy one slows every request.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from ..broker.live import running, settings
from ..console.served import serve, told
from ..console.test_many_objects import PAGES, populate
from ..harness.cluster import wait_until
from .rows import Row, show

TARGET_MS: Final = 200.0


def durations(folder: Path, endpoint: str, rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of each request, by page."""
    found: dict[str, list[float]] = {path: [] for path in PAGES}
    with serve(folder, endpoint) as console:
        wait_until("the cluster is read", lambda: "500 groups" in told(console.get("/")))
        for _ in range(rounds):
            for path, spent in found.items():
                begin = time.perf_counter()
                console.get(path)
                spent.append((time.perf_counter() - begin) * 1_000)
    return found


def rows_of(found: dict[str, list[float]]) -> list[Row]:
    """Return a row for each page, and one for all."""
    rows = [
        Row(path, statistics.median(spent), "ms", f"slowest {max(spent):.0f} ms")
        for path, spent in found.items()
    ]
    slowest = max(max(spent) for spent in found.values())
    load = f"load {os.getloadavg()[0]:.0f}"
    target = f"at most {TARGET_MS:g} ms"
    return [*rows, Row("slowest request", slowest, "ms", load, None, target, slowest <= TARGET_MS)]


async def measure(folder: Path, rounds: int) -> list[Row]:
    """Return the rows."""
    async with running(settings(folder / "broker")) as live:
        await populate(live)
        found = await asyncio.to_thread(durations, folder, live.bound.client, rounds)
    return rows_of(found)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        show(asyncio.run(measure(Path(directory), options.rounds)))


if __name__ == "__main__":
    main()
