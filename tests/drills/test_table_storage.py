"""Drills of the table: large logs, retention, flipped bits, full disks."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.tests.drills.judging import cases_of, judge


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("number", "mode"), cases_of(23, 24, 25, 26, 27, 41))
def test_drill(number: int, mode: str, tmp_path: Path) -> None:
    judge(number, mode, tmp_path)
