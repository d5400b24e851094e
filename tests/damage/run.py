"""Random damage by command: `python -m cometmq.tests.damage.run --count 5000`.

Prints one line for each fault and a table of verdicts by kind of file; exits with 1 if a case
stalled, altered a message, lost one silently or crashed. `--first 17 --count 1` repeats a seed.
Cases run in worker processes, so that a broker that ends its process is a verdict too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cometmq.tests.damage import world
from cometmq.tests.damage.judge import GOOD, judge, line_of
from cometmq.tests.damage.world import VARIANTS

#: Workers are replaced, so that a broker that leaves something behind affects few cases.
CASES_PER_WORKER = 100
#: A file system in memory, if it has this much room: a broker syncs its files a hundred times in
#: each case, which took two thirds of the time on a disk. The damage is done to what was written,
#: not to what was synced.
MEMORY = Path("/dev/shm")
ROOM_BYTES = 512 << 20


def work_folder() -> Path:
    """Create the folder of all stores, in memory if there is room."""
    roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM_BYTES
    return Path(tempfile.mkdtemp(prefix="damage-", dir=MEMORY if roomy else None))


def templates(folder: Path) -> None:
    """Build the directories that cases copy."""
    for variant in VARIANTS:
        (folder / variant.name).mkdir(parents=True)
        asyncio.run(world.build(folder / variant.name, variant))


def work(folder: Path, first: int, count: int) -> None:
    """Judge seeds; print a line before and after each."""
    for seed in range(first, first + count):
        print(json.dumps({"seed": seed, "verdict": "begun"}), flush=True)
        variant = VARIANTS[seed % len(VARIANTS)]
        root = Path(tempfile.mkdtemp(prefix="case-", dir=folder)) / "store"
        try:
            verdict = asyncio.run(judge(seed, folder / variant.name, root, variant))
        finally:
            shutil.rmtree(root.parent, ignore_errors=True)
        print(line_of(verdict), flush=True)


def run_chunk(folder: Path, first: int, count: int) -> list[dict[str, Any]]:
    """Judge seeds in a process of its own."""
    results: list[dict[str, Any]] = []
    while count > 0:
        command = [sys.executable, "-m", "cometmq.tests.damage.run", "--worker", str(folder)]
        command += ["--first", str(first), "--count", str(count)]
        done = subprocess.run(command, capture_output=True, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
        finished = [line for line in lines if line["verdict"] != "begun"]
        results += finished
        first += len(finished)
        count -= len(finished)
        if count > 0:
            text = done.stderr.decode(errors="replace")[-500:]
            detail = f"the process ended with {done.returncode}: {text}"
            results.append(
                {"seed": first, "verdict": "crashed", "kind": "", "injury": "", "detail": detail}
            )
            first += 1
            count -= 1
    return results


def run(first: int, count: int, workers: int) -> Iterator[dict[str, Any]]:
    """Judge seeds in several processes."""
    folder = work_folder()
    try:
        templates(folder)
        chunks = [
            (at, min(CASES_PER_WORKER, first + count - at))
            for at in range(first, first + count, CASES_PER_WORKER)
        ]
        with ThreadPoolExecutor(workers) as pool:
            for results in pool.map(lambda chunk: run_chunk(folder, *chunk), chunks):
                yield from results
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Random damage of a store directory.")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=5000, help="number of seeds")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--all", action="store_true", help="print the cases without a fault too")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.worker, options.first, options.count)
        return 0
    table: Counter[tuple[str, str]] = Counter()
    for result in run(options.first, options.count, options.workers):
        table[result["kind"], result["verdict"]] += 1
        if options.all or result["verdict"] not in GOOD:
            print(json.dumps(result), flush=True)
    verdicts = sorted({verdict for _, verdict in table})
    print("kind".ljust(18), *(verdict.rjust(9) for verdict in verdicts))
    for kind in sorted({kind for kind, _ in table}):
        print((kind or "-").ljust(18), *(f"{table[kind, verdict]:9}" for verdict in verdicts))
    totals = Counter[str]()
    for (_, verdict), number in table.items():
        totals[verdict] += number
    print("all".ljust(18), *(f"{totals[verdict]:9}" for verdict in verdicts))
    return 0 if all(verdict in GOOD for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
