"""The console while a node ends: it shows the loss, goes on with another node, and starts alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cometmq.tests.console.browser import SIZES, chromium, opened
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


PAGES = ("/topics", "/groups", "/timers", "/store", "/spark", "/users", "/clients", "/ha")


def test_an_open_page_shows_a_failover_without_an_error_and_every_page_opens_after_it(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster(controller=True).wait_in_sync()
    first, second = cluster.address("master"), cluster.address("slave")
    data = ("--data", str(cluster.data))
    with (
        serve(tmp_path, f"{first};{second}", *data) as console,
        chromium() as one,
        opened(one, SIZES[0], "dark") as (page, errors),
    ):
        page.goto(f"{console.url}/")
        page.wait_for_selector("svg.picture g.leader")
        cluster.kill9("master")
        page.wait_for_selector(f".alarm.bad:has-text('{first}')")
        page.wait_for_selector("svg.picture g.leader:has-text('broker 1')")
        for path in PAGES:
            wait_until(f"{path} opens", lambda path=path: console.ask("GET", path).status == 200)
            page.goto(console.url + path)
            page.wait_for_selector("h1")
        assert errors == []


def test_a_console_without_a_cluster_starts_and_tells_so(tmp_path: Path) -> None:
    with serve(tmp_path, "127.0.0.1:1") as console:
        wait_until("the overview tells it", lambda: "Cannot connect" in console.get("/"))
        found = console.ask("GET", "/topics")
        assert (found.status, "Cannot connect" in found.text) == (502, True)
