"""The figures of each page equal what the commands print, once nothing changes any more."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

import cometmq
from cometmq.console.pages.store import REASONS
from cometmq.operations.words import counted, moment, short, size
from cometmq.tests.console.consuming import dead_letters, receive
from cometmq.tests.console.served import Served, told
from cometmq.tests.harness.cluster import Cluster, wait_until

TOPIC, GROUP = "counted", "counters"


@pytest.fixture(scope="module", autouse=True)
def left_by_a_load(console: Served, shared_cluster: Cluster) -> None:
    """Send and consume, then stop: messages in flight, unread, dead and delayed are left."""
    shared_cluster.create_topic(TOPIC, queues=2)
    shared_cluster.create_group(GROUP)
    late = {"name": "counted-late", "kind": "delay", "queues": "1", "permission": "rw"}
    assert console.act("/topics/new", late).status == 303
    with cometmq.sync.Producer(shared_cluster.endpoints, topics=[TOPIC]) as producer:
        for n in range(7):
            producer.send(TOPIC, str(n).encode())
    dead_letters(shared_cluster, TOPIC, GROUP, 1)
    receive(shared_cluster, TOPIC, GROUP, 4)
    for n in range(3):
        sent = {"body": "x", "keys": f"counted-{n}", "delay_s": "3600"}
        assert console.act("/topics/counted-late/send", sent).status == 200
    wait_until(
        "the dead letter is counted",
        lambda: f"{GROUP} 1" in told(console.get("/dead-letters")),
    )


@pytest.fixture
def printed(shared_cluster: Cluster) -> Callable[..., Any]:
    """Return a function that runs a command and returns its JSON."""

    def run(*command: str) -> Any:
        endpoint = ("--endpoint", shared_cluster.endpoints)
        return json.loads(shared_cluster.run(*command, *endpoint, "-o", "json").stdout)

    return run


def rows(page: str, first: str = "") -> list[list[str]]:
    """Return the cells of the rows of a page's tables; `first`: those whose first cell has it."""
    found = []
    for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL):
        cells = [told(cell).strip() for cell in re.findall(r"<td.*?>(.*?)</td>", row, re.DOTALL)]
        if cells and first in cells[0]:
            found.append([unescape(cell) for cell in cells])
    return found


def numbers(cells: list[str]) -> list[int]:
    """Return cells as the numbers that they show."""
    return [int(cell.replace(",", "")) for cell in cells]


def test_topics_and_their_queues(console: Served, printed: Callable[..., Any]) -> None:
    topic = printed("topic", "describe", TOPIC)
    row = next(each for each in rows(console.get(f"/topics?q={TOPIC}")) if each[0] == TOPIC)
    sums = sum(queue["messages"] for queue in topic["queues"])
    assert row[1] == topic["type"]
    assert numbers(row[2:3]) == [sums]
    assert row[4] == moment(max(queue["last_store_ms"] for queue in topic["queues"]))
    assert row[5:] == [str(topic["read_queues"]), topic["permission"]]
    shown = [numbers(cells[1:5]) for cells in rows(console.get(f"/topics/{TOPIC}"), "broker-a")]
    fields = ("queue", "messages", "min_offset", "max_offset")
    assert shown == [[queue[name] for name in fields] for queue in topic["queues"]]


def test_groups_with_their_queues_and_dead_letters(
    console: Served, printed: Callable[..., Any]
) -> None:
    row = next(one for one in printed("group", "list") if one["group"] == GROUP)
    names = ("lag", "in_flight", "retries", "dead_letters", "clients")
    wanted = [row[name] for name in names]
    assert (row["in_flight"], row["dead_letters"]) == (4, 1)
    (shown,) = [one for one in rows(console.get(f"/groups?q={GROUP}")) if one[0] == GROUP]
    assert numbers(shown[1:]) == wanted
    (letters,) = [one for one in rows(console.get("/dead-letters")) if one[0] == GROUP]
    assert numbers(letters[1:]) == [row["dead_letters"], row["retries"]]
    assert len(printed("dlq", "ls", GROUP)) == row["dead_letters"]
    described: list[dict[str, Any]] = []
    while True:  # an acknowledgement commits its offset a moment later
        page, before = console.get(f"/groups/{GROUP}"), described
        described = printed("group", "describe", GROUP)["queues"]
        if described == before:
            break
    values = [told(one).strip() for one in re.findall(r'<p class="value[^>]*>(.*?)</p>', page)]
    assert numbers(values) == wanted
    fields = ("queue", "lag", "in_flight", "consumer_offset", "max_offset")
    shown_queues = {
        (each[0].split()[0], *numbers([each[2], each[3], each[4]]), each[5], *numbers([each[6]]))
        for each in rows(page)
        if len(each) == 7
    }
    expected = set()
    for queue in described:
        queue_id, lag, in_flight, offset, end = (queue[name] for name in fields)
        own = f"{offset:,}" if offset >= 0 else "none"
        expected.add((queue["topic"], queue_id, lag, in_flight, own, end))
    assert len(expected) >= 2
    assert shown_queues == expected


def test_timers_users_and_settings(
    console: Served, shared_cluster: Cluster, printed: Callable[..., Any]
) -> None:
    waiting = printed("timer", "ls", "counted-late")
    assert len(waiting) == 3
    page = told(console.get("/timers?topic=counted-late"))
    assert "3 messages, the next" in page
    endpoint = ("--endpoint", shared_cluster.endpoints)
    shared_cluster.run("user", "create", "counted-user", *endpoint)
    assert len(rows(console.get("/users"))) == len(printed("user", "list"))
    settings = printed("config", "show")
    values = settings if isinstance(settings, dict) else {s["key"]: s["value"] for s in settings}
    for key in ("maxTopics", "brokerName", "flushDiskType"):
        (row,) = [one for one in rows(console.get(f"/configuration?q={key}")) if one[0] == key]
        assert row[1] == str(values[key])


def test_replicas_and_the_log(console: Served, printed: Callable[..., Any]) -> None:
    """Other parts of the broker may write: a page is compared between two equal answers."""

    def described() -> dict[tuple[int, str], int]:
        found = printed("cluster", "describe")
        found = found[0] if isinstance(found, list) else found
        return {(each["broker_id"], each["role"]): each["log_end"] for each in found["members"]}

    def shown() -> dict[tuple[int, str], int]:
        cells = [each for each in rows(console.get("/ha")) if len(each) == 12]
        return {(int(each[0]), each[1]): numbers(each[4:5])[0] for each in cells}

    def equal() -> bool:
        before, page, after = described(), shown(), described()
        assert before != after or page == before, (before, page, after)
        return before == after

    wait_until("nothing is written", equal)


def test_the_overview(console: Served, printed: Callable[..., Any]) -> None:
    """The page shows its last look, at most some seconds old: it becomes what is printed."""

    def wanted() -> list[str]:
        found, described = printed("top", "--once"), printed("cluster", "describe")
        (broker,), groups, store = found["brokers"], found["consumers"], described["store"]
        sums = {
            name: sum(group[name] for group in groups)
            for name in ("lag", "in_flight", "retries", "dead_letters")
        }
        assert min(sums["lag"], sums["dead_letters"]) > 0
        return [
            f"Sent {short(store['put_tps'])} /s Delivered {short(store['get_tps'])} /s",
            f"Lag {sums['lag']:,} {counted(len(groups), 'group')}, "
            f"{counted(sums['in_flight'], 'message')} in flight",
            f"Dead letters {sums['dead_letters']:,} {sums['retries']:,} in retry",
            f"Disk {broker['disk_percent']} % used",
            f"In sync {broker['in_sync']} replicas",
            f"{size(broker['log_bytes'])} of log; {store['queues']} queues",
        ]

    def equal() -> bool:
        page = told(console.get("/"))
        return all(each in page for each in wanted())

    wait_until("the page shows what is printed", equal)


def test_the_store(console: Served, shared_cluster: Cluster, printed: Callable[..., Any]) -> None:
    """The command reads the files of the leader's store, the page asks the broker."""
    directory = shared_cluster.node("master").data / "store"

    def equal() -> bool:
        store = printed("cluster", "describe")["store"]
        page = console.get("/store")
        if printed("cluster", "describe")["store"] != store:
            return False
        text = told(page)
        log = size(store["log_end"] - store["log_start"])
        assert f"Log {log} {store['segments']} segment" in text
        assert f"Disk {store['disk_use']} %" in text
        assert f"Not on disk yet {size(store['flush_behind'])}" in text
        assert f"Not in queues yet {size(store['dispatch_behind'])}" in text
        return True

    wait_until("nothing is written", equal)
    command = ("store", "retention", str(directory), "-o", "json")
    kept = json.loads(shared_cluster.run(*command).stdout)
    shown = [each for each in rows(console.get("/store")) if len(each) == 5]
    assert [numbers(each[:2]) for each in reversed(shown)] == [
        [one["start"], one["end"]] for one in kept["segments"]
    ]
    assert [each[3] for each in reversed(shown)] == [
        REASONS[one["reason"]][0] for one in kept["segments"]
    ]


def test_the_clients(console: Served, shared_cluster: Cluster, printed: Callable[..., Any]) -> None:
    with (
        cometmq.sync.Producer(shared_cluster.endpoints, topics=[TOPIC]) as producer,
        cometmq.sync.SimpleConsumer(
            shared_cluster.endpoints, group="lookers-on", topics=TOPIC
        ) as consumer,
    ):
        producer.send(TOPIC, b"seen")
        consumer.receive(wait=1)

        def equal() -> bool:
            wanted = {
                (
                    one["client_id"],
                    f"{one['kind'] or 'unknown'} {one['protocol']}",
                    f"{one['language']} {one['version']}",
                    one["address"],
                    " ".join((*one["groups"], *one["topics"])),
                )
                for one in printed("client", "list")
            }
            # Clients of earlier tests leave at their own time.
            return (
                len(wanted) >= 2
                and {tuple(each[:5]) for each in rows(console.get("/clients"))} == wanted
            )

        wait_until("the page lists what is printed", equal)
