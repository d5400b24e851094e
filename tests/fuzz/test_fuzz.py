"""Each fuzz target with mutated seeds of its corpus; `scripts/fuzz` explores, guided by coverage.

The random seed is fixed, so that a run of the suite repeats.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.tests.example_budget import scaled
from cometmq.tests.fuzz.rights import EACH
from cometmq.tests.fuzz.run import mutate_seeds, names

INPUTS = 2_000
SECONDS = 20
SEED = 1
#: `costs` measures processor time: `tests/broker/test_request_costs.py` counts calls instead.
REPEATED = [name for name in names() if name != "costs"]


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """Undo what targets, which mostly have a process of their own, change of logging."""
    kept = [
        (logger, logger.level, [*logger.handlers])
        for logger in map(logging.getLogger, ("cometmq", "asyncio"))
    ]
    yield
    for logger, level, handlers in kept:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.mark.parametrize("name", REPEATED)
def test_the_target_keeps_its_promises(name: str, tmp_path: Path) -> None:
    requests = scaled(INPUTS)
    mutate_seeds(name, requests // EACH if name == "rights" else requests, SEED, tmp_path)


@pytest.mark.slow  # the instrumentation alone takes 4 s of CPU for each target
@pytest.mark.parametrize("name", REPEATED)
def test_the_target_keeps_its_promises_guided_by_coverage(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "cometmq.tests.fuzz.run", name]
    command += ["--seconds", str(SECONDS), "--seed", str(SEED)]
    command += ["--artifacts", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, f"{done.stdout[-2_000:]}\n{done.stderr[-6_000:]}"
