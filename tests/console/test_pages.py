"""Every page and change of the console against a real cluster, without a browser."""

from __future__ import annotations

import getpass
import json
import re
from html import unescape
from pathlib import Path

import pytest

import cometmq
from cometmq.console.pages.paging import PAGE_ROWS
from cometmq.tests.console.consuming import dead_letters, receive
from cometmq.tests.console.served import Served, serve, told
from cometmq.tests.harness.cluster import Cluster, wait_until

PAGES = (
    "/",
    "/topics",
    "/topics/new",
    "/groups",
    "/groups/new",
    "/messages",
    "/dead-letters",
    "/timers",
    "/ha",
    "/store",
    "/spark",
    "/clients",
    "/users",
    "/audit",
    "/configuration",
)
BODY = '{"note": "<script>alert(1)</script>", "lines": "a\\nb"}'


@pytest.mark.parametrize("path", [*PAGES, "/nothing", "/topics/nothing", "/static/nothing"])
def test_every_answer_allows_files_of_the_console_only(console: Served, path: str) -> None:
    found = console.ask("GET", path)
    policy = found.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    assert found.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script(?![^>]*\bsrc=\"/static/)|<style|\son\w+=", found.text)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", ""])
def test_a_foreign_host_name_is_refused(console: Served, host: str) -> None:
    assert console.ask("GET", "/topics", headers={"Host": host}).status == 421


@pytest.mark.parametrize("host", ["localhost:1", "[::1]:8082", "127.0.0.1"])
def test_names_of_this_machine_are_accepted(console: Served, host: str) -> None:
    assert console.ask("GET", "/topics", headers={"Host": host}).status == 200


def test_an_unknown_page_and_object_are_not_found_in_words(console: Served) -> None:
    for path in ("/nothing", "/topics/no-such-topic"):
        found = console.ask("GET", path)
        assert (found.status, "Not found" in found.text) == (404, True)


def test_the_overview_names_every_replica(console: Served, shared_cluster: Cluster) -> None:
    def names_both() -> bool:
        text = console.get("/")
        return all(shared_cluster.address(name) in text for name in ("master", "slave"))

    wait_until("the overview names both replicas", names_both)


def test_the_overview_streams_its_part_and_points(console: Served) -> None:
    with console.stream() as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        seen: dict[str, str] = {}
        event = ""
        while not {"overview", "curves"} <= seen.keys() or "point" not in seen["curves"]:
            line = stream.readline().decode()
            assert line, "the stream ended"
            if line.startswith("event: "):
                event = line[7:].strip()
            elif line.startswith("data: "):
                seen[event] = line[6:]
    assert len(json.loads(seen["curves"])["point"]) == 4


def test_topics_are_searched_on_the_server_in_pages(
    console: Served, shared_cluster: Cluster
) -> None:
    names = [f"shelf-{n:03d}" for n in range(PAGE_ROWS + 2)]
    for name in names:
        fields = {"name": name, "kind": "normal", "queues": "1", "permission": "rw"}
        assert console.act("/topics/new", fields).headers["location"].endswith("done=created")
    first = console.get("/topics?q=SHELF")
    assert f"{PAGE_ROWS + 2} topics" in told(first)
    assert names[PAGE_ROWS - 1] in first
    assert names[PAGE_ROWS] not in first
    assert names[PAGE_ROWS] in console.get("/topics?q=SHELF&page=2")
    assert "No topic matches" in told(console.get("/topics?q=<b>nothing"))
    assert "<b>nothing" not in console.get("/topics?q=<b>nothing")


def test_a_topic_is_created_filled_changed_and_deleted(console: Served) -> None:
    fields = {"name": "life", "kind": "fifo", "queues": "2", "permission": "rw"}
    assert console.act("/topics/new", fields).status == 303
    refused = console.act("/topics/life/send", {"body": "x"})
    assert "requires --group" in told(refused.text)
    body = {"body": "<i>hello</i>", "message_group": "g", "tag": "t", "keys": "k1 k2"}
    assert "Sent and stored, queue " in told(console.act("/topics/life/send", body).text)
    assert "Messages 1" in told(console.get("/topics/life"))

    wanted = {"read_queues": "4", "write_queues": "4", "permission": "rw"}
    plan = told(console.act("/topics/life/alter", wanted).text)
    assert "read queues 2 4" in plan
    assert "2 for readers" in told(console.get("/topics/life"))
    done = console.act("/topics/life/alter", {**wanted, "confirmed": "yes"})
    assert done.headers["location"] == "/topics/life?done=altered"
    assert "4 for readers" in told(console.get("/topics/life"))

    plan = told(console.get("/topics/life/delete"))
    assert "Messages that are lost: 1 " in plan
    assert console.act("/topics/life/delete", {"typed": "live"}).status == 400
    assert console.act("/topics/life/delete", {"typed": "life"}).status == 303
    assert console.ask("GET", "/topics/life").status == 404


@pytest.mark.parametrize(
    ("path", "fields", "sentence"),
    [
        ("/topics/new", {"name": "", "kind": "normal"}, "Give the topic a name"),
        ("/topics/new", {"name": "a", "kind": "normal"}, "Queues must be a whole number"),
        ("/topics/new", {"name": "a", "queues": "1", "kind": "odd"}, "no type 'odd'"),
        ("/topics/nothing/send", {"body": "x"}, "nothing"),
    ],
)
def test_a_bad_form_is_answered_in_words(
    console: Served, path: str, fields: dict[str, str], sentence: str
) -> None:
    found = console.act(path, fields)
    assert 400 <= found.status < 500
    assert sentence in told(found.text)


def test_a_change_needs_the_token_and_the_own_origin(console: Served) -> None:
    fields = {"name": "foreign", "kind": "normal", "queues": "1", "permission": "rw"}
    foreign = {"Origin": "http://evil.example"}
    assert console.act("/topics/new", fields, foreign).status == 403
    assert console.act("/topics/new", {**fields, "token": "x"}).status == 403
    assert console.ask("POST", "/topics/new", "name=foreign").status == 403
    assert console.ask("GET", "/topics/foreign").status == 404


def test_forms_are_bounded(console: Served) -> None:
    assert console.ask("POST", "/topics/new", "a=" + "x" * (2 << 20)).status == 413
    assert console.ask("POST", "/topics/new", "&".join(["a=1"] * 1_000)).status == 400
    assert console.ask("PUT", "/topics/new").status == 405


def test_a_console_is_read_only_by_default(shared_cluster: Cluster, tmp_path: Path) -> None:
    with serve(tmp_path, shared_cluster.endpoints) as console:
        shared_cluster.create_topic("untouched")
        assert "New topic" not in told(console.get("/topics"))
        assert "Send a test message" not in told(console.get("/topics/untouched"))
        assert "read-only" in told(console.get("/topics/untouched/delete"))
        for path in ("/topics/new", "/topics/untouched/send", "/topics/untouched/delete"):
            found = console.ask("POST", path, "typed=untouched")
            assert (found.status, "--allow-changes" in found.text) == (403, True)
        assert "untouched" in console.get("/topics?q=untouched")


def test_a_group_is_created_consumed_reset_paused_and_deleted(
    console: Served, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("consumed", queues=2)
    for n in range(4):
        assert console.act("/topics/consumed/send", {"body": str(n)}).status == 200
    fields = {"name": "readers", "max_attempts": "5"}
    assert console.act("/groups/new", fields).headers["location"] == "/groups/readers?done=created"
    endpoint = shared_cluster.endpoints
    with cometmq.sync.SimpleConsumer(endpoint, group="readers", topics="consumed") as consumer:
        left = 4

        def consumed() -> bool:
            nonlocal left
            for message in consumer.receive(max_messages=4, wait=1):
                consumer.ack(message)
                left -= 1
            return left <= 0

        wait_until("the messages are consumed", consumed)
        page = wait_until("the client is listed", lambda: _with(console, "PYTHON"))
        clients = told(console.get("/clients?q=readers"))
        assert "1 connected client" in clients
        assert "simple consumer grpc PYTHON" in clients
        link = re.search(r'href="(/client\?[^"]+)"', console.get("/groups/readers"))
        assert link
        one = unescape(link[1])
        assert "consumed *" in told(console.get("/groups/readers"))
        shown = told(console.get(one))
        assert "long polling" in shown
        assert "Subscriptions Topic Filter Kind consumed *" in shown
        assert "1 *" in told(console.get("/topics/consumed"))
        stack = told(console.get(one.replace("/client?", "/client/stack?")))
        assert "Thread MainThread" in stack
        assert "No client matches" in told(console.get("/clients?q=nothing-like-it"))
    assert "5, then the dead-letter topic" in page
    wait_until("nothing is left", lambda: "Lag 0" in told(console.get("/groups/readers")))
    assert "readers 0 0 0 0 –" in told(console.get("/topics/consumed")), "no client, no filter"
    assert "lose their offsets: readers" in told(console.get("/topics/consumed/delete"))

    asked = "topic=consumed&to=earliest"
    assert console.ask("GET", "/groups/readers/reset?topic=read&to=").status == 200
    plan = told(console.get(f"/groups/readers/reset?{asked}"))
    assert "4 messages are consumed again, 0 are skipped" in plan
    assert "Lag 0" in told(console.get("/groups/readers"))
    acted = console.act("/groups/readers/reset", {"topic": "consumed", "to": "earliest"})
    assert "4 messages are consumed again, 0 are skipped" in told(
        console.get(acted.headers["location"])
    )
    wait_until("all are left", lambda: "Lag 4" in told(console.get("/groups/readers")))
    assert "readers 4" in told(console.get("/groups?q=read&sort=lag"))
    latest = told(console.get("/groups/readers/reset?topic=consumed&to=time&time=2999-01-01"))
    assert "0 messages are consumed again, 4 are skipped" in latest

    assert "Pause group readers" in told(console.get("/groups/readers/consumption"))
    assert console.act("/groups/readers/consumption", {"enable": ""}).status == 303
    assert "Consumption is paused" in told(console.get("/groups/readers"))
    assert console.act("/groups/readers/consumption", {"enable": "yes"}).status == 303
    assert "Consumption is paused" not in told(console.get("/groups/readers"))

    assert "Offsets that are lost on: consumed" in told(console.get("/groups/readers/delete"))
    assert console.act("/groups/readers/delete", {"typed": "readers"}).status == 303
    assert console.ask("GET", "/groups/readers").status == 404


def _with(console: Served, text: str) -> str:
    page = told(console.get("/groups/readers"))
    return page if text in page else ""


def test_a_reset_that_only_ends_deliveries_in_flight_is_offered(
    console: Served, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("reset-in-flight", queues=1)
    shared_cluster.create_group("in-flight-readers")
    assert console.act("/topics/reset-in-flight/send", {"body": "x"}).status == 200
    receive(shared_cluster, "reset-in-flight", "in-flight-readers", 1)
    for offset in (0, 1):  # one of them is the offset that the group has
        asked = f"topic=reset-in-flight&to=offset&offset={offset}"
        plan = told(console.get(f"/groups/in-flight-readers/reset?{asked}"))
        assert "1 deliveries in flight can no longer be acknowledged" in plan
        assert "Set the offsets" in plan


@pytest.mark.parametrize(
    "query",
    [
        "to=earliest",
        "topic=t&to=odd",
        "topic=t&to=time&time=soon",
        "topic=t&to=offset&offset=x",
        "topic=t&to=shift&shift=some",
        "topic=t&to=shift&shift=0",
    ],
)
def test_a_bad_reset_is_refused_and_keeps_the_form(
    console: Served, shared_cluster: Cluster, query: str
) -> None:
    shared_cluster.create_group("reset-badly")
    found = console.ask("GET", f"/groups/reset-badly/reset?{query}")
    assert found.status == 400
    assert 'role="alert"' in found.text
    assert "<h1>Reset offsets</h1>" in found.text


def test_a_message_is_found_in_every_way_shown_exported_and_copied(
    console: Served, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("sought", queues=3)
    for n in range(40):
        fields = {"body": BODY, "tag": f"t{n % 2}", "keys": f"k-{n}", "properties": f"n=number-{n}"}
        sent = console.act("/topics/sought/send", fields)
        assert sent.status == 200
    found_id = re.search(r"Message id: (\w+)", told(sent.text))
    assert found_id

    def finds(text: str, query: str) -> None:
        page = f"/messages?topic=sought&{query}"
        wait_until(f"{query} is in the index", lambda: text in told(console.get(page)))

    finds("k-39", f"by=id&value={found_id[1]}")
    finds("k-17", "by=key&value=k-17")
    finds("20 messages", "by=tag&value=t1")
    by_time = console.get("/messages?topic=sought&begin=-1h")
    assert "32 messages" in told(by_time)
    following = re.search(r'rel="next" href="([^"]+)"', by_time)
    assert following
    assert "8 messages" in told(console.get(unescape(following[1])))
    one = console.get("/messages?topic=sought&contains=number-17")
    assert "1 message," in told(one)
    assert "No message found" in told(console.get("/messages?topic=sought&end=2001-01-01"))

    link = re.search(r'href="(/message\?[^"]+)"', one)
    assert link
    href = unescape(link[1])
    page = console.get(href)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "number-17" in page
    assert "00000000  7b" in console.get(f"{href}&as=hex")
    body = console.ask("GET", href.replace("/message?", "/message/body?"))
    assert body.text == BODY
    assert body.headers["content-disposition"].startswith("attachment")
    assert "The queue has the offsets" in told(console.get(around(page)))

    exported = console.ask("GET", "/messages/export?topic=sought&format=json")
    assert len(json.loads(exported.text)) == 40
    assert exported.headers["content-type"] == "application/json"
    assert len(console.get("/messages/export?topic=sought&format=csv").splitlines()) == 41

    place = dict(re.findall(r"(\w+)=([^&]+)", href.partition("?")[2]))
    form = console.get(href.replace("/message?", "/message/copy?"))
    assert 'name="to_topic" value="sought"' in form
    copied = console.act("/message/copy", {**place, "to_topic": "sought", "keys": "copied"})
    assert "Sent and stored in topic sought" in told(copied.text)
    copy = wait_until("the copy is indexed", lambda: _copy_of(console))
    assert copy["body"] == BODY


def around(page: str) -> str:
    """Return the link to the neighbours of a message."""
    found = re.search(r'href="([^"]+)">Neighbours', page)
    assert found
    return unescape(found[1])


def _copy_of(console: Served) -> dict[str, str]:
    text = console.get("/messages/export?topic=sought&by=key&value=copied&format=json")
    found = json.loads(text)
    return found[0] if found else {}


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("time", "newest message"),
        ("id", "offset id"),
        ("offset", "lists its queues"),
        ("odd", "how"),
    ],
)
def test_a_search_without_a_topic_tells_what_it_needs(console: Served, way: str, text: str) -> None:
    assert text in told(console.get(f"/messages?by={way}"))


@pytest.mark.parametrize("way", ["time", "key", "id", "tag", "offset"])
def test_a_tab_of_the_search_shows_its_form(
    console: Served, shared_cluster: Cluster, way: str
) -> None:
    shared_cluster.create_topic("tabs", queues=1)
    for query in (f"by={way}", f"topic=tabs&by={way}", f"by={way}&format=csv&path=x"):
        assert console.ask("GET", f"/messages?{query}").status == 200


@pytest.mark.parametrize(
    "query",
    [
        "topic=sought&by=odd",
        "by=key&value=x",
        "topic=sought&by=key&value=",
        "topic=sought&begin=soon",
    ],
)
def test_a_bad_search_is_answered_on_the_form(console: Served, query: str) -> None:
    found = console.ask("GET", f"/messages?{query}")
    assert (found.status, 'role="alert"' in found.text) == (400, True)


def test_a_message_beyond_the_end_is_not_found_at_once(
    console: Served, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("short", queues=1)
    for query in ("topic=short&queue=0&offset=5", "topic=short&queue=9&offset=0"):
        assert console.ask("GET", f"/message?{query}").status == 404


def test_dead_letters_are_shown_planned_and_sent_again(
    console: Served, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("mortal", queues=1)
    shared_cluster.create_group("givers-up")
    for n in range(3):
        fields = {"body": f"body-{n}", "properties": f"error=cause-{n}"}
        assert console.act("/topics/mortal/send", fields).status == 200
    dead_letters(shared_cluster, "mortal", "givers-up", 3)
    wait_until("they are counted", lambda: "givers-up 3" in told(console.get("/dead-letters")))
    original = "/message?topic=mortal&queue=0&offset=0"
    wait_until(
        "its page tells the dead letter",
        lambda: "givers-up dead letter" in told(console.get(original)),
    )
    page = console.get("/dead-letters/givers-up")
    assert "mortal cause-1" in told(page)
    chosen_page = told(console.get("/dead-letters/givers-up?contains=cause-2"))
    assert "1 of 3 dead letters, the oldest first." in chosen_page
    places = re.findall(r'name="m" value="([^"]+)"', page)
    assert len(places) == 3
    plan = told(console.get(f"/dead-letters/givers-up/redrive?m={places[0]}&m={places[2]}"))
    assert "To send again: 2 dead letters, to mortal." in plan
    assert console.ask("GET", "/dead-letters/givers-up/redrive").status == 400
    chosen = {"places": f"{places[0]} {places[2]} {places[0].rsplit(':', 1)[0]}:999"}
    done = told(console.act("/dead-letters/givers-up/redrive", chosen).text)
    assert "2 of 3 dead letters sent again" in done
    assert "failed: Queue 0 of topic %DLQ%givers-up has no message at offset 999" in done
    again = told(console.act("/dead-letters/givers-up/redrive", chosen).text)
    assert "0 of 3 dead letters sent again, 2 sent before and omitted" in again
    # The command and the console know each other's redrives.
    command = ("dlq", "redrive", "givers-up", "--endpoint", shared_cluster.endpoints)
    planned = json.loads(shared_cluster.run(*command, "--dry-run", "-o", "json").stdout)
    (row,) = planned["changes"]
    assert (row["to_send"], row["sent_before"]) == (1, 2)
    page = console.get("/dead-letters/givers-up")
    copies = r'by=id&amp;topic=mortal&amp;value=[0-9A-F]{32}"><time data-ms="\d+">'
    assert (len(re.findall(copies, page)), page.count('data-label="Sent again">–')) == (2, 1)
    assert told(page).count(f"by {getpass.getuser()}@") == 2
    refused = told(console.get(f"/dead-letters/givers-up/redrive?m={places[0]}"))
    assert "All selected messages were sent again before" in refused
    assert "Last reason of a dead letter: cause-" in told(console.get("/groups/givers-up"))
    everything = "/dead-letters/givers-up/redrive-all"
    plan = console.get(f"{everything}?contains=cause-1")
    assert "with “cause-1”" in told(plan)
    fields = dict(re.findall(r'type="hidden" name="(contains|end)" value="([^"]*)"', plan))
    assert "1 dead letter sent again." in told(console.act(everything, fields).text)
    omitted = told(console.act(everything, fields).text)
    assert "0 dead letters sent again, 1 sent before and omitted." in omitted
    assert console.act(everything, {"end": "x"}).status == 400
    exported = json.loads(console.get("/messages/export?topic=mortal&format=json"))
    texts = [one["body"] for one in exported]
    assert (len(texts), len(set(texts[3:])), set(texts)) == (6, 3, {"body-0", "body-1", "body-2"})


def test_the_newest_message_is_first_and_a_page_that_is_followed_asks_again(
    console: Served, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("followed", queues=1)  # of one queue: one order
    with cometmq.sync.Producer(shared_cluster.endpoints, topics=["followed"]) as producer:
        for n in range(40):
            producer.send("followed", f"number {n:02}".encode())
    page = console.get("/messages?topic=followed")
    found = re.findall(r"number (\d\d)", page)
    assert found == [f"{n:02}" for n in range(39, 7, -1)]
    assert "every 2s" not in page
    following = re.findall(r'rel="next" href="([^"]+)"', page)
    older = re.findall(r"number (\d\d)", console.get(unescape(following[0])))
    assert older == [f"{n:02}" for n in range(7, -1, -1)]
    assert 'hx-trigger="every 2s"' in console.get("/messages?topic=followed&follow=1")
    oldest = console.get("/messages?topic=followed&order=oldest&follow=1")
    assert re.findall(r"number (\d\d)", oldest)[:2] == ["00", "01"]
    assert "every 2s" not in oldest, "new messages are at the end"
    figures = console.get("/topics/followed/figures")
    assert "40" in told(figures)
    assert "data-columns=" in figures


def test_columns_of_lists_are_sorted_on_the_server(
    console: Served, shared_cluster: Cluster
) -> None:
    for n, name in enumerate(("column-b", "column-a")):
        shared_cluster.create_topic(name, queues=1)
        with cometmq.sync.Producer(shared_cluster.endpoints, topics=[name]) as producer:
            for _ in range(2 - n):
                producer.send(name, b"x")

    def names(query: str) -> list[str]:
        return re.findall(r">(column-[ab])</a>", console.get(f"/topics?q=column-&{query}"))

    assert names("") == ["column-a", "column-b"]
    assert names("sort=-name") == names("sort=messages") == ["column-b", "column-a"]
    assert names("sort=-messages") == ["column-a", "column-b"]
    assert 'aria-sort="descending"' in console.get("/topics?sort=messages")


def test_a_topic_counts_its_timers_and_open_transactions(
    console: Served, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("later", kind="delay", queues=1)
    with cometmq.sync.Producer(shared_cluster.endpoints, topics=["later"]) as producer:
        producer.send("later", b"x", deliver_in=3_600)
    wait_until(
        "it is listed", lambda: "Waiting timers 1" in told(console.get("/topics/later/figures"))
    )
    shared_cluster.create_topic("deals", kind="transaction", queues=1)
    assert "Open transactions 0" in told(console.get("/topics/deals"))


def test_every_topic_that_the_page_of_a_group_of_lite_topics_links_to_exists(
    console: Served, shared_cluster: Cluster
) -> None:
    shared_cluster.create_topic("rooms", kind="lite", queues=1)
    address = ("--endpoint", shared_cluster.address("master"))
    reads = ("--attribute", "+lite.bind.topic=rooms", "--attribute", "+lite.sub.wildcard=true")
    shared_cluster.run("group", "create", "talkers", *reads, *address)
    shared_cluster.run("message", "send", "rooms", "x", "--lite-topic", "one", *address)
    shared_cluster.run("offset", "reset", "talkers", "rooms", "earliest", "--yes", *address)
    page = console.get("/groups/talkers")
    assert "one rooms lite broker-a 0 1 " in told(page)
    assert "one talkers 1 1" in told(console.get("/topics/rooms"))
    shared_cluster.create_topic("halls", kind="lite", queues=1)
    shared_cluster.run("message", "send", "halls", "x", "--lite-topic", "two", *address)
    assert "two – – 1" in told(console.get("/topics/halls"))
    for link in set(re.findall(r'href="(/topics/[^"]+)"', page)):
        assert console.ask("GET", unescape(link)).status == 200, link


def test_a_group_without_a_controller_is_shown_and_its_changes_are_refused(
    console: Served, shared_cluster: Cluster
) -> None:
    page = told(console.get("/ha"))
    assert "No controller decides for this group" in page
    assert shared_cluster.address("slave") in page
    plan = told(console.get("/ha/broker-a/switchover?to=1"))
    assert "This cannot be done now: no controller decides" in plan
    assert console.act("/ha/broker-a/switchover", {"to": "1"}).status == 502
    assert console.ask("GET", "/ha/broker-a/switchover?to=x").status == 400


def test_settings_are_searched_and_secrets_hidden(console: Served, shared_cluster: Cluster) -> None:
    page = told(console.get("/configuration?q=clusterToken"))
    assert "clusterToken (hidden)" in page
    assert "1 setting of" in page
    assert "needs a restart" in page
    live = told(console.get("/configuration?q=maxTopics"))
    assert "maxTopics" in live
    assert "at run time" in live.partition("maxTopics")[2]
    everything = told(console.get("/configuration"))
    assert "Page 1 of" in everything
    assert "No setting matches" in told(console.get("/configuration?q=nothing-like-it"))
