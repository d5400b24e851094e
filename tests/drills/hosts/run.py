"""`scripts/drill --hosts`: faults of hosts and links, on three hosts in network namespaces.

Every row runs on its own group with the timers of the product: three hosts with a nameserver and a
broker each, and a host with raw and official clients. A round is one fault under load; the figure
is the longest time without an OK from the fault until all replicas are in sync again. In the end
the checker compares the histories with the logs of all replicas.

The load is paced: each client sends about a hundred messages a second. So two cores are not
saturated by the load, which would lengthen the gaps, and rounds can run beside other work. The
figures have a resolution of 10 ms or better; the smallest goal is 300 ms.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from cometmq.drills import history, report
from cometmq.drills.process import DrillError
from cometmq.drills.settings import Setup
from cometmq.drills.stage import SETTLE_S, TOPIC, Stage, Workload
from cometmq.drills.verdict import Verdict

from ...interop.programs import MissingTool, go, java
from .lab import Lab, enter, inside, missing
from .plant import HostPlant
from .rows import QUIET_S, ROWS, Round, Row

SEGMENT = 64 << 20
PAUSE_S = 0.02  # of one of the two senders of a client, between messages
LOAD = Workload(senders=8, readers=0, official=2, pause_s=4 * PAUSE_S, official_pause_s=PAUSE_S)


#: Commands of the loads in other languages, by name.
Programs = Mapping[str, Sequence[str]]


@dataclass(slots=True)
class Client:
    """Figures of one client in all rounds of a row."""

    gaps_ms: list[float] = field(default_factory=list)
    errors: int = 0

    @property
    def longest_ms(self) -> float:
        return max(self.gaps_ms, default=0.0)


@dataclass(slots=True)
class Result:
    """Figures of one row."""

    row: str
    title: str
    goal_ms: float
    rounds: int = 0
    clients: dict[str, Client] = field(default_factory=dict)
    acknowledged: int = 0
    lost: int = 0
    phantom: int = 0
    late: int = 0
    silent: list[str] = field(default_factory=list)  # clients without an OK during a fault
    broken: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    seconds: float = 0.0


def run_row(row: Row, rounds: int, folder: Path, programs: Programs) -> tuple[Result, Verdict]:
    """Run the rounds of one row in `folder`; `programs` are clients of other languages."""
    began_s = time.monotonic()
    setup = Setup(
        brokers=3,
        nameservers=3,
        min_in_sync=row.min_in_sync,
        segment=SEGMENT,
        default_timers=True,
        report_exits=False,
        shadows=False,
    )
    verdict = Verdict(row.name, row.title, "sync")
    result = Result(row.name, row.title, row.goal_ms)
    plant = HostPlant(folder, setup, Lab(folder))
    with Stage(folder, setup, verdict, scale=1.0, plant=plant) as stage:
        try:
            stage.open()
            stage.read()
            drill = Rounds(stage, plant, row, programs, result)
            for number in range(rounds):
                drill.run(number)
            stage.finish()
        except Exception as error:  # becomes the verdict of the failed drill
            verdict.error = f"{type(error).__name__}: {error}"
            (folder / "error.txt").write_text(traceback.format_exc() + "\n" + plant.story())
    result.acknowledged, result.lost = verdict.acknowledged, len(verdict.lost)
    result.phantom, result.late = len(verdict.phantom), len(verdict.late)
    result.broken = verdict.broken()
    _judge(row, result)
    result.seconds = round(time.monotonic() - began_s, 1)
    return result, verdict


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of one row."""

    stage: Stage
    plant: HostPlant
    row: Row
    programs: Programs
    result: Result

    def run(self, number: int) -> None:
        """Apply the fault once under load, heal, and add the figures."""
        stage, run = self.stage, f"r{number}"
        one = Round(stage, self.plant)
        self.row.prepare(one)
        known = len(stage.histories)
        self._load(run)
        clients = _Clients(stage.histories[known:], run)
        one.recovered = clients.wait
        clients.wait(time.monotonic(), SETTLE_S)
        time.sleep(QUIET_S)
        self.row.act(one)
        time.sleep(QUIET_S)
        stage.settle()
        clients.wait(time.monotonic(), SETTLE_S)
        time.sleep(QUIET_S)
        ended_s = time.monotonic()
        stage.unload()
        clients.measure(one.began_s, ended_s, self.result)
        self.result.silent += one.silent
        self.result.rounds += 1
        found = {name: round(c.gaps_ms[-1]) for name, c in self.result.clients.items()}
        print(f"{self.row.name} {number + 1}: {found}", flush=True)

    def _load(self, run: str) -> None:
        stage = self.stage
        stage.load(LOAD, run)
        stage.start_sdk(run, PAUSE_S)
        pause_ms = round(PAUSE_S * 1000 / 2)  # these send from one thread
        for name, command in self.programs.items():
            file = stage.history(f"{name}-{run}")
            words = [stage.endpoints, TOPIC, f"history:{file}:{run}:{pause_ms}"]
            stage.start_load(f"{name}-{run}", [*command, *words])


class _Clients:
    """The histories of the clients of one round."""

    def __init__(self, paths: list[Path], run: str) -> None:
        names = [path.stem.removeprefix("history-").removesuffix(f"-{run}") for path in paths]
        self._paths = dict(zip(names, paths, strict=True))

    def wait(self, since_s: float, within_s: float) -> list[str]:
        """Wait until every client has an OK after `since_s`; return those without one in time."""
        counters = {name: history.Counter("ok") for name in self._paths}
        waiting, end_s = set(self._paths), time.monotonic() + within_s
        while waiting and time.monotonic() < end_s:
            for name in list(waiting):
                counters[name].poll([self._paths[name]])
                if counters[name].last_event().get("t", 0.0) > since_s:
                    waiting.discard(name)
            time.sleep(0.05)
        return sorted(waiting)

    def measure(self, began_s: float, ended_s: float, result: Result) -> None:
        """Add the longest time without an OK and the number of errors of each client."""
        for name, path in self._paths.items():
            events = [event for event in history.read(path) if began_s <= event["t"] <= ended_s]
            times = [began_s, *(event["t"] for event in events if event["e"] == "ok"), ended_s]
            gap_s = max(after - before for before, after in pairwise(times))
            client = result.clients.setdefault(name, Client())
            client.gaps_ms.append(round(gap_s * 1000, 1))
            client.errors += sum(event["e"] in ("fail", "unknown") for event in events)


def _judge(row: Row, result: Result) -> None:
    """Add a line for every goal that was missed."""
    for name, client in result.clients.items():
        if client.longest_ms > row.goal_ms:
            result.missed.append(f"{name}: {client.longest_ms:.0f} ms, goal {row.goal_ms:.0f} ms")
        if row.no_errors and name != "raw" and client.errors:
            result.missed.append(f"{name}: {client.errors} errors, goal 0")
    if result.late:
        result.missed.append(f"{result.late} late acknowledgements")


def table(results: list[Result]) -> str:
    """Return the results as a table in Markdown."""
    names = list(dict.fromkeys(name for one in results for name in one.clients))
    lines = [
        f"| fault | rounds | {' | '.join(f'{name} (median), errors' for name in names)} | goal"
        " | acked | lost | phantom | late |",
        "|" + " --- |" * (len(names) + 7),
    ]
    for one in results:
        cells = [_cell(one.clients.get(name)) for name in names]
        lines.append(
            f"| {one.title} | {one.rounds} | {' | '.join(cells)} | {one.goal_ms / 1000:g} s "
            f"| {one.acknowledged} | {one.lost} | {one.phantom} | {one.late} |"
        )
    return "\n".join(lines)


def _cell(client: Client | None) -> str:
    if client is None or not client.gaps_ms:
        return "-"
    median = statistics.median(client.gaps_ms)
    return f"{client.longest_ms / 1000:.2f} s ({median / 1000:.2f}), {client.errors}"


def main(options: argparse.Namespace) -> int:
    """Run the selected rows, each in a lab of its own.

    Return 1 if a check failed (with `--goals`: or a goal was missed), 2 if this machine has no
    namespaces.
    """
    wanted = options.only.split(",") if options.only else [row.name for row in ROWS]
    unknown = set(wanted) - {row.name for row in ROWS}
    if unknown:
        print(f"Unknown: {', '.join(unknown)}. Rows: {', '.join(r.name for r in ROWS)}.")
        return 2
    if inside():
        (row,) = (row for row in ROWS if row.name in wanted)
        report.write(options.out, json.dumps(asdict(_keep(options, row))))
        return 0
    if reason := missing():
        print(f"No hosts: {reason}.", file=sys.stderr)
        return 2
    programs = [f"--program={name}={shlex.join(words)}" for name, words in _built(options)]
    results = [_in_lab(options, row.name, programs) for row in ROWS if row.name in wanted]
    print(table(results))
    for one in results:
        for sentence in (*one.broken, *one.missed):
            print(f"{one.row}: {sentence}")
    if options.out:
        report.write(options.out, json.dumps([asdict(one) for one in results], indent=1))
    failed = any(one.broken or (options.goals and one.missed) for one in results)
    return 1 if failed else 0


def _in_lab(options: argparse.Namespace, row: str, programs: Sequence[str]) -> Result:
    """Run one row in new namespaces. Raises DrillError."""
    with tempfile.TemporaryDirectory(prefix="cometmq-hosts-") as folder:
        out = Path(folder) / "result.json"
        words = ["--hosts", "--only", row, "--rounds", str(options.rounds), "--out", str(out)]
        if options.keep:
            words += ["--keep", str(options.keep.absolute())]
        module = [sys.executable, "-P", "-m", "cometmq.tests.drills.run"]
        if enter([*module, *words, *programs]) != 0:
            raise DrillError(f"the lab of {row} failed")
        fields = json.loads(out.read_text())
    clients = {name: Client(**client) for name, client in fields.pop("clients").items()}
    result = Result(**fields, clients=clients)
    print(table([result]), flush=True)  # a long run may be stopped before the last row
    return result


def _built(options: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """Build the clients of `--clients`; a missing tool is reported and its client left out."""
    for name in filter(None, options.clients.split(",")):
        try:
            yield name, {"go": go, "java": java}[name]()
        except MissingTool as missing:
            print(f"Without the {name} client: {missing}.", file=sys.stderr)


def _programs(options: argparse.Namespace) -> Programs:
    pairs = (text.partition("=") for text in options.program or ())
    return {name: shlex.split(command) for name, _, command in pairs}


def _keep(options: argparse.Namespace, row: Row) -> Result:
    with tempfile.TemporaryDirectory(prefix="cometmq-hosts-", ignore_cleanup_errors=True) as folder:
        result, _ = run_row(row, options.rounds, Path(folder), _programs(options))
        if options.keep and (result.broken or result.missed):
            ignore = shutil.ignore_patterns("consumequeue", "commitlog", "index", "home-*")
            shutil.copytree(folder, options.keep / row.name, dirs_exist_ok=True, ignore=ignore)
    return result
