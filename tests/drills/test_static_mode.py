"""Static groups in drills: planned and forced changes of the master, with nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.drills.actions import static_mode
from cometmq.drills.run import perform
from cometmq.drills.settings import Setup
from cometmq.drills.stage import Stage
from cometmq.drills.verdict import Verdict
from cometmq.tests.drills.judging import settle


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("body", "mode"),
    [
        pytest.param(static_mode.planned, "sync", id="planned"),
        pytest.param(static_mode.failover, "sync", id="failover"),
        pytest.param(static_mode.failover, "async", id="failover-async", marks=pytest.mark.slow),
        pytest.param(static_mode.watched, "sync", id="watched"),
    ],
)
def test_static(body: Callable[[Stage], None], mode: str, tmp_path: Path) -> None:
    result = Verdict(f"static {body.__name__}", (body.__doc__ or "").strip(), mode)
    setup = Setup(controller=False).with_mode(mode)
    settle(perform(tmp_path, result, setup, body), tmp_path)
