"""`scripts/hostile`: run the catalogue of attacks on a live broker, and judge it.

Prints a row for each attack: the answer, the longest call of the well-behaved neighbour, its rate
as a part of the rate around the attack, the peak of the memory, and what stays of it; with
`--turns` also the processor time of the longest turn of the event loop, at most 50 ms except in a
flood. Ends with tracebacks and internal errors of the log and with the neighbour's rate over all
attacks, which must be at least 80 % of its rate around them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cometmq.proto.native import is_available
from cometmq.tests.hostile.catalogue import CATALOGUE
from cometmq.tests.hostile.target import Target
from cometmq.tests.hostile.trial import STAYS_MIB, Trial
from cometmq.tests.hostile.trial import run as run_trial

RATE_SHARE = 0.8
#: What strangers may hold beyond the memory of an idle process.
PEAK_MIB = 150.0
#: Processor time of one turn of the event loop (`--turns`): that of a single request. A flood has
#: many requests in a turn, from several connections with a budget each.
TURN_MAX_MS = 50.0
DOORS = ("grpcio", "native") if is_available() else ("grpcio",)


async def replay(
    door: str,
    only: list[str],
    data: Path,
    log: Path | None,
    *,
    probe: bool,
    first: bool = False,
    secured: bool = False,
) -> list[Trial]:
    """Run the attacks; return their figures."""
    target = Target(data, door, probe=probe, secured=secured).start()
    try:
        if first:
            target.go_first()
        trials = []
        for attack in CATALOGUE:
            if attack.concerns(door) and any(part in attack.name for part in only):
                trials.append(await run_trial(attack, target))
                print(f"  {door} {row(trials[-1])}", flush=True)
    finally:
        _stop(target, log)
    return trials


def _stop(target: Target, log: Path | None) -> None:
    if log is not None:
        log.write_text(target.log())
    target.stop()


def row(trial: Trial) -> str:
    """Return one line of progress."""
    return (
        f"{trial.attack.name} {trial.seconds:.1f} s stall={trial.neighbour.longest_ms:.0f} ms "
        f"turn={trial.turn_ms:.0f} ms rate={trial.share:.0%} "
        f"peak={trial.peak_mib:.0f} MiB stays={trial.stays_mib:.0f} MiB "
        f"tracebacks={trial.tracebacks} internal={trial.internal_errors}: {trial.answer}"
    )


def judge(door: str, trials: list[Trial], *, secured: bool = False) -> list[str]:
    """Return what is wrong; `secured`: strangers get answers of their own."""
    wrong = []
    for trial in trials:
        name = trial.attack.name
        if not secured and (found := trial.attack.unexpected(trial.answer)):
            wrong.append(f"{name}: answered {' '.join(found)}")
        if trial.neighbour.failures:
            wrong.append(f"{name}: the neighbour failed: {trial.neighbour.failures[0]}")
        if trial.turn_ms > TURN_MAX_MS and "flood" not in name:
            wrong.append(f"{name}: a turn of the event loop took {trial.turn_ms:.0f} ms")
        if door == "native" and trial.peak_mib > PEAK_MIB:
            wrong.append(f"{name}: {trial.peak_mib:.0f} MiB at the peak")
        if trial.elections:
            wrong.append(f"{name}: the group had an election")
        if trial.stays_mib > STAYS_MIB:
            wrong.append(f"{name}: {trial.stays_mib:.0f} MiB stay")
    if total := sum(trial.tracebacks for trial in trials):
        wrong.append(f"{total} tracebacks in the log")
    if total := sum(trial.internal_errors for trial in trials):
        wrong.append(f"{total} internal errors in the log")
    if rate_share(trials) < RATE_SHARE:
        wrong.append(f"the neighbour's rate is below {RATE_SHARE:.0%} of its usual one")
    return wrong


def rate_share(trials: list[Trial]) -> float:
    """Return the neighbour's cycles during all attacks, as a part of those it makes without."""
    usual = sum(trial.neighbour.seconds * trial.usual_rate for trial in trials)
    return sum(trial.neighbour.cycles for trial in trials) / usual if usual else 1.0


def table(door: str, trials: list[Trial]) -> Table:
    """Return the table of one door."""
    made = Table(title=f"hostile input, {door} door")
    for title in (
        *("attack", "answer", "seconds", "stall ms", "turn ms", "rate"),
        *("peak MiB", "stays MiB"),
    ):
        made.add_column(title, justify="left" if title in ("attack", "answer") else "right")
    for trial in trials:
        made.add_row(
            trial.attack.title,
            trial.answer[:60],
            f"{trial.seconds:.1f}",
            f"{trial.neighbour.longest_ms:.0f}",
            f"{trial.turn_ms:.0f}",
            f"{trial.share:.0%}",
            f"{trial.peak_mib:.0f}",
            f"{trial.stays_mib:.0f}",
        )
    return made


def report(door: str, trials: list[Trial]) -> str:
    """Return the figures of one door as a table in Markdown."""
    rows = [
        f"| {door} door | longest turn, ms of CPU | longest call, ms | peak, MiB | neighbour |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for trial in trials:
        rows.append(
            f"| {trial.attack.title.rstrip('.')} | {trial.turn_ms:.0f} | "
            f"{trial.neighbour.longest_ms:.0f} | {trial.peak_mib:.0f} | {trial.share:.0%} |"
        )
    return "\n".join(rows) + "\n"


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="scripts/hostile", description=__doc__)
    parser.add_argument("--door", choices=DOORS, action="append", help="default: every door")
    parser.add_argument("--only", action="append", help="attacks whose name contains this")
    parser.add_argument(
        "--turns", action="store_true", help="measure the turns of the loop (asyncio's, no uvloop)"
    )
    parser.add_argument(
        "--first",
        action="store_true",
        help="take the processor before other work of this machine (root)",
    )
    parser.add_argument(
        "--secured",
        action="store_true",
        help="users, rights and TLS on every port: the attackers come over TLS, unsigned",
    )
    parser.add_argument("--log", type=Path, help="file for the log of the (last) broker")
    parser.add_argument("--report", type=Path, help="file for the tables in Markdown")
    chosen = parser.parse_args()
    wide = None if sys.stdout.isatty() else 150
    console = Console(width=wide)
    wrong: list[str] = []
    reports: list[str] = []
    for door in chosen.door or DOORS:
        with tempfile.TemporaryDirectory(prefix="cometmq-hostile-") as folder:
            trials = asyncio.run(
                replay(
                    door,
                    chosen.only or [""],
                    Path(folder) / "data",
                    chosen.log,
                    probe=chosen.turns,
                    first=chosen.first,
                    secured=chosen.secured,
                )
            )
        console.print(table(door, trials))
        reports.append(report(door, trials))
        console.print(
            f"{door}: {len(trials)} attacks, tracebacks {sum(t.tracebacks for t in trials)}, "
            f"internal errors {sum(t.internal_errors for t in trials)}, neighbour at "
            f"{rate_share(trials):.0%} of its rate"
        )
        wrong += [f"{door}: {text}" for text in judge(door, trials, secured=chosen.secured)]
    if chosen.report is not None:
        chosen.report.write_text("\n".join(reports))
    for text in wrong:
        console.print(f"WRONG {text}", markup=False)
    return 1 if wrong else 0


if __name__ == "__main__":
    os.environ.setdefault("COMETMQ_LOG_LEVEL", "INFO")
    sys.exit(main())
