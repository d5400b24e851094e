"""Every page and change of the console against a real cluster, without a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from cometmq.console.paging import PAGE_ROWS
from cometmq.tests.console.served import Served, serve
from cometmq.tests.harness.cluster import Cluster, wait_until

PAGES = ("/", "/topics", "/topics/new")


@pytest.fixture(scope="module")
def console(shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve a console that may change the cluster."""
    folder = tmp_path_factory.mktemp("console")
    with serve(folder, shared_cluster.endpoints, "--allow-changes") as found:
        yield found


def told(text: str) -> str:
    """Return the text of a page without its markup."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", text)))


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
    assert "Sent and stored in queue" in told(console.act("/topics/life/send", body).text)
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
