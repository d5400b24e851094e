"""Simulated clusters: 300 seeds violate no invariant, and every cluster recovers."""

import pytest

from .checks import assert_no_violation, biased_groups, seed_groups


@pytest.mark.parametrize("seed", seed_groups())
def test_a_random_cluster_keeps_every_invariant(seed: int) -> None:
    assert_no_violation(seed)


@pytest.mark.parametrize(("seed", "bias"), biased_groups())
def test_a_cluster_biased_to_one_fault_keeps_every_invariant(seed: int, bias: str) -> None:
    assert_no_violation(seed, bias)
