"""Benchmark of `--help` of every command: from the start of its process to its end.

`python -m cometmq.tests.bench.help` prints a line for each command, then rows. Of some runs the
fastest counts: the others waited for the machine.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import click

from cometmq.cli.root import cli

from ..harness.cluster import cometmq_command
from .rows import Row, show

RUNS = 3
LIMIT_MS = 150.0


def _commands(group: click.Group, context: click.Context, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each listed command and group."""
    yield path
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _commands(command, click.Context(command, parent=context), *path, name)
        else:
            yield (*path, name)


def _once(words: tuple[str, ...]) -> tuple[float, float]:
    """Return the milliseconds of one run: elapsed, and of CPU time."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([*cometmq_command(), *words, "--help"], stdout=subprocess.DEVNULL, check=True)
    elapsed, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return elapsed * 1_000, used * 1_000


def main() -> list[Row]:
    """Measure all commands and print each."""
    elapsed, used = {}, {}
    for words in _commands(cli, click.Context(cli)):
        runs = [_once(words) for _ in range(RUNS)]
        name = " ".join(words) or "cometmq"
        elapsed[name], used[name] = (min(column) for column in zip(*runs, strict=True))
        print(f"{elapsed[name]:6.0f} ms  {used[name]:6.0f} ms CPU  {name}", file=sys.stderr)
    slowest = max(elapsed, key=lambda name: elapsed[name])
    target = f"within {LIMIT_MS:g} ms"
    median = statistics.median(elapsed.values())
    return [
        Row(f"--help, median of {len(elapsed)} commands", median, "ms"),
        Row(
            *(f"--help, slowest: {slowest}", elapsed[slowest], "ms"),
            target=target,
            met=elapsed[slowest] <= LIMIT_MS,
        ),
        Row("--help, most CPU time", max(used.values()), "ms CPU"),
    ]


if __name__ == "__main__":
    show(main())
