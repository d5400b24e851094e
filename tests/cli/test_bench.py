"""`cometmq bench` as a process against a real broker, and its ledger."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.cli.bench.command import _SIZE_MIN, NAMES
from cometmq.cli.bench.latency import Latencies
from cometmq.cli.bench.ledger import Ledger, Outcome
from cometmq.cli.bench.pacing import OpenLoop
from cometmq.cli.bench.workloads import SIZE_MIN, WORKLOADS, Bodies
from cometmq.tests.harness.cluster import Cluster, cometmq_command, temporary, wait_until

QUICK = ("--seconds", "1s", "--warm-up", "0s", "--messages", "200", "--rate", "100")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with temporary("--single") as found:
        yield found


def bench(cluster: Cluster, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = cluster.run("bench", *words, "--endpoint", cluster.endpoints, check=False, timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def topics(cluster: Cluster) -> Any:
    done = cluster.run("topic", "list", "--endpoint", cluster.endpoints, "-o", "json")
    return [each["topic"] for each in json.loads(done.stdout)]


def test_the_names_of_the_command_are_those_of_the_workloads() -> None:
    assert tuple(WORKLOADS) == NAMES
    assert _SIZE_MIN == SIZE_MIN


def test_the_ledger_keeps_a_bounded_number_of_error_texts() -> None:
    ledger = Ledger()
    for number in range(1_200):
        ledger.sent(ledger.begin(), Outcome.FAILED, f"message {number}")
    assert len(ledger.errors) == 1_001
    assert sum(ledger.errors.values()) == 1_200


def test_every_workload_loses_nothing_and_removes_its_topic(
    cluster: Cluster, tmp_path: Path
) -> None:
    files = (tmp_path / "bench.json", tmp_path / "bench.html")
    words = ("all", *QUICK, "--json", str(files[0]), "--html", str(files[1]), "-o", "json")
    documents = json.loads(bench(cluster, *words).stdout)
    assert [each["workload"] for each in documents] == list(NAMES)
    for each in documents:
        for name in ("lost", "failed", "unknown", "out_of_order", "not_selected"):
            assert each[name] == 0, (each["workload"], name)
        assert each["messages"] > 0
        assert each["latency_ms"]["p50"] <= each["latency_ms"]["p99"] <= each["latency_ms"]["max"]
        assert each["acknowledged"] == each["sent"]
        # The broker runs on this machine.
        assert len(each["server_cpu_us"]) == 1
    by_name = {each["workload"]: each for each in documents}
    assert by_name["sql"]["received"] == by_name["sql"]["sent"] / 2
    assert by_name["end-to-end"]["messages"] == 100, "every message of the open loop is measured"
    assert json.loads(files[0].read_text()) == documents
    assert "uPlot" in files[1].read_text()
    assert topics(cluster) == []


def test_a_batch_counts_its_messages(cluster: Cluster) -> None:
    words = ("send", "--batch", "16", "--closed-loop", "--seconds", "1s", "-o", "json")
    (document,) = json.loads(bench(cluster, *words).stdout)
    assert document["messages"] % 16 == 0
    assert document["received"] == document["acknowledged"] == document["sent"]


def test_a_given_topic_and_group_are_used_and_kept(cluster: Cluster) -> None:
    for noun in ("topic", "group"):
        cluster.run(noun, "create", f"own-{noun}", "--endpoint", cluster.endpoints)
    names = ("--topic", "own-topic", "--group", "own-group")
    (document,) = json.loads(bench(cluster, "end-to-end", *QUICK, *names, "-o", "json").stdout)
    assert document["lost"] == 0
    assert topics(cluster) == ["own-topic"]
    delete = ("topic", "delete", "own-topic", "--accept-loss", "--yes")
    cluster.run(*delete, "--endpoint", cluster.endpoints)


def test_one_of_topic_and_group_is_refused(cluster: Cluster) -> None:
    assert "both --topic and --group" in bench(cluster, "send", "--topic", "a", code=2).stderr


def test_an_interrupted_run_removes_its_topic(cluster: Cluster) -> None:
    words = ("bench", "send", "--seconds", "1h", "--endpoint", cluster.endpoints)
    with subprocess.Popen(
        [*cometmq_command(), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until("its topic exists", lambda: topics(cluster) != [])
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert topics(cluster) == []


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=50))
def test_the_ledger_counts_lost_and_duplicated_messages(
    sends: list[tuple[bool, int]],
) -> None:
    ledger = Ledger()
    for is_acknowledged, receptions in sends:
        number = ledger.begin()
        outcome = Outcome.ACKNOWLEDGED if is_acknowledged else Outcome.UNKNOWN
        if receptions:  # the first may arrive before the answer to the send
            ledger.received(number)
        ledger.sent(number, outcome, "lost answer")
        for _ in range(receptions - 1):
            ledger.received(number)
    assert ledger.missing == sum(1 for acknowledged, times in sends if acknowledged and not times)
    assert ledger.duplicated == sum(max(0, times - 1) for _, times in sends)
    assert ledger.distinct_received == sum(1 for _, times in sends if times)


def test_the_ledger_counts_messages_out_of_order_once() -> None:
    ledger = Ledger()
    for number in range(4):
        assert ledger.begin() == number
        ledger.sent(number, Outcome.ACKNOWLEDGED)
    for number in (0, 2, 1, 1, 3):  # a repeated delivery is no disorder
        ledger.received(number, "group")
    assert (ledger.out_of_order, ledger.duplicated, ledger.missing) == (1, 1, 0)


def test_messages_that_the_filter_does_not_pass_are_not_missing() -> None:
    ledger = Ledger(step=2)
    for number in range(4):
        ledger.begin()
        ledger.sent(number, Outcome.ACKNOWLEDGED)
    ledger.received(0)
    assert (ledger.missing, ledger.not_selected) == (1, 0)
    ledger.received(3)
    assert ledger.not_selected == 1


@given(st.integers(SIZE_MIN, 2_000), st.integers(0, 2**64 - 1), st.integers(0, 2**63 - 1))
def test_a_body_carries_its_number_and_due_time(size: int, number: int, due_ns: int) -> None:
    bodies = Bodies(size)
    body = bodies.make(number, due_ns)
    assert len(body) == size
    assert bodies.read(body) == (number, due_ns)
    assert Bodies(size).read(body) is None, "the body is of another run"


async def test_sends_that_are_late_keep_their_due_times() -> None:
    pace = OpenLoop(1_000, 0.01)
    first = await pace.next()
    assert first is not None
    time.sleep(0.02)  # noqa: ASYNC251 - all other sends are late
    rest = [await pace.next() for _ in range(9)]
    assert rest == [first + period * 1_000_000 for period in range(1, 10)]
    assert await pace.next() is None
    await asyncio.sleep(0)


def test_the_curve_has_the_operations_of_each_second() -> None:
    latencies = Latencies()
    latencies.record(2_000_000, 32)
    latencies.end_second()
    latencies.end_second()
    assert [(each.messages, each.max_ms) for each in latencies.points] == [(32, 2.0), (0, None)]
    summary = latencies.summary()
    assert summary is not None
    assert summary["max"] == 2.0
