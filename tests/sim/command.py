"""`scripts/sim`: replay one seed and print its story, or run many seeds and report violations.

    scripts/sim --seed 1103 [--bias leases] [--bug "lease"]
    scripts/sim --seeds 0:5000 [--jobs 2] [--bias ...]
    scripts/sim --store 500

The last one is about one store on a simulated disk (`tests/store/test_model.py`): retention beside
seldom flushes of queues, kills, and power losses. A violation ends it with a traceback.

A story is the same on every machine and for every hash seed. Exit code 5 when a violation was
found.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .bugs import BUGS
from .faults import BIASES
from .settings import settings_of
from .world import Verdict, World, run_seed

FOUND = 5
_SUMMED = (
    "events",
    "acked",
    "elections",
    "cuts",
    "holds",
    "handovers",
    "policy_changes",
    "stops",
    "steps_aside",
    "forced",
    "lost",
)


@click.command(help=__doc__.split("\n")[0] if __doc__ else None)
@click.option("--seed", type=int, help="Replay this seed and print its story.")
@click.option("--seeds", help="Run the seeds A:B (B excluded).")
@click.option("--jobs", default=1, show_default=True, help="Processes for --seeds.")
@click.option(
    "--bias", default="", type=click.Choice(["", *sorted(BIASES)]), help="Kind of faults."
)
@click.option("--bug", "bug_name", default="", help="Plant this bug (--bug list prints them).")
@click.option(
    "--store", "stories", type=click.IntRange(1), help="Run this number of stories of one store."
)
@click.option("--tail", default=0, help="Only the last N lines of the story.")
def main(
    *,
    seed: int | None,
    seeds: str | None,
    jobs: int,
    bias: str,
    bug_name: str,
    stories: int | None,
    tail: int,
) -> None:
    if bug_name == "list":
        click.echo("\n".join(f"{bug.name}  ({bug.bias})" for bug in BUGS))
    elif seed is not None:
        sys.exit(_replay(seed, bias, bug_name, tail))
    elif seeds is not None:
        start, _, end = seeds.partition(":")
        sys.exit(_many(range(int(start), int(end)), jobs, bias))
    elif stories is not None:
        from ..store.test_model import story

        for number in range(stories):
            click.echo(f"store, seed {number}")
            story(number)
        click.echo("no violation")
    else:
        raise click.UsageError("use --seed N, --seeds A:B or --store N")


def _replay(seed: int, bias: str, bug_name: str, tail: int) -> int:
    story: list[str] = []
    bug = next((bug for bug in BUGS if bug.name == bug_name), None)
    if bug_name and bug is None:
        raise click.UsageError(f"no bug {bug_name!r}; --bug list prints them")
    parts, bias = (None, bias) if bug is None else (bug.parts, bias or bug.bias)
    settings = settings_of(seed, **({} if bug is None else bug.fixed))
    verdict = World(settings, parts, bias, story).run()
    click.echo(str(settings))
    click.echo("\n".join(story[-tail:]))
    click.echo(_sentence(verdict))
    return FOUND if verdict.violation else 0


def _sentence(verdict: Verdict) -> str:
    if verdict.violation:
        return f"VIOLATION {verdict.violation}"
    return (
        f"no violation: {verdict.events} events, {verdict.acked} writes answered OK, "
        f"{verdict.elections} elections, {verdict.cuts} cuts, {verdict.holds} holds, "
        f"well {verdict.healed_ms} ms after healing; fingerprint {verdict.fingerprint:016x}"
    )


def _many(seeds: range, jobs: int, bias: str) -> int:
    begun = time.monotonic()
    console = Console()
    totals: Counter[str] = Counter()
    bad: list[Verdict] = []
    healed: list[int] = []
    with Progress(console=console) as progress:
        task = progress.add_task("seeds", total=len(seeds))
        for verdict in _verdicts(seeds, jobs, bias):
            progress.advance(task)
            totals.update({name: getattr(verdict, name) for name in _SUMMED})
            healed.append(verdict.healed_ms)
            if verdict.violation:
                bad.append(verdict)
                console.print(f"[red]seed {verdict.seed}[/red] {verdict.violation[:300]}")
    table = Table("", "")
    for name in _SUMMED:
        table.add_row(name, f"{totals[name]:,}")
    healed.sort()
    table.add_row("well after healing, median ms", str(healed[len(healed) // 2]))
    table.add_row("well after healing, longest ms", str(healed[-1]))
    table.add_row("seconds", f"{time.monotonic() - begun:.0f}")
    table.add_row("seeds", str(len(seeds)))
    table.add_row("violations", str(len(bad)))
    console.print(table)
    for verdict in bad:
        suffix = f" --bias {bias}" if bias else ""
        console.print(f"replay: scripts/sim --seed {verdict.seed}{suffix}")
    return FOUND if bad else 0


def _verdicts(seeds: range, jobs: int, bias: str) -> Iterator[Verdict]:
    run = partial(run_seed, parts=None, bias=bias)
    if jobs <= 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run, seeds, chunksize=8)


if __name__ == "__main__":
    main()
