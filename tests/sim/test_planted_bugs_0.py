"""Planted bugs, share 0 of 3: with one rule removed the simulation finds a violation within 50 seeds."""

import pytest

from .bugs import Bug
from .checks import assert_found, bugs


@pytest.mark.parametrize("bug", bugs(0, 3), ids=lambda bug: bug.name)
def test_is_found(bug: Bug) -> None:
    assert_found(bug)
