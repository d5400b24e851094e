"""Static groups in drills: planned and forced changes of the master, with nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.tests.drills import static_mode
from cometmq.tests.drills.judging import settle
from cometmq.tests.drills.run import perform
from cometmq.tests.drills.settings import Setup
from cometmq.tests.drills.stage import Stage
from cometmq.tests.drills.verdict import Verdict


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("body", "mode"),
    [
        pytest.param(static_mode.planned, "sync", id="planned"),
        pytest.param(static_mode.failover, "sync", id="failover"),
        pytest.param(static_mode.failover, "async", id="failover-async", marks=pytest.mark.slow),
        pytest.param(static_mode.watched, "sync", id="watched"),
        # Ten in a row find what one cannot; ha/test_static_promotions.py gates the in-sync sets.
        pytest.param(static_mode.ten_failovers, "sync", id="ten", marks=pytest.mark.slow),
        pytest.param(static_mode.ten_watched, "sync", id="ten-watched", marks=pytest.mark.slow),
    ],
)
def test_static(body: Callable[[Stage], None], mode: str, tmp_path: Path) -> None:
    result = Verdict(f"static {body.__name__}", (body.__doc__ or "").strip(), mode)
    setup = Setup(controller=False).with_mode(mode)
    settle(perform(tmp_path, result, setup, body), tmp_path)
