"""A console of several clusters: each has its own pages, and one that is gone disturbs no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.cli.root import cli
from cometmq.console.targets import TARGETS_MAX
from cometmq.operations.errors import CliError
from cometmq.tests.console.browser import SIZES, chromium, opened, violations
from cometmq.tests.console.served import Served, serve, told
from cometmq.tests.harness.cluster import Cluster, wait_until

GONE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def contexts(
    shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[pytest.MonkeyPatch]:
    """Name the shared cluster `here`, and one without a node `gone`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        shared_cluster.create_topic("of-here", queues=1)
        for name, endpoint in (("here", shared_cluster.endpoints), ("gone", GONE)):
            shared_cluster.run("context", "add", name, "--endpoint", endpoint)
        yield patch


@pytest.fixture(scope="module")
def both(
    shared_cluster: Cluster,
    contexts: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    """Serve a console of both."""
    options = ("--also-context", "here", "--also-context", "gone", "--allow-changes")
    with serve(tmp_path_factory.mktemp("both"), shared_cluster.endpoints, *options) as found:
        found.base = "/in/here"
        yield found


def test_every_url_names_its_cluster(both: Served, shared_cluster: Cluster) -> None:
    first = f"/in/{shared_cluster.endpoints.split(';')[0]}"
    moved = both.ask("GET", "/topics?q=of-here")
    assert (moved.status, moved.headers["location"]) == (307, f"{first}/topics?q=of-here")
    page = both.get("/in/here/topics?q=of-here")
    assert 'href="/in/here/topics/of-here"' in page
    assert 'href="/in/gone/topics"' in page  # the same section of the other one
    assert "topics · here · CometMQ" in told(page).replace("Topics", "topics")
    assert both.ask("GET", "/in/nowhere/topics").status == 404


def test_a_change_leads_to_a_page_of_its_cluster(both: Served) -> None:
    fields = {"name": "made-here", "kind": "normal", "queues": "1", "permission": "rw"}
    found = both.act("/in/here/topics/new", fields)
    assert found.headers["location"] == "/in/here/topics/made-here?done=created"
    assert both.ask("GET", "/in/here/topics/made-here").status == 200
    assert both.act("/in/gone/topics/new", fields).status == 502


def test_a_cluster_that_is_gone_is_shown_and_disturbs_no_other(both: Served) -> None:
    wait_until("the loss is shown", lambda: "Cannot connect" in both.get("/in/gone/state"))
    assert "Cannot connect" in both.ask("GET", "/in/gone/topics").text
    wait_until("the other one is read", lambda: "accepts writes" in both.get("/in/here/"))
    assert "Cannot connect" not in both.get("/in/here/state")


def test_a_state_that_a_page_shows_already_is_not_sent_again(both: Served) -> None:
    text = wait_until("it is shown", lambda: _with(both.get("/in/gone/state"), "Cannot connect"))
    seen = text.partition("seen=")[2][:16]
    assert both.ask("GET", f"/in/gone/state?seen={seen}").status == 204


def _with(text: str, part: str) -> str:
    return text if part in text else ""


def test_the_user_switches_between_clusters_by_keyboard(both: Served) -> None:
    with chromium() as one:
        for size, colours in zip(SIZES, ("light", "dark"), strict=True):
            with opened(one, size, colours) as (page, errors):
                page.goto(f"{both.url}/in/here/groups")
                page.focus(".contexts summary")
                page.keyboard.press("Enter")
                assert violations(page) == []
                page.focus(".contexts a[href='/in/gone/groups']")
                page.keyboard.press("Enter")
                page.wait_for_selector("#state:has-text('Cannot connect')")
                assert page.url == f"{both.url}/in/gone/groups"
                assert page.inner_text(".contexts strong") == "gone"
                assert violations(page) == []
                assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
                assert all("502" in error for error in errors), errors


def test_a_console_of_unknown_or_too_many_contexts_is_refused(
    contexts: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start = ("console", "--endpoint", GONE, "--port", "0")
    with pytest.raises(CliError, match="no context 'nowhere'"):
        cli.main([*start, "--also-context", "nowhere"], standalone_mode=False)
    names = [part for n in range(TARGETS_MAX) for part in ("--also-context", f"c{n}")]
    with pytest.raises(CliError, match="at most"):
        cli.main([*start, *names], standalone_mode=False)
