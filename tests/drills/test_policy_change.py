"""`ha policy` under load: each change takes effect at once, without an error for clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.drills.actions.moves import ha
from cometmq.drills.run import perform
from cometmq.drills.settings import Setup
from cometmq.drills.stage import Stage
from cometmq.drills.verdict import Verdict
from cometmq.tests.drills.judging import settle


def changes(s: Stage) -> None:
    """Asynchronous, synchronous with 2, then with 1; the leader dies; nothing is lost."""
    s.load()
    s.more_acks(200)
    leader = s.plant.wait_leader()
    follower = s.plant.followers()[0]
    answer = ha(s, "policy", "--sync", "--min-in-sync", "2")
    s.check("a new epoch of the same leader", s.plant.leader() == leader, answer)
    s.more_acks(300)
    s.plant.cut(leader, follower)
    s.plant.wait("sends are answered no more", lambda: s.acks_within(1.0) == 0)
    s.plant.heal()
    s.plant.wait_in_sync(2)
    s.more_acks(300)
    ha(s, "policy", "--min-in-sync", "1")
    s.more_acks(100)
    s.plant.wait_in_sync(2)
    s.plant.kill(leader)
    s.plant.wait_leader(but=leader)
    s.more_acks(300)
    s.settle()
    ha(s, "policy", "--async")
    s.more_acks(200)
    policy = ha(s, "status")[0]["policy"]
    s.check("shown to operators", policy.startswith("async"), policy)
    s.finish()


def no_error(s: Stage) -> None:
    """Five changes under load: a pause of writes, and no error."""
    s.load()
    s.more_acks(200)
    for mode in ("--sync", "--async", "--sync", "--async", "--sync"):
        ha(s, "policy", mode)
        s.more_acks(100)
        s.plant.wait_in_sync(2)
    s.finish()
    s.check("the official client saw none", s.verdict.official_errors == 0, s.verdict.reasons)
    s.check("no replica truncated its log", not s.verdict.archived, s.verdict.archived)


#: A starved process must not lose its lease: an unplanned election truncates an asynchronous log.
PATIENT = {"controllerLeaseMs": "6000", "haInSyncLagMs": "12000"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("body", [changes, no_error], ids=lambda body: body.__name__)
def test_a_policy_changes_under_load(body: object, tmp_path: Path) -> None:
    assert callable(body)
    result = Verdict("policy", (body.__doc__ or "").strip(), "sync")
    timers = {"controllerLeaseMs": PATIENT["controllerLeaseMs"]}
    setup = Setup(conf=PATIENT, namesrv_conf=timers).with_mode("async")
    settle(perform(tmp_path, result, setup, body), tmp_path)
