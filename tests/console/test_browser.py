"""The console in headless Chromium: errors, widths, accessibility, use by keyboard alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import cometmq
from cometmq.console.pages.dead_letters import REDRIVEN_MAX
from cometmq.tests.console.browser import SIZES, chromium, opened, violations
from cometmq.tests.console.consuming import dead_letters
from cometmq.tests.console.served import serve
from cometmq.tests.harness.cluster import Cluster

PAGES = (
    *("/topics", "/topics/new", "/topics/seen", "/topics/seen/delete"),
    *("/groups", "/groups/new", "/groups/lookers", "/groups/lookers/delete"),
    *("/messages", "/messages?topic=seen", "/message?topic=seen&queue=0&offset=0"),
    *(
        "/message/copy?topic=seen&queue=0&offset=0",
        "/dead-letters",
        "/timers",
        "/timers?window=7+days",
        "/ha",
        "/store",
        "/spark",
        "/clients",
        "/users",
        "/users/seer",
        "/users/seer?action=Pub&resource=Topic:x",
        "/users/seer/delete",
        "/audit",
        "/configuration",
    ),
)


@pytest.mark.timeout(600)  # every page in two widths and two colour schemes
def test_pages_have_no_errors_fit_every_width_and_pass_axe(
    shared_cluster: Cluster, tmp_path: Path
) -> None:
    shared_cluster.create_topic("seen", queues=1)
    shared_cluster.create_group("lookers")
    endpoint = ("--endpoint", shared_cluster.endpoints)
    shared_cluster.run("user", "create", "seer", "--super", *endpoint)
    shared_cluster.run("user", "create", "looker", *endpoint)
    hostile = "<img src=x onerror=alert(1)>" * 20
    shared_cluster.run("message", "send", "seen", hostile, "--endpoint", shared_cluster.endpoints)
    with serve(tmp_path, shared_cluster.endpoints, "--allow-changes") as console, chromium() as one:
        for size, colours in zip(SIZES, ("light", "dark"), strict=True):
            with opened(one, size, colours) as (page, errors):
                page.goto(f"{console.url}/")
                page.wait_for_selector("svg.picture g.leader")
                page.wait_for_selector("#chart-rates canvas")  # the stream has brought the points
                assert violations(page) == []
                for path in PAGES:
                    page.goto(console.url + path)
                    wide = "document.documentElement.scrollWidth > innerWidth"
                    assert not page.evaluate(wide), (path, size)
                    assert violations(page) == [], (path, colours)
                assert errors == []


def test_the_keyboard_alone_finds_the_message_of_an_order_and_resends_it(
    shared_cluster: Cluster, tmp_path: Path
) -> None:
    shared_cluster.create_topic("by-keyboard")
    for order in (16, 17, 18):
        sent = ("by-keyboard", f"body of {order}", "--key", f"order-{order}")
        shared_cluster.run("message", "send", *sent, "--endpoint", shared_cluster.endpoints)
    with (
        serve(tmp_path, shared_cluster.endpoints, "--allow-changes") as console,
        chromium() as one,
        opened(one, SIZES[0], "light") as (page, errors),
    ):

        def go_to(selector: str) -> None:
            for _ in range(80):
                page.keyboard.press("Tab")
                if page.evaluate("s => document.activeElement.matches(s)", selector):
                    return
            raise AssertionError(f"Tab does not reach {selector}")

        page.goto(f"{console.url}/")
        go_to("nav a[href='/messages']")
        page.keyboard.press("Enter")
        page.wait_for_selector("h1:text('Messages')")
        go_to("a[href*='by=key']")
        page.keyboard.press("Enter")
        page.wait_for_selector("input[name=value]")
        go_to("input[name=topic]")
        page.keyboard.type("by-keyboard")
        go_to("input[name=value]")
        page.keyboard.type("order-17")
        page.keyboard.press("Enter")
        page.wait_for_selector("td:text('body of 17')")
        go_to("td a")
        page.keyboard.press("Enter")
        page.wait_for_selector("pre.body:text('body of 17')")
        go_to("a[href^='/message/copy']")
        page.keyboard.press("Enter")
        page.wait_for_selector("h1:text('Send a copy')")
        go_to("form[action='/message/copy'] button")
        page.keyboard.press("Enter")
        page.wait_for_selector("[role=status]:has-text('Sent and stored')")
        assert errors == []


def test_all_dead_letters_are_redriven_part_by_part_with_progress(
    shared_cluster: Cluster, tmp_path: Path
) -> None:
    count = REDRIVEN_MAX + 5
    shared_cluster.create_topic("lost", queues=1)
    shared_cluster.create_group("losers")
    with cometmq.sync.Producer(shared_cluster.endpoints, topics=["lost"]) as producer:
        for n in range(count):
            producer.send("lost", str(n).encode())
    dead_letters(shared_cluster, "lost", "losers", count)
    with (
        serve(tmp_path, shared_cluster.endpoints, "--allow-changes") as console,
        chromium() as one,
        opened(one, SIZES[1], "light") as (page, errors),
    ):
        page.goto(f"{console.url}/dead-letters/losers")
        page.click("a:text('Redrive all…')")
        page.click("button:text('Send all again')")
        page.wait_for_selector("h1:text('Result')")
        assert f"{count} dead letters sent again." in page.inner_text("[role=status]")
        assert violations(page) == []
        assert errors == []
