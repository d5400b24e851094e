"""Full load and abuse on the native door at once, for minutes: no error, and memory that stays.

The server is a process of its own with empty handlers (`cometmq.tests.bench.empty_server`), the
load comes from the load generator in Go, which takes a whole core. Less than a minute in the suite;
ten with `scripts/test --slow`. Compared is anonymous memory: what is mapped from files may come and
go as the kernel likes.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.proto.native import is_available
from cometmq.tests.front.raw_http2 import RawConnection
from cometmq.tests.front.test_abuse import ATTACKS

LOADGEN = Path(__file__).parents[1] / "bench" / "loadgen" / "loadgen"
GROWTH_MAX = 1.05
SHAPES = (
    ("-inflight", "64"),
    ("-inflight", "8", "-batch", "32"),
    ("-mode", "recv", "-inflight", "8", "-batch", "32"),
)
pytestmark = [
    pytest.mark.skipif(
        not is_available(),
        reason="the native door is not installed (scripts/native_door builds it where Rust is)",
    ),
    pytest.mark.skipif(not LOADGEN.exists(), reason="the load generator is not built (needs Go)"),
]


@pytest.fixture
def server() -> Iterator[tuple[int, int]]:
    """Port and process id of an empty server behind the native door."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "cometmq.tests.bench.empty_server",
            "--port",
            "0",
            "--door",
            "native",
        ],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
    finally:
        process.terminate()
        process.wait(60)


def anonymous_kib(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Anonymous"))


def abuse(port: int, over: threading.Event) -> None:
    """One attack after the other, from a thread with a loop of its own."""

    async def attack() -> None:
        number = 0
        while not over.is_set():
            raw = await RawConnection.open(port)
            await ATTACKS[number % len(ATTACKS)](raw)
            raw.abort()
            number += 1
            await asyncio.sleep(0.2)

    asyncio.run(attack())


def soak(port: int, pid: int, seconds: float) -> tuple[list[int], int]:
    """Load and abuse for so long; anonymous memory every second, and errors that clients saw."""
    over = threading.Event()
    attacker = threading.Thread(target=abuse, args=(port, over), daemon=True)
    attacker.start()
    memory: list[int] = []
    errors, rounds = 0, int(seconds // (2 * len(SHAPES)))
    for number in range(rounds * len(SHAPES)):
        load = subprocess.Popen(
            [
                *(str(LOADGEN), "-endpoint", f"127.0.0.1:{port}", "-bare"),
                *("-seconds", "2", "-warm", "0", "-topic", "soak", "-group", "soak"),
                *SHAPES[number % len(SHAPES)],
            ],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        while load.poll() is None:
            memory.append(anonymous_kib(pid))
            time.sleep(0.5)
        assert load.returncode == 0
        errors += json.load(load.stdout)["errors"] if load.stdout else 1
    over.set()
    attacker.join(60)
    return memory, errors


def check(memory: list[int], errors: int) -> None:
    assert errors == 0
    half = len(memory) // 2
    first, second = statistics.median(memory[:half]), statistics.median(memory[half:])
    print(
        f"anonymous memory, first half {first / 1024:.1f} MiB, second half {second / 1024:.1f} MiB"
    )
    assert second < first * GROWTH_MAX


@pytest.mark.timeout(300)
def test_some_load_and_abuse_leave_memory_as_it_was(server: tuple[int, int]) -> None:
    port, pid = server
    memory, errors = soak(port, pid, 30)
    check(memory[len(memory) // 4 :], errors)  # the first rounds warm it up


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_ten_minutes_of_load_and_abuse_leave_memory_as_it_was(server: tuple[int, int]) -> None:
    port, pid = server
    memory, errors = soak(port, pid, 600)
    check(memory[len(memory) // 10 :], errors)  # from the second minute on
