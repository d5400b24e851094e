"""Random single damage of a store directory never stalls a reader, alters a message or loses one
silently. More seeds: `python -m cometmq.tests.damage.run --count 5000`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cometmq.tests.damage import world
from cometmq.tests.damage.injury import Injury
from cometmq.tests.damage.judge import GOOD, judge
from cometmq.tests.damage.run import run
from cometmq.tests.damage.world import VARIANTS
from cometmq.tests.example_budget import scaled

#: In the gate a quarter (`example_budget.py`). One seed costs a fifth of a second of CPU time.
SEEDS = 100
SLOW_SEEDS = 5000
CLEAN = next(variant for variant in VARIANTS if variant.clean)
KILLED = next(variant for variant in VARIANTS if not variant.clean)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the template of a killed store."""
    folder = tmp_path_factory.mktemp("killed")
    asyncio.run(world.build(folder, KILLED))
    return folder


def faults(first: int, count: int, workers: int) -> list[str]:
    results = list(run(first, count, workers))
    assert len(results) == count
    return [str(result) for result in results if result["verdict"] not in GOOD]


@pytest.mark.parametrize("file", ["consumequeue/Orders/0/" + 20 * "0", "timerlog/" + 20 * "0"])
async def test_the_first_file_of_a_killed_store_is_rebuilt_when_it_is_lost(
    killed: Path, tmp_path: Path, file: str
) -> None:
    injury = Injury(file, "first file", "gone")
    verdict = await judge(0, killed, tmp_path / "store", KILLED, injury)
    assert verdict.verdict in ("correct", "counted"), verdict
    assert "missing" not in verdict.detail.replace("begin_missing", ""), verdict
    assert any(name.endswith(".begin_missing") for name in verdict.events), verdict


async def test_a_store_that_has_lost_its_consumer_offsets_is_refused(tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.mkdir()
    await world.build(template, CLEAN)
    injury = Injury("config/consumerOffset.json", "config", "gone")
    verdict = await judge(0, template, tmp_path / "store", CLEAN, injury)
    assert verdict.verdict == "refused", verdict
    assert "acceptAbsent=true" in verdict.detail, verdict


@pytest.mark.timeout(900)
def test_random_damage_is_repaired_refused_or_counted() -> None:
    assert faults(0, scaled(SEEDS), workers=2) == []


@pytest.mark.slow
@pytest.mark.timeout(14_400)
def test_five_thousand_random_damages_are_repaired_refused_or_counted() -> None:
    assert faults(0, SLOW_SEEDS, workers=2) == []
