"""What the drills' test files share: run one drill of the table, print its verdict, fail on a broken promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import report
from .run import run_drill
from .table import drill
from .verdict import Verdict


def cases_of(*numbers: int) -> list[object]:
    """Parameters for pytest: the first mode of each drill in every run, the others with --slow."""
    found: list[object] = []
    for number in numbers:
        for at, mode in enumerate(drill(number).modes):
            marks = [pytest.mark.slow] if at else []
            name = f"{number}-{mode.replace(' ', '')}"
            found.append(pytest.param(number, mode, id=name, marks=marks))
    return found


def judge(number: int, mode: str, folder: Path) -> None:
    """Run it; the test fails with a sentence for every broken promise."""
    settle(run_drill(number, mode, folder), folder)


def settle(result: Verdict, folder: Path) -> None:
    """Print the verdict, and fail when it is bad."""
    report.show([result])
    error = folder / "error.txt"
    if error.exists():
        print(error.read_text())
    assert result.broken() == []
