"""The console while a node ends: it shows the loss, goes on with another node, and starts alone."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cometmq
from cometmq.operations.connection import Connection
from cometmq.operations.errors import CliError
from cometmq.operations.links import Links
from cometmq.proto import paths, v1
from cometmq.tests.console.browser import SIZES, another, chromium, opened
from cometmq.tests.console.served import serve
from cometmq.tests.harness.cluster import Cluster, wait_until


def test_the_console_switches_over_outlives_its_node_and_tells_its_end(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    # With authentication the console signs its calls with the keys of --data.
    cluster = new_cluster("--auth", controller=True).wait_in_sync()
    first, second = cluster.address("master"), cluster.address("slave")
    data = ("--data", str(cluster.data), "--allow-changes")
    with serve(tmp_path, f"{second};{first}", *data) as console:
        wait_until("the overview names the node", lambda: second in console.get("/"))
        switchover = "/ha/broker-a/switchover"
        wait_until("both are in sync", lambda: "Make broker 1 the leader" in console.get("/ha"))
        assert "Would elect broker 1" in console.get(f"{switchover}?to=1")

        def switched() -> bool:
            if "broker 1, epoch" in console.get("/ha"):
                return True
            return "The change is done." in console.act(switchover, {"to": "1"}).text

        wait_until("broker 1 leads", switched)
        with console.stream() as stream:
            cluster.kill9("slave")
            # The nameserver may notice it first if this machine is slow.
            words = f"{second}) does not accept connections", f"{second}) is not alive"
            while not any(each in (line := stream.readline().decode()) for each in words):
                assert line, "the stream ended"
        wait_until("topics are read", lambda: console.ask("GET", "/topics").status == 200)
    with serve(tmp_path, first) as console:  # without keys
        wait_until("the refusal is told", lambda: "UNAUTHORIZED" in console.get("/"))
        found = console.ask("GET", "/topics")
        assert (found.status, "UNAUTHORIZED" in found.text) == (502, True)


#: Every section, and the pages of one object.
PAGES = (
    *("/topics", "/topics/fed", "/groups", "/groups/readers", "/messages?topic=fed"),
    *("/dead-letters", "/timers", "/ha", "/store", "/spark", "/clients", "/users", "/audit"),
    "/configuration",
)


#: Notes when an element of the page first has a text, and how late a timer of the page ran until
#: then.
WATCH = """([selector, text]) => {
  window.notice = {at: 0, late: 0};
  let last = Date.now();
  const timer = setInterval(() => {
    const now = Date.now();
    window.notice.late += Math.max(0, now - last - 50);
    last = now;
  }, 50);
  const observer = new MutationObserver(() => {
    const found = [...document.querySelectorAll(selector)];
    if (!found.some((one) => one.checkVisibility() && one.innerText.includes(text))) return;
    window.notice.at = Date.now();
    observer.disconnect();
    clearInterval(timer);
  });
  observer.observe(document.body, {childList: true, subtree: true, characterData: true});
}"""
#: From the end of a node until a page shows it.
NOTICED_S = 2.0


def waited_s(pid: int) -> float:
    """Return for how long the threads of a process have been ready and had no processor."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[1]) for task in tasks) / 1e9


def lags(group: v1.DescribeGroupResponse) -> list[int]:
    """Return every lag of a group: of all, in flight, in retry topics, by queue."""
    sums = group.progress
    return [sums.lag, sums.in_flight, sums.retries, *(queue.lag for queue in group.queues)]


def test_every_open_page_shows_a_failover_without_an_error_and_no_lag_is_negative(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster(controller=True).wait_in_sync()
    first, second = cluster.address("master"), cluster.address("slave")
    cluster.create_topic("fed", queues=1)
    cluster.create_group("readers")
    stop = threading.Event()

    def feed() -> None:
        with cometmq.sync.Producer(f"{first};{second}", topics=["fed"]) as producer:
            while not stop.wait(0.05):
                # A send fails until the other broker leads.
                with contextlib.suppress(cometmq.CometError):
                    producer.send("fed", b"x")

    def negative() -> list[int]:
        with contextlib.suppress(CliError), Connection(second, Links()) as connection:
            request = v1.DescribeGroupRequest(name="readers")
            found = connection.call(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse)
            return [lag for lag in lags(found) if lag < 0]
        return []

    with (
        serve(tmp_path, f"{first};{second}", "--data", str(cluster.data)) as console,
        ThreadPoolExecutor(1) as pool,
        chromium() as one,
        opened(one, SIZES[0], "dark") as (page, errors),
    ):
        load = pool.submit(feed)
        try:
            pages = {path: another(page.context, errors) for path in PAGES}
            page.goto(f"{console.url}/")
            page.wait_for_selector("svg.picture g.leader")
            for path, tab in pages.items():
                tab.goto(console.url + path)
            page.evaluate(WATCH, [".alarm.bad", first])
            waited, killed_s = waited_s(console.pid), time.time()
            cluster.kill9("master")
            page.wait_for_selector(f".alarm.bad:has-text('{first}')")
            notice = page.evaluate("notice")
            # The console and the browser share the processors with the cluster, its load and other
            # tests: the time in which they wait for one is not theirs.
            starved_s = waited_s(console.pid) - waited + notice["late"] / 1000
            assert notice["at"] / 1000 - killed_s < NOTICED_S + starved_s, starved_s
            for tab in pages.values():
                tab.wait_for_selector(f"#state .notice:has-text('{first}')")
                assert negative() == []
            page.wait_for_selector("svg.picture g.leader:has-text('broker 1')")
            assert errors == []
            for path, tab in pages.items():
                wait_until(f"{path} opens", lambda at=path: console.ask("GET", at).status == 200)
                tab.goto(console.url + path)
                tab.wait_for_selector("h1")
                cells = "[...document.querySelectorAll('td, dd, .value')].map(one => one.innerText)"
                assert [one for one in tab.evaluate(cells) if re.match(r"-\d", one)] == [], path
            assert (negative(), errors) == ([], [])
        finally:
            stop.set()
        load.result()


def test_a_console_without_a_cluster_starts_and_tells_so(tmp_path: Path) -> None:
    with serve(tmp_path, "127.0.0.1:1") as console:
        wait_until("the overview tells it", lambda: "Cannot connect" in console.get("/"))
        found = console.ask("GET", "/topics")
        assert (found.status, "Cannot connect" in found.text) == (502, True)
        poll = {"HX-Request": "true", "HX-Trigger": "progress", "HX-Target": "progress"}
        assert console.ask("GET", "/groups/any", headers=poll).status == 204, "keeps its figures"
        search = {"HX-Request": "true", "HX-Target": "found"}
        assert console.ask("GET", "/groups", headers=search).status == 502
