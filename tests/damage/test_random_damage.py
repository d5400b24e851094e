"""Random single damage of a store directory never stalls a reader, alters a message or loses one
silently. More seeds: `python -m cometmq.tests.damage.run --count 5000`."""

from __future__ import annotations

import pytest

from cometmq.tests.damage.judge import GOOD
from cometmq.tests.damage.run import run

#: One seed costs a fifth of a second of CPU time.
SEEDS = 200
SLOW_SEEDS = 5000


def faults(first: int, count: int, workers: int) -> list[str]:
    results = list(run(first, count, workers))
    assert len(results) == count
    return [str(result) for result in results if result["verdict"] not in GOOD]


@pytest.mark.timeout(900)
def test_random_damage_is_repaired_refused_or_counted() -> None:
    assert faults(0, SEEDS, workers=2) == []


@pytest.mark.slow
@pytest.mark.timeout(14_400)
def test_five_thousand_random_damages_are_repaired_refused_or_counted() -> None:
    assert faults(0, SLOW_SEEDS, workers=2) == []
