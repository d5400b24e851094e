"""`scripts/drill`: runs drills and writes the results as table, JSON, JUnit XML and timelines.

scripts/drill --list                      the drills of the table
scripts/drill --only 5 [--mode async]     one of them; several: --only 5,6,9
scripts/drill --all --report docs/drills.md
scripts/drill --seed 7 --faults kill,pause,cut --mode sync --seconds 20 --out verdict.json
scripts/drill --random 100                a number of random drills, seeds from --seed on
scripts/drill --kills 50 [--default-timers]   distribution of recovery times
scripts/drill --pauses 20 --seconds 2 [--lease 2500 --beat 250]   elections caused by SIGSTOP
scripts/drill --kill9 [--rounds 20] [--acks 1000] [--flush sync]   kill -9 of the master under load
scripts/drill --compose                   drills on containers (needs a Docker engine)
scripts/drill --hosts [--rounds 20] [--only link-down,one-way]   three hosts in network namespaces
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from . import chance, history, kill9, report, timeline
from .settings import Setup
from .stage import Stage
from .table import DRILLS, cases, drill
from .verdict import Verdict


def perform(
    folder: Path,
    verdict: Verdict,
    setup: Setup,
    body: Callable[[Stage], None],
    *,
    scale: float = 0.0,
    seed: int = 1,
) -> Verdict:
    """Run one drill in `folder`; every failure is in the verdict."""
    started = time.monotonic()
    with Stage(folder, setup, verdict, scale=scale, seed=seed) as stage:
        try:
            stage.open()
            body(stage)
        except Exception as error:  # becomes the verdict of the failed drill
            verdict.error = f"{type(error).__name__}: {error}"
            (folder / "error.txt").write_text(traceback.format_exc() + "\n" + stage.plant.story())
        histories = list(stage.histories)
    verdict.seconds = time.monotonic() - started
    title = f"drill {verdict.drill} ({verdict.mode}): {verdict.title}"
    events = list(history.read(folder / "events.jsonl"))
    (folder / "timeline.svg").write_text(timeline.draw(events, histories, title))
    return verdict


def run_drill(
    number: int, mode: str, folder: Path, *, scale: float = 0.0, seed: int = 1
) -> Verdict:
    """Run one drill of the table in one mode; full-length runs have their own result row."""
    row = drill(number)
    name = str(number) if scale < 1 else f"{number}, full length"
    verdict = Verdict(name, row.title, mode)
    return perform(folder, verdict, row.setup_of(mode), row.run, scale=scale, seed=seed)


def run_random(
    folder: Path,
    seed: int,
    mode: str,
    *,
    faults: tuple[str, ...] = chance.FAULTS,
    seconds: float = 8.0,
    after: int = chance.AFTER,
) -> Verdict:
    """Run one random drill."""
    verdict = Verdict(f"seed {seed}", f"random {','.join(faults)}", mode)
    brokers = 2 + seed % 2
    setup = replace(Setup(brokers=brokers, nameservers=1 + 2 * (seed % 3 == 2)).with_mode(mode))

    def body(stage: Stage) -> None:
        chance.random_faults(stage, faults, seconds, after)

    return perform(folder, verdict, setup, body, seed=seed)


def run_kills(
    folder: Path, count: int, mode: str, *, default_timers: bool, report_exits: bool
) -> Verdict:
    """Kill the leader repeatedly, for the distribution of recovery times."""
    what = "default timers" if default_timers else "test timers"
    told = "exit reported" if report_exits else "lease expires"
    verdict = Verdict(f"{count} kills", f"{what}, {told}", mode)
    setup = Setup(default_timers=default_timers, report_exits=report_exits).with_mode(mode)
    return perform(folder, verdict, setup, lambda stage: chance.kills(stage, count))


def run_pauses(options: argparse.Namespace, folder: Path) -> Verdict:
    """Suspend the leader repeatedly; count the elections."""
    keys = {"controllerLeaseMs": options.lease, "controllerBeatIntervalMs": options.beat}
    timers = {key: str(value) for key, value in keys.items() if value}
    verdict = Verdict(f"{options.pauses} pauses", f"{options.seconds:g} s, {timers}", "sync")
    setup = Setup(
        brokers=3, nameservers=3, default_timers=True, conf=timers, namesrv_conf=timers
    ).with_mode("sync")
    return perform(
        folder, verdict, setup, lambda s: chance.pauses(s, options.pauses, options.seconds)
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/drill", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="list the drills")
    parser.add_argument("--all", action="store_true", help="run every drill in every mode")
    parser.add_argument("--only", help="numbers of drills, separated by commas")
    parser.add_argument("--mode", help="sync, async or 'sync 2'; default: all modes of a drill")
    parser.add_argument("--seed", type=int, help="seed of a random drill, or of drill 38")
    parser.add_argument(
        "--faults", help="kill,pause,cut; with --compose kill,stop,pause,disconnect"
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="duration of faults in a random drill"
    )
    parser.add_argument(
        "--after", type=int, default=chance.AFTER, help="sends after the last fault"
    )
    parser.add_argument("--random", type=int, metavar="N", help="number of random drills")
    parser.add_argument("--kills", type=int, metavar="N", help="number of kills of the leader")
    parser.add_argument("--pauses", type=int, metavar="N", help="number of pauses of the leader")
    parser.add_argument("--lease", type=int, help="with --pauses: controllerLeaseMs")
    parser.add_argument("--beat", type=int, help="with --pauses: controllerBeatIntervalMs")
    parser.add_argument("--kill9", action="store_true", help="kill -9 of the master under load")
    parser.add_argument(
        "--hosts", action="store_true", help="run drills on three hosts in network namespaces"
    )
    parser.add_argument(
        "--clients", default="go,java", help="with --hosts: official clients beside Python's"
    )
    parser.add_argument("--program", action="append", help=argparse.SUPPRESS)
    parser.add_argument(
        "--goals", action="store_true", help="with --hosts: a missed goal is a failure"
    )
    parser.add_argument(
        "--rounds", type=int, default=20, help="with --kill9 and --hosts: number of faults"
    )
    parser.add_argument("--acks", type=int, default=1000, help="with --kill9: sends per round")
    parser.add_argument("--flush", choices=("sync", "async"), default="async", help="with --kill9")
    parser.add_argument(
        "--default-timers", action="store_true", help="use the default timers of the product"
    )
    parser.add_argument(
        "--no-exit-report", action="store_true", help="do not report exits; the lease must expire"
    )
    parser.add_argument(
        "--scale", type=float, default=0.0, help="length of long drills; 1 is the full length"
    )
    parser.add_argument("--compose", action="store_true", help="run drills on containers")
    parser.add_argument("--services", help="with --compose: only these services, e.g. ns0,a0")
    parser.add_argument(
        "--no-build", action="store_true", help="with --compose: use the existing image"
    )
    parser.add_argument("--out", type=Path, help="write the verdicts as JSON")
    parser.add_argument(
        "--merge", type=Path, nargs="+", help="run nothing; read verdicts of --out files"
    )
    parser.add_argument("--junit", type=Path, help="write the verdicts as JUnit XML")
    parser.add_argument("--report", type=Path, help="write the results page")
    parser.add_argument("--note", default="", help="a paragraph for the results page")
    parser.add_argument("--picture", type=Path, help="folder for the timelines")
    parser.add_argument("--keep", type=Path, help="folder for the files of failed drills")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the selected drills; return 1 if a check failed."""
    options = parse(arguments)
    if options.list:
        for row in DRILLS:
            print(f"{row.number:>3}  {', '.join(row.modes):<12}  {row.title} -> {row.expected}")
        return 0
    if options.compose:
        from .compose import main as compose_main

        return compose_main(options)
    if options.hosts:
        from .hosts.run import main as hosts_main

        return hosts_main(options)
    if options.kill9:
        return kill9.main(options)
    if options.merge:
        found = _merged(options.merge)
        _tell(options, found)
        return 0 if all(one.passed for one in found) else 1
    found = [_one(options, name, do) for name, do in _jobs(options)]
    _tell(options, found)
    return 0 if all(one.passed for one in found) else 1


def _merged(paths: list[Path]) -> list[Verdict]:
    """Return the last verdict of each drill in each mode."""
    last: dict[tuple[str, str], Verdict] = {}
    for path in paths:
        for one in report.from_json(path.read_text()):
            last[one.drill, one.mode] = one
    return sorted(last.values(), key=lambda one: (len(one.drill), one.drill, one.mode))


Job = tuple[str, Callable[[Path], Verdict]]


def _jobs(options: argparse.Namespace) -> list[Job]:
    """Return the selected runs by name."""
    mode = options.mode or "sync"
    if options.kills:
        return [
            (
                "kills",
                lambda folder: run_kills(
                    folder,
                    options.kills,
                    mode,
                    default_timers=options.default_timers,
                    report_exits=not options.no_exit_report,
                ),
            )
        ]
    if options.pauses:
        return [("pauses", partial(run_pauses, options))]
    if options.all or options.only:
        wanted = {int(part) for part in options.only.split(",")} if options.only else None
        chosen = [
            (number, its)
            for number, its in cases()
            if (wanted is None or number in wanted) and options.mode in (None, its)
        ]
        return [(f"{number} {its}", _case(number, its, options)) for number, its in chosen]
    first = options.seed if options.seed is not None else int(time.time())
    return [
        (f"seed {seed}", _seeded(seed, options))
        for seed in range(first, first + (options.random or 1))
    ]


def _case(number: int, mode: str, options: argparse.Namespace) -> Callable[[Path], Verdict]:
    seed = options.seed if options.seed is not None else 1
    return lambda folder: run_drill(number, mode, folder, scale=options.scale, seed=seed)


def _seeded(seed: int, options: argparse.Namespace) -> Callable[[Path], Verdict]:
    faults = tuple(options.faults.split(",")) if options.faults else chance.FAULTS
    mode = options.mode or ("sync", "async")[seed % 2]
    return lambda folder: run_random(
        folder, seed, mode, faults=faults, seconds=options.seconds, after=options.after
    )


def _one(options: argparse.Namespace, name: str, do: Callable[[Path], Verdict]) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="cometmq-drill-", ignore_cleanup_errors=True) as folder:
        result = do(Path(folder))
        print(
            f"{name}: {'passed' if result.passed else 'FAILED'} in {result.seconds:.1f} s",
            flush=True,
        )
        slug = name.replace(" ", "-")
        if options.picture:
            report.write(
                options.picture / f"{slug}.svg", (Path(folder) / "timeline.svg").read_text()
            )
        if options.keep and not result.passed:
            ignore = shutil.ignore_patterns("consumequeue", "index", "home-*")
            shutil.copytree(folder, options.keep / slug, dirs_exist_ok=True, ignore=ignore)
    return result


def _tell(options: argparse.Namespace, found: list[Verdict]) -> None:
    report.show(found)
    times = sorted(ms for one in found for ms in one.rto_ms)
    if len(times) > 3:
        print(distribution(times))
    if options.out:
        report.write(options.out, report.as_json(found))
    if options.junit:
        report.write(options.junit, report.as_junit(found))
    if options.report:
        rows = [(str(row.number), row.title, row.expected) for row in DRILLS]
        how = options.note
        report.write(options.report, report.as_page(found, rows, how))


def distribution(times: list[float]) -> str:
    """Return median, p99 and maximum."""
    p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
    return (
        f"{len(times)} faults, first OK after: median {statistics.median(times):.0f} ms, "
        f"p99 {p99:.0f} ms, max {max(times):.0f} ms"
    )


if __name__ == "__main__":
    sys.exit(main())
