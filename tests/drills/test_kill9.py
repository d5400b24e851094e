"""The kill -9 drill: kills of the master under load lose nothing. Five in every run, twenty in the
slow lane."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.tests.drills import kill9

ACKS = 1000


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_of_the_master_lose_nothing(rounds: int, tmp_path: Path) -> None:
    result = kill9.run(tmp_path, kill9.Plan(rounds, ACKS, say=print))
    print(result)
    assert result.broken() == []
    assert result.rounds == rounds
    assert min(result.acks_after_kill) >= ACKS
    assert result.log.acknowledged >= rounds * ACKS


@pytest.mark.timeout(600)
def test_kills_with_synchronous_flush_lose_nothing(tmp_path: Path) -> None:
    options = ("--replication", "sync", "--flush", "sync")
    result = kill9.run(tmp_path, kill9.Plan(3, 200, options, print))
    print(result)
    assert result.broken() == []
    assert result.rounds == 3
