"""Planted bugs: with one rule removed the simulation finds a violation within 50 seeds."""

import pytest

from .bugs import BUGS, SEEDS, Bug
from .world import run_seed


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_simulation_finds_the_bug(bug: Bug) -> None:
    for seed in range(SEEDS):
        if run_seed(seed, bug.parts, bug.bias, **bug.fixed).violation:
            return
    pytest.fail(f"{SEEDS} seeds did not find the bug: without {bug.name}")
