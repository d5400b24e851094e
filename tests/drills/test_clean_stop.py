"""A clean stop (SIGTERM) under load costs the group nothing: no gap, no error, a clean store."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.drills.run import perform
from cometmq.drills.settings import Setup
from cometmq.drills.stage import Stage
from cometmq.drills.verdict import Verdict
from cometmq.tests.drills.judging import settle

#: The goal on a quiet machine is 300 ms; a held seat or a lease cost 5 s.
GAP_MAX_MS = 1_500


def stop_and_return(s: Stage, name: str) -> None:
    """Stop one broker under load and start it again."""
    s.plant.stop(name)
    s.more_acks(100)
    left = (s.plant.store(name) / "abort").exists()
    s.check(f"{name} leaves no abort file", not left)
    s.plant.start_node(name)
    s.plant.wait_in_sync(len(s.plant.brokers))
    s.check(
        f"{name} starts without a repair", "store.recovered clean=False" not in s.plant.log(name)
    )
    s.more_acks(100)


def rolling_restart(s: Stage) -> None:
    """Both followers, then the leader."""
    s.load()
    s.more_acks(200)
    for name in (*s.plant.followers(), s.plant.leader()):
        stop_and_return(s, name)
    s.finish()
    s.check(f"no gap of {GAP_MAX_MS} ms", s.verdict.max_gap_ms < GAP_MAX_MS, s.verdict.max_gap_ms)
    s.check("the official client saw no error", s.verdict.official_errors == 0, s.verdict.reasons)
    s.check("no replica truncated its log", not s.verdict.archived, s.verdict.archived)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
@pytest.mark.real_start
def test_a_rolling_restart_costs_nothing(mode: str, tmp_path: Path) -> None:
    result = Verdict("clean stop", (rolling_restart.__doc__ or "").strip(), mode)
    setup = Setup(brokers=3, nameservers=3, default_timers=True).with_mode(mode)
    settle(perform(tmp_path, result, setup, rolling_restart), tmp_path)
