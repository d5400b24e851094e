"""Every act of every page in headless Chromium, on one cluster: forms, plans and their results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

import cometmq
from cometmq.operations.connection import Connection
from cometmq.operations.links import Links
from cometmq.proto import paths, v1, v2
from cometmq.proto.native import is_available
from cometmq.tests.broker.transacting import half
from cometmq.tests.console.browser import SIZES, chromium, opened, press, shown
from cometmq.tests.console.consuming import dead_letters, receive
from cometmq.tests.console.served import Served, told
from cometmq.tests.harness.cluster import Cluster, wait_until
from cometmq.tests.interop.programs import java
from cometmq.tests.interop.test_other_clients import RUN_S, start

#: By type of topic, the field that a test message needs besides its body.
TYPES = {
    "normal": {},
    "fifo": {"message_group": "g"},
    "delay": {"delay_s": "3600"},
    "priority": {"priority": "3"},
    "lite": {"lite_topic": "one"},
    "mixed": {"message_group": "g"},
}


@pytest.fixture(scope="module")
def tab(console: Served) -> Iterator[Page]:
    """Open one page for all tests of this file; it must have had no error at the end."""
    with chromium() as browser, opened(browser, SIZES[0], "light") as (page, errors):
        yield page
        assert errors == []


def bodies(console: Served, topic: str) -> list[str]:
    """Return the bodies of a topic in the order of their storing."""
    found = json.loads(console.get(f"/messages/export?topic={topic}&format=json"))
    return [one["body"] for one in found]


def group_of(cluster: Cluster, name: str) -> v1.DescribeGroupResponse:
    """Return a group as the Admin service describes it."""
    with Connection(cluster.endpoints, Links()) as connection:
        request = v1.DescribeGroupRequest(name=name)
        return connection.call(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse)


def topic_names(cluster: Cluster) -> set[str]:
    """Return the topics of a cluster, as the command line lists them."""
    shown = cluster.run("topic", "list", "--endpoint", cluster.endpoints, "-o", "json")
    return {row["topic"] for row in json.loads(shown.stdout)}


def test_a_topic_of_every_type_is_created_and_gets_a_test_message(
    console: Served, tab: Page, shared_cluster: Cluster
) -> None:
    for kind, fields in TYPES.items():
        tab.goto(f"{console.url}/topics")
        press(tab, "New topic")
        tab.fill("[name=name]", f"acted-{kind}")
        tab.select_option("[name=kind]", kind)
        tab.fill("[name=queues]", "1")
        press(tab, "Create the topic")
        tab.fill("[name=body]", f"body of {kind}")
        for name, value in fields.items():
            tab.fill(f"form[action$='/send'] [name={name}]", value)
        press(tab, "Send the message")
        shown(tab, "Sent and stored")
    tab.goto(f"{console.url}/topics/new")
    tab.fill("[name=name]", "acted-transaction")
    tab.select_option("[name=kind]", "transaction")
    press(tab, "Create the topic")
    shown(tab, "They need a producer that answers checks")
    assert {f"acted-{kind}" for kind in TYPES} <= topic_names(shared_cluster)
    for kind in TYPES.keys() - {"delay", "lite"}:
        assert bodies(console, f"acted-{kind}") == [f"body of {kind}"]


def test_a_topic_is_altered_and_deleted_after_its_plan(
    console: Served, tab: Page, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("reshaped", queues=1)
    tab.goto(f"{console.url}/topics/reshaped")
    tab.click("summary:text('Change queues')")
    tab.fill("[name=read_queues]", "3")
    tab.fill("[name=write_queues]", "3")
    press(tab, "Show the plan")
    shown(tab, "What happens")
    press(tab, tab.inner_text("form[method=post] button[type=submit]"))
    shown(tab, "3 for readers, 3 for writers")
    press(tab, "Delete…")
    tab.fill("[name=typed]", "reshaped")
    press(tab, tab.inner_text("button.danger"))
    assert "reshaped" not in topic_names(shared_cluster)


def test_a_group_is_created_paused_resumed_and_deleted(
    console: Served, tab: Page, shared_cluster: Cluster
) -> None:
    tab.goto(f"{console.url}/groups/new")
    tab.fill("[name=name]", "acted-group")
    tab.fill("[name=max_attempts]", "5")
    press(tab, "Create the group")
    assert group_of(shared_cluster, "acted-group").group.max_attempts == 5
    for first, then, enabled in (("Pause…", "Pause", False), ("Resume…", "Resume", True)):
        press(tab, first)
        press(tab, f"{then} consumption")
        shown(tab, "Lag")
        assert group_of(shared_cluster, "acted-group").group.consume_enable is enabled
    press(tab, "Delete…")
    tab.fill("[name=typed]", "acted-group")
    press(tab, tab.inner_text("button.danger"))
    assert console.ask("GET", "/groups/acted-group").status == 404


def test_offsets_are_reset_by_edge_time_offset_and_shift_as_previewed(
    console: Served, tab: Page, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("rewound", queues=1)
    shared_cluster.create_group("rewinders")
    with cometmq.sync.Producer(shared_cluster.endpoints, topics=["rewound"]) as producer:
        for n in range(4):
            producer.send("rewound", str(n).encode())
    receive(shared_cluster, "rewound", "rewinders", 1)  # the group gets offsets

    def reset(to: str, **fields: str) -> int:
        tab.goto(f"{console.url}/groups/rewinders/reset")
        tab.check(f"[name=to][value={to}]")
        for name, value in fields.items():
            tab.fill(f"[name={name}]", value)
        press(tab, "Show the plan")
        shown(tab, "messages are consumed again")
        press(tab, "Set the offsets")
        shown(tab, "Connected clients")
        (queue,) = [one for one in group_of(shared_cluster, "rewinders").queues if not one.retry]
        return int(queue.consumer_offset)

    assert reset("latest") == 4
    assert reset("earliest") == 0
    assert reset("time", time="2999-01-01T00:00:00") == 4
    assert reset("offset", offset="1") == 1
    assert reset("shift", shift="2") == 3
    assert reset("shift", shift="-3") == 0


def test_a_copy_of_a_message_is_edited_and_sent(
    console: Served, tab: Page, shared_cluster: Cluster
) -> None:
    for name in ("copied-from", "copied-to"):
        shared_cluster.create_topic(name, queues=1)
    with cometmq.sync.Producer(shared_cluster.endpoints, topics=["copied-from"]) as producer:
        producer.send("copied-from", b"first", keys=["k-1"])
    tab.goto(f"{console.url}/message/copy?topic=copied-from&queue=0&offset=0")
    tab.fill("[name=to_topic]", "copied-to")
    tab.fill("[name=body]", "second")
    press(tab, "Send the copy")
    shown(tab, "Sent and stored in topic copied-to")
    assert bodies(console, "copied-to") == ["second"]
    assert bodies(console, "copied-from") == ["first"]


def test_dead_letters_are_sent_again_one_several_and_by_a_filter(
    console: Served, tab: Page, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("perished", queues=1)
    shared_cluster.create_group("mourners")
    with cometmq.sync.Producer(shared_cluster.endpoints, topics=["perished"]) as producer:
        for n in range(4):
            producer.send("perished", f"case-{n}".encode())
    dead_letters(shared_cluster, "perished", "mourners", 4)
    page = f"{console.url}/dead-letters/mourners"
    for chosen in (["case-1"], ["case-0", "case-2"]):
        tab.goto(page)
        for body in chosen:
            tab.check(f"tr:has-text('{body}') input[name=m]")
        press(tab, "Redrive the selected…")
        press(tab, tab.inner_text("form[method=post] button[type=submit]"))
        shown(tab, f"{len(chosen)} dead letter{'s' if len(chosen) > 1 else ''} sent again.")
    tab.goto(page)
    tab.fill("[name=contains]", "case-3")
    press(tab, "Search")
    press(tab, "Redrive all that match…")
    tab.click("form[method=post] button[type=submit]")
    tab.wait_for_selector("h1:text('Result')")
    shown(tab, "1 dead letter sent again.")
    again = sorted(bodies(console, "perished")[4:])
    assert again == [f"case-{n}" for n in range(4)], "each exactly once"


def test_a_delayed_message_is_recalled_and_transactions_are_decided(
    console: Served, tab: Page, shared_cluster: Cluster
) -> None:
    for name, kind in (("postponed", "delay"), ("contracts", "transaction")):
        fields = {"name": name, "kind": kind, "queues": "1", "permission": "rw"}
        assert console.act("/topics/new", fields).status == 303
    late = {"body": "late", "keys": "late-1", "delay_s": "3600"}
    assert console.act("/topics/postponed/send", late).status == 200
    with Connection(shared_cluster.endpoints, Links()) as connection:
        for ident in ("DEAL0", "DEAL1"):
            sent = v2.SendMessageRequest(messages=[half("contracts", ident, immunity_s=3_600)])
            connection.call(paths.SEND_MESSAGE, sent, v2.SendMessageResponse)
    waiting = "/timers?topic=postponed"
    wait_until("it waits", lambda: "late-1" in console.get(waiting))
    wait_until("both are open", lambda: "DEAL1" in console.get("/timers"))
    tab.goto(console.url + waiting)
    press(tab, "Recall…")
    shown(tab, "A recall cannot be undone")
    press(tab, "Recall the message")
    wait_until("it does not wait", lambda: "late-1" not in console.get(waiting))
    for ident, verb in (("DEAL0", "Commit"), ("DEAL1", "Rollback")):
        tab.goto(f"{console.url}/timers")
        with tab.expect_navigation():
            tab.click(f"tr:has-text('{ident}') a:has-text('{verb[:4]}')")
        shown(tab, "The outcome is final")
        press(tab, tab.inner_text("form[method=post] button[type=submit]"))
        wait_until("it is decided", lambda ident=ident: ident not in console.get("/timers"))
    assert bodies(console, "contracts") == ["half"], "the committed one alone"


def test_a_user_gets_policies_and_loses_them(console: Served, tab: Page) -> None:
    tab.goto(f"{console.url}/users")
    tab.fill("form[method=post] [name=name]", "acted-user")
    press(tab, "Create the user")
    first = tab.inner_text("#secret")
    page = f"{console.url}/users/acted-user"
    tab.goto(page)
    tab.click("summary")
    tab.fill("form[method=post] [name=resource]", "Topic:ord*")
    tab.check("[name=actions][value=Pub]")
    press(tab, "Add the policy")
    tab.select_option("form[action$='#check'] [name=action]", "Pub")
    tab.fill("form[action$='#check'] [name=resource]", "Topic:orders")
    press(tab, "Check")
    shown(tab, "Allowed")
    press(tab, "Remove…")
    press(tab, tab.inner_text("form[method=post] button[type=submit]"))
    shown(tab, "every action is denied")
    for verb, state in (("Disable…", "disabled"), ("Enable…", "enabled")):
        tab.goto(page)
        press(tab, verb)
        press(tab, tab.inner_text("form[method=post] button[type=submit]"))
        shown(tab, state)
    tab.goto(page)
    press(tab, "Rotate the key…")
    press(tab, tab.inner_text("form[method=post] button[type=submit]"))
    assert tab.inner_text("#secret") != first
    tab.goto(page)
    press(tab, "Delete…")
    tab.fill("[name=typed]", "acted-user")
    press(tab, tab.inner_text("button.danger"))
    assert console.ask("GET", "/users/acted-user").status == 404


@pytest.mark.timeout(900)  # the first run fetches and builds the program
@pytest.mark.skipif(not is_available(), reason="Java needs TLS, which the native door has")
def test_the_stack_of_a_java_consumer_is_shown(
    console: Served, tab: Page, shared_cluster: Cluster, tmp_path: Path
) -> None:
    consumer = start(
        command=java(),
        cluster=shared_cluster,
        node="master",
        mark="stacked",
        home=tmp_path / "home",
        what="consume",
    )
    try:
        page = "/clients?q=stacked-group"
        wait_until(
            "it is listed or has ended",
            lambda: "grpc JAVA" in told(console.get(page)) or consumer.poll() is not None,
            RUN_S,
        )
        assert consumer.poll() is None, consumer.communicate()
        tab.goto(console.url + page)
        tab.click("td.name a")
        tab.click("a:text('Ask for its stack')")
        stack = tab.inner_text("#stack pre")
        assert "Client.receive(Client.java:" in stack
        assert "org.apache.rocketmq.client.java" in stack
    finally:
        consumer.kill()
        consumer.communicate()


def test_every_time_of_a_page_is_in_the_zone_of_the_browser(
    console: Served, tab: Page, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("zoned", queues=1)
    shared_cluster.create_group("zoners")
    with cometmq.sync.Producer(shared_cluster.endpoints, topics=["zoned"]) as producer:
        producer.send("zoned", b"1")
    receive(shared_cluster, "zoned", "zoners", 1)
    assert tab.context.browser is not None
    context = tab.context.browser.new_context(timezone_id="Asia/Kolkata")  # UTC+05:30
    page = context.new_page()
    try:
        form = f"{console.url}/groups/zoners/reset?topic=zoned&time=2026-11-29T04:00:00.000Z"
        page.goto(f"{form}&to=time")
        shown(page, "stored at 2026-11-29 09:30:00.000 (local) or later")
        page.goto(f"{form}&to=shift&shift=1&skip_retries=1")
        shown(page, "choose another position")
        assert page.input_value("[name=time]") == "2026-11-29T09:30"
        shown(page, "a time (local)")
        for path in ("/", "/topics/zoned", "/message?topic=zoned&queue=0&offset=0"):
            page.goto(console.url + path)
            shown(page, "(local)")
            assert "UTC" not in page.inner_text("main"), path
    finally:
        context.close()
