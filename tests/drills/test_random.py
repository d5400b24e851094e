"""Random drills: kills, pauses and disconnections by a seed, then hundreds of sends.

Two in every run; `cometmq drill --random 100 --seed 1` runs more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.drills.run import run_random
from cometmq.drills.stage import LEAST_SHARE
from cometmq.tests.drills.judging import settle

SECONDS = 6.0


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("seed", "mode"), [(1, "sync"), (3, "async")])
def test_random_faults(seed: int, mode: str, tmp_path: Path) -> None:
    result = run_random(tmp_path, seed, mode, seconds=SECONDS)
    settle(result, tmp_path)
    assert result.acknowledged >= 1000 * LEAST_SHARE


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(100, 200))
def test_a_hundred_in_a_row(seed: int, tmp_path: Path) -> None:
    settle(run_random(tmp_path, seed, ("sync", "async")[seed % 2], seconds=SECONDS), tmp_path)
