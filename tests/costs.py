"""Where a test run's CPU goes: a pytest plugin that records, and a command that prints the tables.

`scripts/test --costs` loads the plugin in every worker. Each worker appends JSON lines to a file in
the folder that `TEST_COSTS` names:

* a test: its CPU in the worker's own process, and the time it took on the wall;
* a process that a test started and that ended: its CPU, with that of its own ended children, and
  the test that started it.

Processes that outlive the run, and children of a process that was killed, are not seen. The table
states the difference from the CPU of the whole machine.

    python tests/costs.py FOLDER [--top N]     print the tables
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

FOLDER_KEY = "TEST_COSTS"
_SHOWN_ARGUMENTS = 3


class Recorder:
    """Writes the costs of one worker's tests and processes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = (folder / f"{os.getpid()}.jsonl").open("w", buffering=1)
        self._test = "collection"
        self._started: dict[int, tuple[str, str]] = {}
        self._wait4 = os.wait4

    def record_processes(self) -> None:
        """Take the CPU of every ended process from the kernel, where its end is noticed."""
        popen: Any = subprocess.Popen
        start = popen.__init__

        @functools.wraps(start)
        def started(process: Any, arguments: Any, *more: Any, **named: Any) -> None:
            start(process, arguments, *more, **named)
            self._started[process.pid] = (_kind(arguments), self._test)

        popen.__init__ = started
        os.waitpid = self._waitpid
        popen._internal_poll = functools.partialmethod(popen._internal_poll, _waitpid=self._waitpid)

    def _waitpid(self, pid: int, options: int) -> tuple[int, int]:
        ended, status, usage = self._wait4(pid, options)
        if ended and not sys.is_finalizing():
            kind, test = self._started.pop(ended, ("fork", self._test))
            self._write(process=kind, test=test, cpu_s=usage.ru_utime + usage.ru_stime)
        return ended, status

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measure a test with its fixtures."""
        self._test = item.nodeid
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        spent, lasted = time.process_time() - cpu, time.perf_counter() - wall
        self._write(test=item.nodeid, cpu_s=spent, wall_s=lasted)

    def _write(self, **record: Any) -> None:
        self._file.write(json.dumps(record) + "\n")


def _kind(arguments: Any) -> str:
    """Return what a command line starts, without paths and options."""
    words = arguments.split() if isinstance(arguments, str) else [str(word) for word in arguments]
    if words and Path(words[0]).name == "sh" and "cometmq" in " ".join(words[:6]):
        words = words[words.index("sh", 1) + 1 :] if "sh" in words[1:] else words
    names = [Path(word).name for word in words if not word.startswith("-")]
    single = ["--single"] if "--single" in words else []
    count = _SHOWN_ARGUMENTS if names[:1] == ["cometmq"] else 2
    return " ".join([name[:40].splitlines()[0] if name else "" for name in names[:count]] + single)


def print_tables(folder: Path, top: int) -> None:
    """Print CPU by folder, by file, by kind of process, and of the most expensive tests."""
    tests: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    kinds: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for file in folder.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            if "process" in record:
                tests[record["test"]][1] += record["cpu_s"]
                kinds[record["process"]][0] += 1
                kinds[record["process"]][1] += record["cpu_s"]
            else:
                tests[record["test"]][0] += record["cpu_s"]
                tests[record["test"]][2] += record["wall_s"]
    sums = [sum(column) for column in zip(*tests.values(), strict=True)]
    print(f"{len(tests)} tests: CPU {sums[0] + sums[1]:.0f} s, of it {sums[1]:.0f} s in processes")
    for title, parts in (("folder", 2), ("file", None)):
        _print_sums(title, tests, parts, top)
    print("\n| process | count | CPU s | CPU s each |\n| --- | ---: | ---: | ---: |")
    for kind, (count, cpu_s) in sorted(kinds.items(), key=lambda row: -row[1][1])[:top]:
        print(f"| {kind} | {count:.0f} | {cpu_s:.0f} | {cpu_s / count:.2f} |")
    _print_sums("test", tests, 0, top)


def _print_sums(title: str, tests: dict[str, list[float]], parts: int | None, top: int) -> None:
    """`parts`: how much of a test's path is the row; None is the file, 0 the whole name."""
    rows: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0])
    for name, values in tests.items():
        file = name.split("::", 1)[0]
        key = name if parts == 0 else file if parts is None else "/".join(file.split("/")[:parts])
        for position, value in enumerate([*values, 1]):
            rows[key][position] += value
    print(f"\n| {title} | tests | CPU s | in the worker | in processes | waiting |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    ordered = sorted(rows.items(), key=lambda row: -(row[1][0] + row[1][1]))
    for key, (own, children, wall, count) in ordered[:top]:
        waiting = max(0.0, wall - own - children)
        print(
            f"| {key} | {count:.0f} | {own + children:.1f} | {own:.1f} | {children:.1f} "
            f"| {waiting:.1f} |"
        )


def main() -> None:
    """Print the tables of a recorded run."""
    parser = argparse.ArgumentParser(description=__doc__, usage="%(prog)s FOLDER [--top N]")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--top", type=int, default=50)
    chosen = parser.parse_args()
    print_tables(chosen.folder, chosen.top)


def pytest_configure(config: pytest.Config) -> None:
    """Record in every process that runs tests: a worker, or pytest itself without workers."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        recorder = Recorder(Path(os.environ[FOLDER_KEY]))
        recorder.record_processes()
        config.pluginmanager.register(recorder, "cometmq-costs")


if __name__ == "__main__":
    main()
