"""The console while a node ends: it shows the loss, goes on with another node, and starts alone."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

import cometmq
from cometmq.tests.console.browser import SIZES, WAIT_MS, chromium, opened
from cometmq.tests.console.served import serve, told
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
        assert "would elect broker 1" in console.get(f"{switchover}?to=1")

        def switched() -> bool:
            if "broker 1, epoch" in console.get("/ha"):
                return True
            return "Leader: broker 1" in console.act(switchover, {"to": "1"}).text

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


#: Pages that are open at the same time while the leader ends.
OPEN = (
    *("/", "/topics", "/topics/flow", "/groups", "/groups/readers", "/messages?topic=flow"),
    *("/message?topic=flow&queue=0&offset=0", "/dead-letters", "/timers", "/ha", "/store"),
    *("/spark", "/clients", "/users", "/audit", "/configuration"),
)
SETTLED = 20


def lag_of(cluster: Cluster) -> int:
    """Return the lag of the group as `cometmq` prints it."""
    asked = ("group", "describe", "readers", "-o", "json", "--endpoint", cluster.endpoints)
    lag: int = json.loads(cluster.run(*asked).stdout)["lag"]
    return lag


def test_every_open_page_shows_a_failover_and_no_figure_that_the_commands_contradict(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster(controller=True).wait_in_sync()
    first, second = cluster.address("master"), cluster.address("slave")
    cluster.create_topic("flow", queues=1)
    cluster.create_topic("load", queues=1)
    cluster.create_group("readers")
    stop = threading.Event()
    endpoints = cluster.endpoints

    def load() -> None:
        with cometmq.sync.Producer(endpoints, topics=["load"]) as producer:
            while not stop.wait(0.05):
                with contextlib.suppress(cometmq.CometError):  # outcomes that are unknown
                    producer.send("load", b"x")

    with cometmq.sync.Producer(endpoints, topics=["flow"]) as producer:
        for n in range(SETTLED):
            producer.send("flow", str(n).encode())
    reset = ("offset", "reset", "readers", "flow", "earliest", "--endpoint", endpoints)
    cluster.run(*reset)
    assert lag_of(cluster) == SETTLED
    data = ("--data", str(cluster.data))
    loading = threading.Thread(target=load)
    with (
        serve(tmp_path, f"{first};{second}", *data) as console,
        chromium() as one,
        opened(one, SIZES[0], "dark") as (overview, errors),
    ):
        loading.start()
        try:
            pages = [overview, *(overview.context.new_page() for _ in OPEN[1:])]
            for page, path in zip(pages, OPEN, strict=True):
                page.set_default_timeout(WAIT_MS)
                page.on("pageerror", lambda error: errors.append(str(error)))
                page.goto(console.url + path)
                page.wait_for_selector("h1")
            overview.wait_for_selector("svg.picture g.leader")
            cluster.kill9("master")
            overview.wait_for_selector(f".alarm.bad:has-text('{first}')")
            for page in pages[1:]:
                page.wait_for_selector(f"#state:has-text('{first}')")
            while True:  # what the console shows is right, or it shows none
                found = console.ask("GET", "/groups/readers")
                if found.status == 200 and "What follows lacks" not in found.text:
                    assert f"Lag {SETTLED} " in told(found.text)
                shown = re.search(r"Lag (\S+) ", told(console.get("/")))
                assert shown
                assert shown[1] in {"unknown", str(SETTLED)}
                if "broker 1 · leader" in console.get("/"):
                    break
            for page, path in zip(pages, OPEN, strict=True):
                wait_until(path, lambda path=path: console.ask("GET", path).status == 200)
                page.goto(console.url + path)
                page.wait_for_selector("h1")
            assert lag_of(cluster) == SETTLED
            wait_until("it is shown", lambda: "Lag 20 " in told(console.get("/groups/readers")))
            # The browser itself reports the answers with an error while there is no leader.
            assert [one for one in errors if "status of 50" not in one] == []
        finally:
            stop.set()
            loading.join()


def test_a_console_without_a_cluster_starts_and_tells_so(tmp_path: Path) -> None:
    with serve(tmp_path, "127.0.0.1:1") as console:
        wait_until("the overview tells it", lambda: "Cannot connect" in console.get("/"))
        found = console.ask("GET", "/topics")
        assert (found.status, "Cannot connect" in found.text) == (502, True)
