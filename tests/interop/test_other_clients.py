"""The official Go, Java and Node.js clients with default settings.

Java and Go use TLS by default, which the native door accepts on the same port. Each client uses
sends, receives, retries, FIFO, delays, recalls and transactions against a cluster of master and
slave. Programs are built once into `.cache`; a missing tool skips the test with a reason.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.proto.native import is_available
from cometmq.tests.harness.cluster import Cluster
from cometmq.tests.interop.programs import go, java, node

RUN_S, COUNT = 240.0, 20
#: Parts of what each client raises for NOT_FOUND; the Go client cannot recall.
LATE = {"java": ("NotFoundException", "40400"), "node": ("too late", "40400"), "go": ()}

pytestmark = [
    pytest.mark.timeout(900),  # the first run fetches and builds
    pytest.mark.skipif(
        not is_available(),
        reason="the native door is not installed (scripts/native_door builds it where Rust is)",
    ),
]


def make_names(cluster: Cluster, mark: str) -> None:
    """Create the topics and groups that the programs use."""
    for kind in ("normal", "fifo", "delay", "transaction"):
        cluster.create_topic(f"{mark}-{kind}", kind=kind, queues=4)
    cluster.create_group(f"{mark}-group")
    cluster.create_group(f"{mark}-ordered", order=True)


@pytest.mark.pitfall(1, 2, 54)
@pytest.mark.parametrize("client", [go, java, node], ids=lambda client: client.__name__)
def test_a_client_with_default_settings_does_everything(
    client: Callable[[], list[str]], shared_cluster: Cluster, tmp_path: Path
) -> None:
    command = client()
    language = client.__name__
    # Both nodes at once: the leader, and the follower, which forwards.
    running = [
        start(
            command=command,
            cluster=shared_cluster,
            node=node,
            mark=f"{language}-{node}",
            home=tmp_path / node,
        )
        for node in ("master", "slave")
    ]
    for process in running:
        output, errors = process.communicate(timeout=RUN_S)
        assert process.returncode == 0, (output + errors)[-2_000:]
        expect(json.loads(output.splitlines()[-1]), language)


def start(
    *,
    command: list[str],
    cluster: Cluster,
    node: str,
    mark: str,
    home: Path,
    what: str = str(COUNT),
) -> subprocess.Popen[str]:
    """Run a program against one node, with separate topics, groups and home directory."""
    make_names(cluster, mark)
    home.mkdir()
    where = {"HOME": str(home), "JAVA_TOOL_OPTIONS": f"-Duser.home={home}"}
    return subprocess.Popen(
        [*command, cluster.address(node), mark, what],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **where},
    )


def expect(seen: dict[str, Any], language: str) -> None:
    """Check the output that every program must have."""
    numbers = range(COUNT)
    assert sorted(seen["sent"]) == sorted(seen["got"])
    assert sorted(seen["got"].values()) == sorted(f"{language}-{n}" for n in numbers)
    assert seen["retry"] == [1, 2]
    assert seen["order"] == [str(n) for n in numbers]
    assert seen["delay"]["body"] == "later", "what was recalled came"
    assert seen["delay"]["came"] >= seen["delay"]["due"]
    for text in LATE[language]:
        assert text in seen["late"], "a recall that is too late raises"
    assert sorted(seen["transact"]) == ["commit", "open"]
    assert "open" in seen["asked"]
