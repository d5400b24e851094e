"""The page of high availability: curves, epochs, and changes through the Admin service."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.console.forecast import oldest
from cometmq.console.history import ReplicaHistory
from cometmq.console.pages.high_availability import change_of
from cometmq.operations.errors import CliError
from cometmq.proto import v1
from cometmq.tests.console.browser import SIZES, chromium, opened, press, shown
from cometmq.tests.console.served import serve, told
from cometmq.tests.harness.cluster import Cluster, wait_until

HOUR_MS = 3_600_000


def member(broker_id: int, log_end: int, confirm: int = 0) -> v1.MemberStatus:
    """Return a replica that is in sync."""
    found = v1.MemberStatus(log_end=log_end, confirm=confirm, in_sync=True, epoch=3)
    found.replica.broker_id = broker_id
    return found


def test_the_curves_have_a_gap_where_a_group_or_a_replica_is_unknown() -> None:
    history = ReplicaHistory()
    history.add(1_000, [member(0, 90, 80)])
    history.add(2_000, None)
    history.add(3_000, [member(0, 99, 95), member(1, 96)])
    assert history.broker_ids == [0, 1]
    assert history.columns() == [
        [1.0, 2.0, 3.0],
        [80, None, 95],
        [1, None, 2],
        [3, None, 3],
        [90, None, 99],
        [None, None, 96],
    ]
    assert history.last() == [3.0, 95, 2, 3, 99, 96]


@pytest.mark.parametrize(
    ("what", "given"),
    [
        ("switchover", {"to": "x"}),
        ("policy", {}),
        ("policy", {"replication": "both"}),
        ("policy", {"min_in_sync": "17"}),
        ("drain", {"drain": "perhaps"}),
        ("replay", {"broker": "-2"}),
        ("reseed", {}),
    ],
)
def test_a_change_that_is_not_complete_is_refused(what: str, given: dict[str, str]) -> None:
    with pytest.raises(CliError):
        change_of(what, given, "g")


def test_the_oldest_segment_expires_has_expired_or_is_the_only_one() -> None:
    store = v1.DescribeStoreResponse(reserved_ms=10 * HOUR_MS)
    store.segments.add(end=10, modified_ms=HOUR_MS, explanation="it waits for its hour")
    assert "one segment" in oldest(store, HOUR_MS)
    store.segments.add(end=20, modified_ms=2 * HOUR_MS)
    assert "expires in 8 h" in oldest(store, 3 * HOUR_MS)
    assert "has expired; it waits" in oldest(store, 12 * HOUR_MS)
    store.segments[0].modified_ms = 0
    assert "unknown" in oldest(store, 12 * HOUR_MS)


def test_a_group_is_drained_gets_a_policy_and_a_leader_and_shows_curves_and_each_store(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    # The console has the user's rights and no cluster token.
    cluster = new_cluster(controller=True).wait_in_sync()
    with serve(tmp_path, cluster.endpoints, "--allow-changes") as console:
        offered = re.compile(r"Make broker (\d) the leader")  # a busy machine may have moved it
        wait_until("both are in sync", lambda: offered.search(console.get("/ha")))
        shown_first = told(console.get("/ha"))
        assert "each answer of the controller renews it" in shown_first
        assert "No replica has cut and archived a part of its log." in shown_first
        assert "There is nothing to replay." in told(console.get("/ha/broker-a/replay"))

        with chromium() as browser, opened(browser, SIZES[0], "light") as (tab, errors):

            def change(link: str, plan: str, button: str) -> None:
                tab.goto(f"{console.url}/ha")
                press(tab, link)
                shown(tab, plan)
                press(tab, button)
                shown(tab, "The change is done.")

            tab.goto(f"{console.url}/ha")
            press(tab, "Drain…")
            shown(tab, "no other group")
            assert "Accept messages again" not in console.get("/ha"), "a plan changes nothing"
            change("Drain…", "no other group", "Drain")
            change("Accept messages again…", "accept messages again", "Accept messages")
            tab.goto(f"{console.url}/ha")
            tab.select_option("[name=replication]", "async")
            press(tab, "Show the plan…")
            shown(tab, "it would be asynchronous")
            press(tab, "Change the policy")
            shown(tab, "The change is done.")
            wait_until("it is the policy", lambda: "Policy async" in told(console.get("/ha")))
            found = wait_until("a follower is offered", lambda: offered.search(console.get("/ha")))
            change(f"{found[0]}…", f"Would elect broker {found[1]}", "Switch over")
            wait_until("it leads", lambda: f"broker {found[1]}, epoch" in console.get("/ha"))
            assert errors == []

        for broker_id, data in ((0, "master"), (1, "slave")):
            store = told(console.get(f"/store?broker=broker-a&replica={broker_id}"))
            assert f"/{data}/store" in store
        assert console.ask("GET", "/store?replica=7").status == 404
        wait_until("the forecast is known", lambda: "one segment" in told(console.get("/")))
        with console.stream("/ha/live") as stream:
            assert stream.readline() == b"event: replicas\n"
            first = stream.readline().decode()
            assert '"brokers": [0, 1]' in first
            assert '"all": [[' in first
