"""Shared code of the drill tests: run a drill, print its verdict, fail on failed checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.drills import report
from cometmq.drills.run import run_drill
from cometmq.drills.table import drill
from cometmq.drills.verdict import Verdict


def cases_of(*numbers: int) -> list[object]:
    """Return pytest parameters: the first mode of each drill that nothing else covers; all modes of
    all drills with --slow."""
    found: list[object] = []
    for number in numbers:
        for at, mode in enumerate(drill(number).modes):
            marks = [pytest.mark.slow] if at or drill(number).covered_by else []
            name = f"{number}-{mode.replace(' ', '')}"
            found.append(pytest.param(number, mode, id=name, marks=marks))
    return found


def judge(number: int, mode: str, folder: Path) -> None:
    """Run a drill; fail with a line for every failed check."""
    settle(run_drill(number, mode, folder), folder)


def settle(result: Verdict, folder: Path) -> None:
    """Print the verdict; fail if a check failed."""
    report.show([result])
    error = folder / "error.txt"
    if error.exists():
        print(error.read_text())
    assert result.broken() == []
