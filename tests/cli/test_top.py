"""`cometmq top` as a process against a real broker, and rates between two looks."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from cometmq.tests.harness.cluster import Cluster, cometmq_command, temporary, wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with temporary("--single") as found:
        at = ("--endpoint", found.endpoints)
        found.run("topic", "create", "watched", "--queues", "1", *at)
        found.run("group", "create", "watchers", *at)
        found.run("message", "send", "watched", "x", "--count", "7", *at)
        found.run("offset", "reset", "watchers", "watched", "earliest", *at)
        yield found


def test_one_look_shows_rates_roles_disk_and_lag(cluster: Cluster) -> None:
    at = ("--endpoint", cluster.endpoints)
    found = json.loads(cluster.run("top", "--once", "-o", "json", *at).stdout)
    (broker,) = found["brokers"]
    assert (broker["broker"], broker["leader"], broker["in_sync"]) == ("broker-a", 0, "1 of 1")
    assert broker["sent_per_s"] >= 0
    assert 0 <= broker["disk_percent"] <= 100
    (replica,) = found["replicas"]
    assert (replica["role"], replica["alive"]) == ("leader", True)
    (watchers,) = [row for row in found["consumers"] if row["group"] == "watchers"]
    assert (watchers["lag"], watchers["lag_per_s"]) == (7, None)
    shown = cluster.run("top", "--once", *at).stdout
    for words in ("broker groups", "replicas", "consumer groups", "watchers"):
        assert words in shown
    absent = cluster.run("top", "--once", "--endpoint", "127.0.0.1:1", check=False)
    assert absent.returncode == 1
    assert "Cannot connect" in absent.stderr


def test_looks_repeat_until_ctrl_c(cluster: Cluster) -> None:
    words = ("top", "--interval", "200ms", "-o", "json", "--endpoint", cluster.endpoints)
    with subprocess.Popen(
        [*cometmq_command(), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            first, second = (json.loads(process.stdout.readline()) for _ in range(2))
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert first["time_ms"] < second["time_ms"]
    rates: list[Any] = [
        row["lag_per_s"] for row in second["consumers"] if row["group"] == "watchers"
    ]
    assert rates == [0.0]


def test_a_terminal_shows_the_tables(cluster: Cluster) -> None:
    ours, theirs = pty.openpty()
    text = b""

    def shows(words: bytes) -> bool:
        nonlocal text
        if select.select([ours], [], [], 0.1)[0]:
            text += os.read(ours, 65_536)
        return words in text

    with subprocess.Popen(
        [*cometmq_command(), "top", "--endpoint", cluster.endpoints],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "60"},
    ) as process:
        try:
            wait_until("the lag is shown", lambda: shows(b"watchers"))
            process.send_signal(signal.SIGINT)
            wait_until("it ends", lambda: shows(b"\x1b[?1049l"))
            assert process.wait(60) == 130
        finally:
            process.kill()
            os.close(ours)
            os.close(theirs)
