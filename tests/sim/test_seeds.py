"""Simulated clusters: no seed violates an invariant, and every cluster recovers.

The gate runs a quarter of the seeds (`TEST_EXAMPLES`).
"""

import pytest

from cometmq.tests.example_budget import scaled

from .faults import BIASES
from .world import run_seed

SEEDS = 120
#: Seeds for each bias.
BIASED_SEEDS = 30


def assert_no_violation(seed: int, bias: str = "") -> None:
    verdict = run_seed(seed, bias=bias)
    replay = f"scripts/sim --seed {seed}" + (f" --bias {bias}" if bias else "")
    assert not verdict.violation, f"{verdict.violation}\nreplay: {replay}"


@pytest.mark.parametrize("seed", range(scaled(SEEDS)))
def test_a_random_cluster_keeps_every_invariant(seed: int) -> None:
    assert_no_violation(seed)


@pytest.mark.parametrize("bias", sorted(BIASES))
@pytest.mark.parametrize("seed", range(scaled(BIASED_SEEDS, 4)))
def test_a_cluster_biased_to_one_fault_keeps_every_invariant(seed: int, bias: str) -> None:
    assert_no_violation(seed, bias)
