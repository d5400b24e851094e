"""The kill -9 drill in the suite: 20 kills of the master under load lose nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.tests.drills import kill9

ROUNDS, ACKS = 20, 1000


@pytest.mark.timeout(900)
def test_twenty_kills_lose_nothing(tmp_path: Path) -> None:
    result = kill9.run(tmp_path, kill9.Plan(ROUNDS, ACKS, say=print))
    print(result)
    assert result.broken() == []
    assert result.rounds == ROUNDS
    assert min(result.acks_after_kill) >= ACKS
    assert result.log.acknowledged >= ROUNDS * ACKS


@pytest.mark.timeout(600)
def test_kills_with_synchronous_flush_lose_nothing(tmp_path: Path) -> None:
    options = ("--replication", "sync", "--flush", "sync")
    result = kill9.run(tmp_path, kill9.Plan(3, 200, options, print))
    print(result)
    assert result.broken() == []
    assert result.rounds == 3
