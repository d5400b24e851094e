"""A wrong setting raises its own exception at once; the message names the correction."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import cometmq
from cometmq.client.errors import BadRequest, NotFound, TlsFailed, WrongServer
from cometmq.client.transport.addresses import parse_endpoints
from cometmq.client.transport.outages import REPEAT_S, Outages
from cometmq.proto import paths, v2
from cometmq.tests.harness.cluster import Cluster

from .conftest import Make
from .strange_broker import StrangeBroker, until

# A client that waited for its own timeout would exceed the limit of each test.
PATIENT: dict[str, Any] = {"request_timeout": 600.0, "timeout": 600.0}
WAIT_S = 60.0
RECEIVE = paths.RECEIVE_MESSAGE


async def ignore(_: cometmq.Message) -> None:
    """Handle a message."""


async def started(client: cometmq.Producer | cometmq.PushConsumer | cometmq.SimpleConsumer) -> None:
    """Start and close a client."""
    async with asyncio.timeout(WAIT_S), client:
        pass


@pytest.mark.parametrize(
    ("group", "wanted", "sentence"),
    [
        ("g", cometmq.sql("price >>> 1"), "invalid SQL expression: unexpected '>'"),
        ("a group!", "*", "consumer group 'a group!' may hold only letters"),
        ("", "*", "the consumer group is blank"),
    ],
)
async def test_a_refused_consumer_gets_the_sentence_of_the_broker(
    shared_cluster: Cluster, new_topic: Make, group: str, wanted: Any, sentence: str
) -> None:
    where, topics = shared_cluster.endpoints, {new_topic(): wanted}
    with pytest.raises(BadRequest, match=sentence):
        await started(cometmq.PushConsumer(where, ignore, group=group, topics=topics, **PATIENT))
    with pytest.raises(BadRequest, match=sentence):
        await started(cometmq.SimpleConsumer(where, group=group, topics=topics, **PATIENT))


async def test_the_advice_for_a_missing_topic_names_the_type_of_the_message(
    shared_cluster: Cluster,
) -> None:
    async with cometmq.Producer(shared_cluster.endpoints) as producer:
        with pytest.raises(NotFound, match="topic create absent`"):
            await producer.send("absent", b"x")
        with pytest.raises(NotFound, match="topic create absent --type fifo`"):
            await producer.send("absent", b"x", group="g")


async def test_a_certificate_of_an_unknown_authority_is_named(shared_cluster: Cluster) -> None:
    with pytest.raises(TlsFailed, match=r"tls_roots|plaintext"):
        await started(cometmq.Producer(shared_cluster.endpoints, tls=True, **PATIENT))


async def test_tls_to_a_plaintext_port_is_named() -> None:
    async with StrangeBroker.running() as broker:
        with pytest.raises(TlsFailed, match="omit tls=True"):
            await started(cometmq.Producer(broker.endpoints, tls=True, **PATIENT))


@pytest.mark.parametrize(
    ("process", "port"), [("master", "metrics"), ("master", "ha"), ("namesrv", "namesrv")]
)
async def test_a_port_of_another_server_is_named(
    shared_cluster: Cluster, process: str, port: str
) -> None:
    where = f"127.0.0.1:{shared_cluster.node(process).ports[port]}"
    with pytest.raises(WrongServer, match="name the client port of a broker or proxy"):
        await started(cometmq.Producer(where, **PATIENT))
    if process == "namesrv":
        return  # it answers routes; a consumer of an unknown topic may get NotFound first
    with pytest.raises(WrongServer, match="name the client port of a broker or proxy"):
        await started(cometmq.SimpleConsumer(where, group="g", topics="t", **PATIENT))


async def test_a_temporary_refusal_does_not_end_a_start() -> None:
    async with StrangeBroker.running() as broker:
        busy = v2.Status(code=v2.TOO_MANY_REQUESTS, message="[QUOTA] wait")
        broker.first_commands.append(v2.TelemetryCommand(status=busy))
        await started(cometmq.Producer(broker.endpoints, **PATIENT))


async def test_a_start_without_a_broker_ends_with_the_reason() -> None:
    with pytest.raises(cometmq.ConnectionFailed, match="Connection refused"):
        await started(cometmq.Producer("127.0.0.1:1", request_timeout=0.1))


def test_an_outage_is_logged_once_and_then_every_minute(caplog: pytest.LogCaptureFixture) -> None:
    target, outages = parse_endpoints("127.0.0.1:8081"), Outages()
    for second in range(int(2.5 * REPEAT_S)):
        outages.failed(target, "UNAVAILABLE", float(second))
    outages.answered(target, 2.5 * REPEAT_S)
    outages.answered(target, 3 * REPEAT_S)
    assert [record.getMessage() for record in caplog.records] == [
        "client.broker_away target=127.0.0.1:8081 error=UNAVAILABLE",
        "client.broker_away target=127.0.0.1:8081 for_s=60 failed_calls=61 error=UNAVAILABLE",
        "client.broker_away target=127.0.0.1:8081 for_s=120 failed_calls=121 error=UNAVAILABLE",
        "client.broker_back target=127.0.0.1:8081 after_s=150.0",
    ]


def test_a_refusal_that_repeats_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages()
    for second in range(round(REPEAT_S) + 1):
        outages.refused("UNIMPLEMENTED", second)
    outages.refused("UNAUTHENTICATED", REPEAT_S)
    assert caplog.messages == [
        "client.refused_by_server error=UNIMPLEMENTED",
        "client.refused_by_server error=UNIMPLEMENTED",
        "client.refused_by_server error=UNAUTHENTICATED",
    ]


async def test_a_consumer_logs_that_its_broker_is_away(caplog: pytest.LogCaptureFixture) -> None:
    async with StrangeBroker.running() as broker:
        consumer = cometmq.PushConsumer(broker.endpoints, ignore, group="g", topics="t")
        await consumer.start()
        await until(lambda: broker.calls[RECEIVE] > 0)
    try:
        await until(lambda: f"client.broker_away target={broker.endpoints}" in caplog.text)
    finally:
        await consumer.close()


async def test_the_traceback_of_a_handler_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: cometmq.Message) -> None:
        raise ValueError("a bad amount")

    async with StrangeBroker.running() as broker:
        broker.deliver("m1")
        with caplog.at_level(logging.WARNING):
            async with cometmq.PushConsumer(broker.endpoints, fail, group="g", topics="t"):
                await until(lambda: "push.handler_failed" in caplog.text)
    assert 'raise ValueError("a bad amount")' in caplog.text


PROGRAM = """
import logging, sys, cometmq
logging.basicConfig(level="WARNING", stream=sys.stdout)
@cometmq.consumer(sys.argv[1], group="g", topics="t", request_timeout=600.0, timeout=600.0)
async def handle(message): pass
handle.run()
"""


@asynccontextmanager
async def program(endpoints: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that runs a consumer."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, endpoints), stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def interrupted(process: asyncio.subprocess.Process) -> int:
    """Wait until the program has lost its broker, send SIGINT, return the exit code."""
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_S):
        while b"client.broker_away" not in (line := await process.stdout.readline()):
            assert line, "the program ended"
        process.send_signal(signal.SIGINT)
        return await process.wait()


async def test_run_obeys_sigint_while_it_waits_for_its_first_broker() -> None:
    async with program("127.0.0.1:1") as process:
        assert await interrupted(process) == 0


async def test_run_obeys_sigint_while_its_broker_is_away() -> None:
    async with StrangeBroker.running() as broker:
        running = program(broker.endpoints)
        process = await running.__aenter__()
        await until(lambda: broker.calls[RECEIVE] > 0)
    try:
        assert await interrupted(process) == 0
    finally:
        await running.__aexit__(None, None, None)
