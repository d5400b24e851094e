"""Simulated clusters, share 3 of 6: no invariant is ever violated, and after healing all is well."""

import pytest

from .checks import assert_no_violation, biased, unbiased

SHARE = 3


@pytest.mark.parametrize("seed", unbiased(SHARE))
def test_seed(seed: int) -> None:
    assert_no_violation(seed)


@pytest.mark.parametrize(("seed", "bias"), biased(SHARE))
def test_biased_seed(seed: int, bias: str) -> None:
    assert_no_violation(seed, bias)
