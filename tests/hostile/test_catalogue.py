"""Each hostile input harms only its own connection: both doors, one live broker each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from cometmq.tests.conftest import NATIVE_DOOR
from cometmq.tests.hostile.catalogue import CATALOGUE, Attack
from cometmq.tests.hostile.target import Target
from cometmq.tests.hostile.trial import STAYS_MIB, run

pytestmark = pytest.mark.slow  # minutes on a loaded machine; scripts/hostile prints the figures
DOORS = ("grpcio", "native") if NATIVE_DOOR else ("grpcio",)
#: A leader's lease (controllerLeaseMs): a longer stall costs the leadership. scripts/hostile prints
#: the figures.
STALL_MAX_MS = 5_000.0

CASES = [
    pytest.param(door, attack, id=f"{door}-{attack.name}")
    for door in DOORS
    for attack in CATALOGUE
    if attack.concerns(door)
]


@pytest.fixture(scope="module")
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    """Provide one broker under attack for each door."""
    made = Target(tmp_path_factory.mktemp("hostile") / "data", request.param)
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.mark.parametrize(("target", "attack"), CASES, indirect=["target"])
async def test_hostile_input_harms_nobody_else(target: Target, attack: Attack) -> None:
    trial = await run(attack, target)
    assert not attack.unexpected(trial.answer), trial.answer
    assert not trial.neighbour.failures
    assert trial.neighbour.longest_ms < STALL_MAX_MS
    assert trial.stays_mib <= STAYS_MIB
    assert not trial.elections
    assert (trial.tracebacks, trial.internal_errors) == (0, 0), target.log()[-5_000:]


@pytest.mark.parametrize("door", DOORS)
async def test_idle_connections_leave_descriptors_for_the_store(
    tmp_path_factory: pytest.TempPathFactory, door: str
) -> None:
    target = Target(tmp_path_factory.mktemp("idle") / "data", door, nofile=300)
    writers = []
    try:
        target.start()
        for port in (target.port, target.node.ports["metrics"], target.port):
            for _ in range(135):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writers.append(writer)
        await asyncio.sleep(1.0)
        assert not target.figures().failures
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.5)
        figures = target.figures()
        assert figures.cycles and not figures.failures
        assert json.loads(target.get("/readyz"))["status"] == "ok"
    finally:
        target.stop()
