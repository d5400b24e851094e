"""The programs of examples/ run, each as its README shows, against one real broker."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import cometmq
from cometmq.client.testing.broker import TestBroker
from cometmq.tests.harness.cluster import wait_until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TOPICS = {
    **{"orders": "normal", "shop-orders": "normal", "jobs": "normal", "results": "normal"},
    **{"placed": "transaction", "steps": "fifo"},
}
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker() as made:
        for name, kind in TOPICS.items():
            made.create_topic(name, type=kind)
        made.create_group("stepper", order=True)
        yield made


@pytest.fixture
def environment(broker: TestBroker, tmp_path: Path) -> dict[str, str]:
    database = str(tmp_path / "database.sqlite")
    place = {"COMETMQ_ENDPOINT": broker.endpoints, "DATABASE": database, "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **place}


def _run(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S * 4,
        check=False,
    )
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


@contextmanager
def _running(
    environment: dict[str, str], log: Path, *arguments: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program for a `with` block; it must end without an error after SIGTERM."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments], env=environment, stdout=output, stderr=output
        )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) in (0, -signal.SIGTERM), log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


def _port(log: Path) -> int:
    found = wait_until(
        "the server has a port", lambda: re.search(r"127\.0\.0\.1:(\d+)", _text(log))
    )
    return int(found[1])


def _text(log: Path) -> str:
    return log.read_text() if log.exists() else ""


def _answer(port: int, path: str, body: bytes | None = None, kind: str = "") -> dict[str, Any]:
    headers = {"content-type": kind} if kind else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def _orders(broker: TestBroker, count: int) -> list[dict[str, Any]]:
    """Receive a number of orders in a group of the test."""
    found: list[dict[str, Any]] = []
    end = time.monotonic() + LIMIT_S
    with cometmq.sync.SimpleConsumer(
        broker.endpoints, group="test", topics={"orders": "new"}
    ) as consumer:
        while len(found) < count and time.monotonic() < end:
            for message in consumer.receive(wait=1):
                consumer.ack(message)
                found.append(json.loads(message.body))
    return found


def test_the_fastapi_service_publishes_each_stored_order(
    broker: TestBroker, environment: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "service.log"
    service = ("-m", "uvicorn", "--app-dir", str(EXAMPLES / "fastapi_outbox"), "--port", "0")
    with _running(environment, log, *service, "service:app"):
        port = _port(log)
        for amount in (250, 300):
            body = json.dumps({"item": "tea", "amount": amount}).encode()
            assert _answer(port, "/orders", body, "application/json")["id"] > 0
        orders = _orders(broker, 2)
    assert sorted(order["amount"] for order in orders) == [250, 300]
    # The orders of the service are the input of the Spark job.
    report = _run(
        environment, str(EXAMPLES / "spark_report" / "report.py"), str(tmp_path / "report")
    )
    assert re.search(r"tea\s*\|\s*2\s*\|\s*550", report), report


def test_the_django_shop_handles_an_order(
    broker: TestBroker, environment: dict[str, str], tmp_path: Path
) -> None:
    manage = str(EXAMPLES / "django_shop" / "manage.py")
    _run(environment, manage, "migrate")
    server = (manage, "runserver", "--noreload", "127.0.0.1:0")
    with (
        _running(environment, tmp_path / "consumer.log", manage, "handle_orders"),
        _running(environment, tmp_path / "server.log", *server),
    ):
        port = _port(tmp_path / "server.log")
        number = _answer(port, "/orders", urllib.parse.urlencode({"item": "tea"}).encode())["id"]
        shown = f"/orders/{number}"
        wait_until("the order is handled", lambda: _answer(port, shown)["state"] == "handled")


def test_the_worker_pool_returns_the_results(environment: dict[str, str], tmp_path: Path) -> None:
    pool = EXAMPLES / "worker_pool"
    with _running(environment, tmp_path / "worker.log", str(pool / "worker.py")):
        results = _run(environment, str(pool / "submit.py"), "91", "221", "10403")
    assert sorted(results.splitlines()) == ["10403: 103", "221: 17", "91: 13"]


def test_the_workflow_performs_the_steps_of_each_order_in_order(
    environment: dict[str, str],
) -> None:
    program = str(EXAMPLES / "order_workflow" / "workflow.py")
    output = _run(environment, program, "o-1", "o-2", "o-3")
    assert output.splitlines() == [
        f"{order}: placed, reserved, paid, shipped" for order in ("o-1", "o-2", "o-3")
    ]
