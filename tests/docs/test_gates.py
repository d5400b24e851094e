"""The tests that docs/design/tests.md names exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "design" / "tests.md"


def test_each_test_that_is_named_as_a_gate_exists() -> None:
    text = PAGE.read_text()
    named = set(re.findall(r"`([\w/]+\.py)(?:::(test_\w+))?`", text))
    assert len(named) > 100
    missing = []
    for file, test in sorted(named):
        place = next((p for p in (TESTS / file, TESTS.parent / file) if p.exists()), None)
        if place is None or (test and f"def {test}(" not in place.read_text()):
            missing.append(f"{file}::{test}")
    assert not missing
