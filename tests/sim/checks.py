"""Checks of the simulation's tests: seeds without a violation, planted bugs that are found.

The cases are split into xdist groups, which `pytest --dist loadgroup` spreads over its workers.
"""

from typing import Any

import pytest

from .bugs import BUGS, SEEDS, Bug
from .faults import BIASES
from .world import run_seed

SEED_GROUPS = 6
BUG_GROUPS = 3
UNBIASED_EACH = 20  #: seeds per group
BIASED_EACH = 5  #: seeds per group and bias


def assert_no_violation(seed: int, bias: str = "") -> None:
    verdict = run_seed(seed, bias=bias)
    replay = f"scripts/sim --seed {seed}" + (f" --bias {bias}" if bias else "")
    assert not verdict.violation, f"{verdict.violation}\nreplay: {replay}"


def seed_groups() -> list[Any]:
    """Return the seeds of random clusters as pytest parameters."""
    return [
        pytest.param(seed, marks=pytest.mark.xdist_group(f"seeds-{seed // UNBIASED_EACH}"))
        for seed in range(SEED_GROUPS * UNBIASED_EACH)
    ]


def biased_groups() -> list[Any]:
    """Return the (seed, bias) pairs of biased clusters as pytest parameters."""
    return [
        pytest.param(seed, bias, marks=pytest.mark.xdist_group(f"seeds-{seed // BIASED_EACH}"))
        for bias in sorted(BIASES)
        for seed in range(SEED_GROUPS * BIASED_EACH)
    ]


def bug_groups() -> list[Any]:
    """Return the planted bugs as pytest parameters."""
    return [
        pytest.param(bug, id=bug.name, marks=pytest.mark.xdist_group(f"bugs-{n % BUG_GROUPS}"))
        for n, bug in enumerate(BUGS)
    ]


def assert_found(bug: Bug) -> None:
    for seed in range(SEEDS):
        if run_seed(seed, bug.parts, bug.bias, **bug.fixed).violation:
            return
    raise AssertionError(f"{SEEDS} seeds did not find the bug: without {bug.name}")
