"""Planted bugs: with one rule removed the simulation finds a violation within 50 seeds."""

import pytest

from .bugs import Bug
from .checks import assert_found, bug_groups


@pytest.mark.parametrize("bug", bug_groups())
def test_the_simulation_finds_the_bug(bug: Bug) -> None:
    assert_found(bug)
