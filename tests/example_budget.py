"""How many examples a generated test (hypothesis) runs: `TEST_EXAMPLES` times what it states.

The gate runs a quarter, which finds what a change breaks at a quarter of the CPU; `scripts/test
--slow` runs four times as many. `TEST_EXAMPLES=1000 pytest FILE` explores.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

FACTOR = float(os.environ.get("TEST_EXAMPLES", "0.25"))
#: Fewer do not reach the second rule of a state machine, or the second shape of a record.
EXAMPLES_MIN = 10
_SETTINGS = "_hypothesis_internal_use_settings"


def scaled(stated: int, least: int = EXAMPLES_MIN) -> int:
    """Return the number of examples to run of `stated`."""
    return max(round(stated * FACTOR), min(stated, least))


def apply(items: list[pytest.Item]) -> None:
    """Scale the examples of every generated test and state machine, once each."""
    seen = set()
    for item in items:
        function: Any = getattr(item, "obj", None)
        machine: Any = getattr(item, "cls", None)
        if isinstance(getattr(machine, "settings", None), settings):
            owner, name = machine, "settings"
        else:
            owner, name = getattr(function, "__func__", function), _SETTINGS
        if is_hypothesis_test(function) and owner not in seen:
            seen.add(owner)
            stated: Any = getattr(owner, name, settings.default)
            setattr(owner, name, settings(stated, max_examples=scaled(stated.max_examples)))
