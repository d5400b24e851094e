"""What an operator does most, from the overview, in as few actions as the pages promise."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

import pytest
from playwright.sync_api import Browser, Page

import cometmq
from cometmq.tests.console.browser import SIZES, chromium, opened, shown, violations
from cometmq.tests.console.consuming import dead_letters, receive
from cometmq.tests.console.served import Served, serve
from cometmq.tests.harness.cluster import Cluster, wait_until


class Actions:
    """Presses links and buttons, and fills fields, of a page; counts them."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.count = 0

    def find(self, text: str) -> None:
        """Search from anywhere: `/`, the text, Enter."""
        self._goes(lambda: self._typed(text))

    def _typed(self, text: str) -> None:
        self.page.keyboard.press("/")
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")

    def press(self, selector: str) -> None:
        """Press what a selector finds first in the content."""
        self._goes(self.page.locator("main").locator(selector).first.click)

    def fill(self, selector: str, text: str) -> None:
        """Fill a field."""
        self.count += 1
        self.page.fill(selector, text)

    def _goes(self, act: Callable[[], None]) -> None:
        self.count += 1
        with self.page.expect_navigation():
            act()


@pytest.fixture(scope="module")
def served(shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(
        tmp_path_factory.mktemp("flows"), shared_cluster.endpoints, "--allow-changes"
    ) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def actions(served: Served, browser: Browser) -> Iterator[Actions]:
    """The overview in a browser; at the end the page must have no errors."""
    with opened(browser, SIZES[0], "light") as (page, errors):
        page.goto(f"{served.url}/")
        page.wait_for_selector("ul.alarms")
        yield Actions(page)
        assert violations(page) == []
        assert errors == []


def produce(cluster: Cluster, topic: str, count: int) -> None:
    with cometmq.sync.Producer(cluster.endpoints, topics=[topic]) as producer:
        for number in range(1, count + 1):
            producer.send(topic, f"the body of {number}".encode(), keys=[f"flow-order_{number}"])


def test_order_17_is_found_and_sent_again_in_three_actions(
    actions: Actions, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("flow-orders", queues=2)
    produce(shared_cluster, "flow-orders", 170)
    actions.find("flow-order 17")  # other files of the cluster have numbers, too
    assert actions.page.locator("td.preview").all_inner_texts() == ["the body of 17"]
    actions.press("a:text-is('Resend…')")
    actions.press("form[action^='/message/copy'] button[type=submit]")
    shown(actions.page, "Sent and stored")
    assert actions.count == 3


def test_the_page_of_a_group_says_why_it_lags_after_one_search(
    actions: Actions, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("flow-lagging", queues=1)
    shared_cluster.create_group("flow-laggards")
    produce(shared_cluster, "flow-lagging", 9)
    receive(shared_cluster, "flow-lagging", "flow-laggards", 4)  # and ends
    actions.find("flow-laggards")
    why = actions.page.inner_text("#why")
    assert "has no consumer: 9 messages wait." in why
    assert "The oldest message waits for" in why
    assert actions.count <= 2


def test_a_group_is_set_to_a_local_time_in_five_actions(
    actions: Actions, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("flow-resetting", queues=1)
    shared_cluster.create_group("flow-resetters")
    produce(shared_cluster, "flow-resetting", 3)
    receive(shared_cluster, "flow-resetting", "flow-resetters", 1)
    actions.find("flow-resetters")
    actions.press("a:text-is('Reset offsets…')")
    local = datetime.now() - timedelta(hours=1)
    actions.fill("input[name=time]", local.strftime("%Y-%m-%dT%H:%M:%S"))
    actions.press("button:text-is('Show the plan')")
    actions.press("button:text-is('Set the offsets')")
    shown(actions.page, "The offsets are set.")
    assert actions.count == 5


def test_a_topic_shows_who_consumes_it_after_one_search(
    actions: Actions, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("flow-consumed", queues=1)
    shared_cluster.create_group("flow-consumers")
    produce(shared_cluster, "flow-consumed", 2)
    receive(shared_cluster, "flow-consumed", "flow-consumers", 2)
    actions.find("flow-consumed")
    row = actions.page.locator("section:has(h2:text-is('Consumers')) tbody tr").inner_text()
    assert re.split(r"\s+", row.strip())[:3] == ["flow-consumers", "2", "2"]
    assert actions.count <= 2


def test_all_dead_letters_are_sent_again_and_seen_to_work_in_four_actions(
    actions: Actions, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("flow-failed", queues=1)
    shared_cluster.create_group("flow-failers")
    produce(shared_cluster, "flow-failed", 200)
    dead_letters(shared_cluster, "flow-failed", "flow-failers", 200)
    alarm = "Group flow-failers gave up 200 messages"
    actions.page.locator("ul.alarms a", has_text=alarm).wait_for()
    actions.press(f"ul.alarms a:has-text('{alarm}')")
    shown(actions.page, "32 of 200 dead letters")
    actions.press("a:text-is('Redrive all…')")
    actions.press("button:text-is('Send all again')")
    shown(actions.page, "200 dead letters sent again.")
    with cometmq.sync.SimpleConsumer(
        shared_cluster.endpoints, group="flow-failers", topics="flow-failed"
    ) as consumer:
        left = 200

        def consumed() -> bool:
            nonlocal left
            for message in consumer.receive(32, invisible_for=60, wait=1):
                consumer.ack(message)
                left -= 1
            return left <= 0

        wait_until("the copies are consumed", consumed)
    actions.press("a:text-is('What became of them')")
    fates = actions.page.locator("td[data-label='Sent again']").all_inner_texts()
    assert len(fates) == 32
    assert all("consumed by flow-failers" in fate for fate in fates)
    assert actions.count == 4


def test_the_overview_alone_tells_what_is_wrong_and_what_to_do(
    actions: Actions, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("flow-abandoned", queues=1)
    shared_cluster.create_group("flow-gone")
    produce(shared_cluster, "flow-abandoned", 5)
    receive(shared_cluster, "flow-abandoned", "flow-gone", 1)
    alarm = actions.page.locator(
        "ul.alarms li", has_text="Group flow-gone has no consumer: 5 messages wait."
    )
    alarm.wait_for()
    assert "Start its application, or delete the group." in alarm.inner_text()
    assert actions.count == 0
