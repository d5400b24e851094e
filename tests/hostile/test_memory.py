"""What strangers hold in memory, at every port of a broker and a nameserver with the native door:
150 MiB at most, while a neighbour goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cometmq.tests.conftest import NATIVE_DOOR
from cometmq.tests.harness.cluster import wait_until
from cometmq.tests.hostile import floods, remoting, sizes
from cometmq.tests.hostile.attacker import Attacker, Run
from cometmq.tests.hostile.run import PEAK_MIB
from cometmq.tests.hostile.target import Target

pytestmark = pytest.mark.skipif(not NATIVE_DOOR, reason="the native door is not installed")
#: Enough for several times the limit where there is none.
ROUNDS = 20
FLOODS: tuple[Run, ...] = (
    floods.unfinished_calls_of_many_connections,
    floods.bombs_of_indexed_headers,
    floods.header_blocks_without_an_end,
    floods.small_answers_that_are_not_read,
    floods.connections_without_an_end,
    remoting.unfinished_remoting_frames,
    sizes.large_registration_at_the_nameserver,
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Provide one broker with its nameserver and its replication port."""
    made = Target(tmp_path_factory.mktemp("memory") / "data", "native")
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.__name__)
async def test_strangers_hold_little_memory(
    target: Target, flood: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floods, "ROUNDS", ROUNDS)
    target.figures()
    target.memory.reset_peak()
    idle_mib = target.memory.peak_mib()
    one = Attacker(target)
    try:
        await flood(one)
    finally:
        await one.close()
    assert target.memory.peak_mib() - idle_mib <= PEAK_MIB
    figures = target.figures()
    wait_until("the neighbour goes on", lambda: target.figures().cycles)
    assert not figures.failures
