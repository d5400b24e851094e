"""The console in headless Chromium: no errors, no sideways scrolling, usable by keyboard alone."""

from __future__ import annotations

from pathlib import Path

from cometmq.tests.console.browser import SIZES, chromium, opened
from cometmq.tests.console.served import serve
from cometmq.tests.harness.cluster import Cluster

PAGES = (
    *("/topics", "/topics/new", "/topics/seen", "/topics/seen/delete"),
    *("/groups", "/groups/new", "/groups/lookers", "/groups/lookers/delete"),
    *("/messages", "/messages?topic=seen", "/message?topic=seen&queue=0&offset=0"),
    *(
        "/message/copy?topic=seen&queue=0&offset=0",
        "/dead-letters",
        "/ha",
        "/clients",
        "/configuration",
    ),
)


def test_pages_have_no_errors_and_fit_every_width(shared_cluster: Cluster, tmp_path: Path) -> None:
    shared_cluster.create_topic("seen", queues=1)
    shared_cluster.create_group("lookers")
    hostile = "<img src=x onerror=alert(1)>" * 20
    shared_cluster.run("message", "send", "seen", hostile, "--endpoint", shared_cluster.endpoints)
    with serve(tmp_path, shared_cluster.endpoints, "--allow-changes") as console, chromium() as one:
        for size, colours in zip(SIZES, ("light", "dark"), strict=True):
            with opened(one, size, colours) as (page, errors):
                page.goto(f"{console.url}/")
                page.wait_for_selector("svg.picture g.leader")
                page.wait_for_selector("#chart-rates canvas")  # the stream has brought the points
                for path in PAGES:
                    page.goto(console.url + path)
                    wide = "document.documentElement.scrollWidth > innerWidth"
                    assert not page.evaluate(wide), (path, size)
                assert errors == []


def test_the_keyboard_alone_sends_a_message(shared_cluster: Cluster, tmp_path: Path) -> None:
    shared_cluster.create_topic("by-keyboard")
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

        page.goto(f"{console.url}/topics")
        go_to("input[type=search]")
        page.keyboard.type("by-key")
        page.wait_for_url("**q=by-key*")  # the list is searched while typing
        go_to("a[href='/topics/by-keyboard']")
        page.keyboard.press("Enter")
        page.wait_for_selector("h1:text('by-keyboard')")
        go_to("textarea[name=body]")
        page.keyboard.type("hello")
        go_to("form[action$='/send'] button")
        page.keyboard.press("Enter")
        page.wait_for_selector("[role=status]:has-text('Sent and stored')")
        assert errors == []
