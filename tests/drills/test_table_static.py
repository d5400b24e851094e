"""Drills of the table: static groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.tests.drills.judging import cases_of, judge


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("number", "mode"), cases_of(42, 43))
def test_drill(number: int, mode: str, tmp_path: Path) -> None:
    judge(number, mode, tmp_path)
