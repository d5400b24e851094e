"""Runs the drills of `cometmq drill`; writes the results as table, JSON, JUnit XML, timelines."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from . import history, report, timeline
from .actions import chance
from .options import AFTER, Options
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
    after: int = AFTER,
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


def run_pauses(options: Options, folder: Path) -> Verdict:
    """Suspend the leader repeatedly; count the elections."""
    keys = {"controllerLeaseMs": options.lease, "controllerBeatIntervalMs": options.beat}
    timers = {key: str(value) for key, value in keys.items() if value}
    verdict = Verdict(f"{options.pauses} pauses", f"{options.seconds:g} s, {timers}", "sync")
    setup = Setup(
        brokers=3, nameservers=3, default_timers=True, conf=timers, namesrv_conf=timers
    ).with_mode("sync")
    return perform(
        folder, verdict, setup, lambda s: chance.pauses(s, options.pauses or 0, options.seconds)
    )


def main(options: Options) -> int:
    """Run the selected drills; return 1 if a check failed, 2 without a container engine."""
    if options.compose:
        from .containers.compose import main as compose_main

        return compose_main(options)
    if options.merge:
        found = _merged(options.merge)
    else:
        found = [_one(options, name, do) for name, do in _jobs(options)]
    _tell(options, found)
    return 0 if all(one.passed for one in found) else 1


def _merged(paths: Sequence[Path]) -> list[Verdict]:
    """Return the last verdict of each drill in each mode."""
    last: dict[tuple[str, str], Verdict] = {}
    for path in paths:
        for one in report.from_json(path.read_text()):
            last[one.drill, one.mode] = one
    return sorted(last.values(), key=lambda one: (len(one.drill), one.drill, one.mode))


Job = tuple[str, Callable[[Path], Verdict]]


def _jobs(options: Options) -> list[Job]:
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
    if options.all or options.numbers:
        wanted = set(options.numbers) or None
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


def _case(number: int, mode: str, options: Options) -> Callable[[Path], Verdict]:
    seed = options.seed if options.seed is not None else 1
    return lambda folder: run_drill(number, mode, folder, scale=options.scale, seed=seed)


def _seeded(seed: int, options: Options) -> Callable[[Path], Verdict]:
    faults = tuple(options.faults.split(",")) if options.faults else chance.FAULTS
    mode = options.mode or ("sync", "async")[seed % 2]
    return lambda folder: run_random(
        folder, seed, mode, faults=faults, seconds=options.seconds, after=options.after
    )


def _one(options: Options, name: str, do: Callable[[Path], Verdict]) -> Verdict:
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


def _tell(options: Options, found: list[Verdict]) -> None:
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
