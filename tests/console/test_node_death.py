"""The console while a node ends: it shows the loss, goes on with another node, and starts alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cometmq.tests.console.served import serve
from cometmq.tests.harness.cluster import Cluster, wait_until


def test_the_console_outlives_its_node_and_tells_its_end(
    new_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = new_cluster().wait_in_sync()
    dead, alive = cluster.address("master"), cluster.address("slave")
    with serve(tmp_path, f"{dead};{alive}") as console:
        wait_until("the overview names the node", lambda: dead in console.get("/"))
        with console.stream() as stream:
            cluster.kill9("master")
            while "does not accept connections" not in (line := stream.readline().decode()):
                assert line, "the stream ended"
            assert dead in line
        wait_until("topics are read", lambda: console.ask("GET", "/topics").status == 200)


def test_a_console_without_a_cluster_starts_and_tells_so(tmp_path: Path) -> None:
    with serve(tmp_path, "127.0.0.1:1") as console:
        wait_until("the overview tells it", lambda: "Cannot connect" in console.get("/"))
        found = console.ask("GET", "/topics")
        assert (found.status, "Cannot connect" in found.text) == (502, True)
