"""Drills of the table: processes that die, pause or lose power."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.tests.drills.judging import cases_of, judge


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("number", "mode"), cases_of(1, 2, 3, 4, 5, 6, 28, 29))
def test_drill(number: int, mode: str, tmp_path: Path) -> None:
    judge(number, mode, tmp_path)
