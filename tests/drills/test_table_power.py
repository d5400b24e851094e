"""Drills of the table: power loss, suspect replicas, tails."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.tests.drills.judging import cases_of, judge


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("number", "mode"), cases_of(11, 12, 13, 14, 15, 16, 17))
def test_drill(number: int, mode: str, tmp_path: Path) -> None:
    judge(number, mode, tmp_path)
