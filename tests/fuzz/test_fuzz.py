"""Each fuzz target for a second, from its corpus; longer runs by `scripts/fuzz`.

The random seed is fixed, so that a run of the suite repeats: `scripts/fuzz` explores.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.tests.fuzz.run import names

SECONDS = 1
SEED = 1


@pytest.mark.parametrize("name", names())
def test_the_target_keeps_its_promises(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "cometmq.tests.fuzz.run", name]
    command += ["--seconds", str(SECONDS), "--seed", str(SEED)]
    command += ["--artifacts", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, f"{done.stdout[-2_000:]}\n{done.stderr[-6_000:]}"
