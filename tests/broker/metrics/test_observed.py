"""The broker as operators and tests see it: metrics, probes, settings, clock and faults."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cometmq.broker.clients.registry import Client
from cometmq.broker.metrics.clients import SERIES_MAX, client_families
from cometmq.front.clock import Clock
from cometmq.front.metrics import http
from cometmq.front.metrics.families import Families
from cometmq.front.metrics.http import MetricsServer
from cometmq.front.process import loop_factory
from cometmq.ha.upkeep import Upkeep
from cometmq.proto import paths, v1, v2
from cometmq.tests.broker.desk import desk
from cometmq.tests.broker.live import (
    Live,
    create_topic,
    follower_of,
    running,
    settings,
    until,
)
from cometmq.tests.harness.wire import Wire, normal_message, receive_request


def get(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    """Return status and body of one HTTP request."""
    request = urllib.request.Request(f"http://{address}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def fetch(live: Live, path: str, method: str = "GET") -> tuple[int, str]:
    """Fetch from a test's event loop."""
    return await asyncio.to_thread(get, live.bound.metrics, path, method)


async def samples(live: Live) -> dict[str, list[Any]]:
    """Return all samples of a scrape by name."""
    status, text = await fetch(live, "/metrics")
    assert status == 200
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


async def test_group_and_creation_metrics_are_exported(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        await create_topic(wire, "t", queues=1)
        one.group("g", max_attempts=1)
        for body in (b"a", b"b" * 5_000, b"c"):
            await one.sent("t", body)
        await one.receive("t", "g", batch=1, invisible_ms=10_000)
        one.advance(10_001)
        await until(lambda: one.node.metadata.topic("%DLQ%g"))
        one.group("g")
        await one.receive("t", "g", batch=1, invisible_ms=10_000)
        one.advance(10_001)
        await until(lambda: one.node.metadata.topic("%RETRY%g_t"))
        await one.dispatched()
        found = await samples(one.live)

        def values(name: str) -> dict[tuple[str, str], float]:
            rows = found[f"rocketmq_consumer_{name}"]
            return {(row.labels["topic"], row.labels["is_retry"]): row.value for row in rows}

        assert values("lag_messages") == {("t", "false"): 1, ("t", "true"): 1}
        assert values("ready_messages") == {("t", "false"): 1, ("t", "true"): 1}
        assert values("lag_latency")["t", "false"] >= 20_000
        assert 0 <= values("queueing_latency")["t", "true"] < 20_000
        (dead,) = found["rocketmq_send_to_dlq_messages_total"]
        assert (dead.value, dead.labels["topic"], dead.labels["consumer_group"]) == (
            1,
            "t",
            "g",
        )
        sizes = {row.labels["le"]: row.value for row in found["rocketmq_message_size_bucket"]}
        assert (sizes["1024.0"], sizes["4096.0"], sizes["524288.0"]) == (2, 2, 3)
        made = found["rocketmq_topic_create_execution_time_count"]
        assert [(row.value, row.labels["invocation_status"]) for row in made] == [(1, "success")]
        waiting = {row.labels["processor"] for row in found["rocketmq_processor_watermark"]}
        assert {"send", "pull", "ack", "admin"} <= waiting


async def test_replication_and_scrub_metrics_are_exported(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live:
        live.node.replication.roles.counts["strangers"] += 3
        upkeep = live.node.replication.services
        assert isinstance(upkeep, Upkeep)
        await upkeep.scrub.run_once()
        _, text = await fetch(live, "/metrics")
        lines = [line for line in text.splitlines() if "cometmq_ha_events_total{" in line]
        found = {line.split('event="')[1].split('"')[0]: line.split()[-1] for line in lines}
        assert (found["strangers"], found["scrub_rounds"]) == ("3.0", "1.0")
        assert found["scrub_rotten"] == "0.0"


def tasks_by_name() -> list[str]:
    """Return the names of the coroutines of all tasks."""
    return [str(getattr(task.get_coro(), "__qualname__", "")) for task in asyncio.all_tasks()]


async def test_one_scrub_runs_per_store_after_a_reopening(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live:
        names = tasks_by_name()
        for name in ("Scrub._scrub_on", "Scrub._seal_on", "DiskFullHandover.run"):
            assert names.count(name) == 1, name
        live.server.instance._callbacks.reopen("its leader had it cut")
        await until(lambda: live.server.instances == 2 and live.server.alive)
        names = tasks_by_name()
        assert names.count("Scrub._scrub_on") == 1, "the earlier instance stopped its own tasks"


async def test_the_metrics_have_rocketmqs_names(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        await create_topic(wire, "t", queues=2)
        for number in range(4):
            await wire.send([normal_message("t", str(number), b"12345")])
        code, got = await wire.receive(receive_request("t", "g"))
        assert code == v2.OK
        await wire.ack("t", "g", got[:1])
        found = await samples(live)
        (sent,) = found["rocketmq_messages_in_total"]
        assert sent.value == 4
        assert sent.labels["topic"] == "t"
        assert sent.labels["message_type"] == "normal"
        assert sent.labels["cluster"] == "DefaultCluster"
        assert found["rocketmq_throughput_in_total"][0].value == 20
        assert found["rocketmq_messages_out_total"][0].value == len(got)
        assert found["rocketmq_consumer_inflight_messages"][0].value == len(got) - 1
        assert found["rocketmq_consumer_lag_messages"][0].value == 3
        assert found["rocketmq_topic_number"][0].value == 1
        assert found["rocketmq_consumer_group_number"][0].value == 1
        assert found["rocketmq_broker_permission"][0].value == 6
        assert found["rocketmq_storage_size"][0].value == live.node.store.log_end
        offsets = {s.labels["position"]: s.value for s in found["cometmq_log_offset"]}
        assert offsets["end"] == offsets["dispatched"] == live.node.store.log_end
        assert found["cometmq_in_sync_replicas"][0].value == 1
        assert found["cometmq_role"][0].labels["role"] == "leader"
        assert found["process_resident_memory_bytes"][0].value > 0
        assert found["rocketmq_storage_size_bytes"][0].value == live.node.store.log_end
        calls = {
            row.labels["request_code"]: row.value
            for row in found["rocketmq_rpc_latency_milliseconds_count"]
        }
        assert (calls["send_message"], calls["ack_message"], calls["receive_message"]) == (4, 1, 1)
        assert found["cometmq_messages_acked_total"][0].value == 1
        assert "cometmq_redelivered_without_handover_total" in found
        assert any(s.labels["call"] == "fallocate" for s in found["cometmq_disk_calls_total"])


async def test_probes_answer_while_the_broker_runs(tmp_path: Path) -> None:
    async with running(settings(tmp_path / "a")) as live:
        status, text = await fetch(live, "/livez")
        assert (status, json.loads(text)["checks"]["event_loop"]["state"]) == (200, "ok")
        status, text = await fetch(live, "/readyz?verbose")
        answer = json.loads(text)
        assert (status, answer["status"]) == (200, "ok")
        names = ("process", "store", "replication", "writes", "messages")
        assert {name: each["state"] for name, each in answer["checks"].items()} == dict.fromkeys(
            names, "ok"
        )
        since = datetime.fromisoformat(answer["checks"]["store"]["since"])
        assert since <= datetime.now(UTC)
        assert await fetch(live, "/readyz", "HEAD") == (200, "")
        assert (await fetch(live, "/readyz", "POST"))[0] == 405
        assert (await fetch(live, "/"))[0] == 404
        async with running(follower_of(live.bound, tmp_path / "b")) as follower:
            await until(lambda: follower.node.replication.leader_alive)
            assert (await fetch(follower, "/readyz"))[0] == 200
            await live.server.stop(0.1)
            await until(lambda: not follower.node.replication.leader_alive)
            status, text = await fetch(follower, "/readyz")
            check = json.loads(text)["checks"]["replication"]
            assert (status, check["state"]) == (503, "failed")
            assert check["reason"] == "the leader is not reachable"
            assert (await fetch(follower, "/livez"))[0] == 200


async def test_a_diverged_follower_is_not_ready(tmp_path: Path) -> None:
    alone = settings(tmp_path / "b")
    async with running(alone) as other, other.client() as wire:
        await create_topic(wire, "t")
    async with (
        running(settings(tmp_path / "a")) as live,
        running(follower_of(live.bound, tmp_path / "b")) as follower,
    ):
        await until(lambda: follower.node.replication.refused is not None)
        status, text = await fetch(follower, "/readyz")
        assert status == 503
        assert json.loads(text)["checks"]["replication"]["reason"].startswith("DIVERGED")


@pytest.mark.parametrize("junk", [b"\r\n\r\n", b"x" * 10_000 + b"\r\n\r\n", b"GET /livez"])
async def test_garbage_on_the_metrics_port_is_rejected(junk: bytes) -> None:
    server = MetricsServer(lambda: lambda: b"", dict, Clock())
    port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(junk)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 400") or answer == b""
    writer.close()
    assert (await asyncio.to_thread(get, f"127.0.0.1:{port}", "/livez"))[0] == 200
    await server.stop()


async def test_slow_readers_of_metrics_are_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_ANSWER_S", 0.3)
    page = b"x" * 20_000_000
    renderings: list[None] = []

    def render() -> bytes:
        renderings.append(None)
        return page

    server = MetricsServer(lambda: render, dict, Clock())
    port = await server.start("127.0.0.1", 0)
    before = psutil.Process().memory_full_info().uss
    opened = []
    for _ in range(12):
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        slow.connect(("127.0.0.1", port))
        slow.send(b"GET /metrics HTTP/1.1\r\n\r\n")
        opened.append(slow)
    await until(lambda: renderings)
    await asyncio.sleep(0.1)
    grown = psutil.Process().memory_full_info().uss - before
    assert grown < 32 << 20, f"{grown >> 20} MiB for twelve readers"
    assert (await asyncio.to_thread(get, f"127.0.0.1:{port}", "/livez"))[0] == 200
    await until(lambda: not server._connections)
    for slow in opened:
        received = 0
        with slow, suppress(ConnectionResetError):
            while data := await asyncio.to_thread(slow.recv, 1 << 20):
                received += len(data)
        assert received < len(page)
    monkeypatch.setattr(http, "_ANSWER_S", 60.0)  # a reader that reads may be slow as well
    status, text = await asyncio.to_thread(get, f"127.0.0.1:{port}", "/metrics")
    assert (status, len(text)) == (200, len(page))
    await server.stop()


async def test_idle_connections_do_not_keep_probes_out() -> None:
    server = MetricsServer(lambda: lambda: b"", dict, Clock())
    port = await server.start("127.0.0.1", 0)
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
    assert (await asyncio.to_thread(get, f"127.0.0.1:{port}", "/livez"))[0] == 200
    assert len(server._connections) <= 32
    for _, writer in idle:
        writer.transport.abort()
    await server.stop()


async def test_scrapes_at_the_same_time_get_one_page() -> None:
    renderings: list[None] = []
    release = threading.Event()

    def render() -> bytes:
        renderings.append(None)
        release.wait(60)
        return b"page"

    server = MetricsServer(lambda: render, dict, Clock())
    port = await server.start("127.0.0.1", 0)
    address = f"127.0.0.1:{port}"
    scrapes = [asyncio.create_task(asyncio.to_thread(get, address, "/metrics")) for _ in range(3)]
    await until(lambda: len(server._readers) == 3)
    release.set()
    assert await asyncio.gather(*scrapes) == [(200, "page")] * 3
    assert len(renderings) == 1
    await server.stop()


def test_clients_cannot_grow_the_metrics_page() -> None:
    clients = [
        Client(f"c{n}", "JAVA", f"5.0.{n}", "", 0, client_type=v2.PUSH_CONSUMER, group="g")
        for n in range(5_000)
    ]
    clients += [Client(f"d{n}", "x" * 64, f'"{n}\n', "", 0) for n in range(5_000)]
    clients += [Client("e", "GOLANG", "v5.1.3-rc1", "", 0)]
    producers, consumers = client_families(clients, Families("C", "broker", "b-0"))
    assert len(consumers.samples) == SERIES_MAX + 1
    assert sum(sample.value for sample in consumers.samples) == 5_000
    found = {(s.labels["language"], s.labels["version"]): s.value for s in producers.samples}
    assert found == {("other", "other"): 5_000, ("GOLANG", "v5.1.3-rc1"): 1}


async def ask(wire: Wire, path: str, request: Any, answer: type[Any]) -> Any:
    """Call the test service."""
    return await wire.call(path, request, answer)


async def test_advancing_the_clock_delivers_due_messages(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        await create_topic(wire, "t", queues=1)
        await wire.send([normal_message("t", "id", b"x")])
        code, (first,) = await wire.receive(receive_request("t", "g"))
        assert code == v2.OK
        poll = asyncio.create_task(wire.receive(receive_request("t", "g", await_s=8), 12))
        await until(lambda: live.node.pop.waiting == 1)
        before = await ask(wire, paths.GET_CLOCK, v1.GetClockRequest(), v1.ClockResponse)
        moved = await ask(
            wire, paths.ADVANCE_CLOCK, v1.AdvanceClockRequest(ms=61_000), v1.ClockResponse
        )
        assert moved.wall_ms - before.wall_ms >= 61_000
        assert moved.steady_ns - before.steady_ns < 30_000_000_000
        code, (second,) = await poll
        assert code == v2.OK
        assert second.system_properties.delivery_attempt == 2
        assert second.body == first.body
        for wall_ms in (-1, 1 << 60):
            bad = await ask(
                wire, paths.SET_CLOCK, v1.SetClockRequest(wall_ms=wall_ms), v1.ClockResponse
            )
            assert bad.code == v2.BAD_REQUEST
        fixed = await ask(
            wire, paths.SET_CLOCK, v1.SetClockRequest(wall_ms=5_000), v1.ClockResponse
        )
        assert 5_000 <= fixed.wall_ms < 60_000


def fault(**fields: Any) -> v1.PutFaultRequest:
    """Return a fault that applies to every call unless changed."""
    return v1.PutFaultRequest(fault=v1.Fault(**{"rate": 1.0, **fields}))


async def test_faults_are_set_listed_and_cleared(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        await create_topic(wire, "t", queues=1)
        refused = await ask(wire, paths.PUT_FAULT, fault(id="x"), v1.PutFaultResponse)
        assert refused.code == v2.BAD_REQUEST
        put = fault(
            id="one",
            kind=v1.RPC,
            target=paths.SEND_MESSAGE,
            action=v1.FAIL,
            code=v2.TOO_MANY_REQUESTS,
            remaining=1,
        )
        assert (await ask(wire, paths.PUT_FAULT, put, v1.PutFaultResponse)).code == v2.OK
        failed = await wire.send([normal_message("t", "id", b"x")])
        assert failed.status.code == v2.TOO_MANY_REQUESTS
        assert (await wire.send([normal_message("t", "id", b"x")])).status.code == v2.OK
        put = fault(id="two", kind=v1.DISK, target="pwrite", action=v1.DELAY, delay_ms=1)
        await ask(wire, paths.PUT_FAULT, put, v1.PutFaultResponse)
        listed = await ask(wire, paths.LIST_FAULTS, v1.ListFaultsRequest(), v1.ListFaultsResponse)
        assert ("two", v1.DISK, v1.DELAY) in [
            (one.id, one.kind, one.action) for one in listed.faults
        ]
        cleared = await ask(
            wire, paths.CLEAR_FAULTS, v1.ClearFaultsRequest(), v1.ClearFaultsResponse
        )
        assert cleared.cleared == len(listed.faults)
        counters = await ask(
            wire, paths.GET_COUNTERS, v1.GetCountersRequest(), v1.GetCountersResponse
        )
        assert counters.counters["messages_sent"] == 1
        assert counters.disk_calls["pwrite"] > 0


async def test_a_full_disk_fails_sends_without_partial_writes(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        put = fault(id="full", kind=v1.DISK, target="fallocate", action=v1.FAIL, code=28)
        await ask(wire, paths.PUT_FAULT, put, v1.PutFaultResponse)
        refused = await create_topic(wire, "t")
        assert refused.code == v2.INTERNAL_SERVER_ERROR
        assert live.node.metadata.topic("t") is None
        assert live.node.store.log_end == 0
        await ask(wire, paths.CLEAR_FAULTS, v1.ClearFaultsRequest(), v1.ClearFaultsResponse)
        await until(lambda: live.node.store.writable)
        for _ in range(100):
            if (await create_topic(wire, "t")).code == v2.OK:
                break
            await asyncio.sleep(0.05)
        assert live.node.metadata.topic("t") is not None


async def test_settings_are_listed_with_their_origin(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        request = v1.GetConfigRequest(keys=["brokerName", "clusterToken", "testHooks"])
        answer = await wire.call(paths.GET_CONFIG, request, v1.GetConfigResponse)
        assert [(e.key, e.value, e.origin) for e in answer.entries] == [
            ("brokerName", "broker-a", "default"),
            ("clusterToken", "", "default"),
            ("testHooks", "true", "set"),
        ]
        whole = await wire.call(paths.GET_CONFIG, v1.GetConfigRequest(), v1.GetConfigResponse)
        assert {"mappedFileSizeCommitLog", "haListenPort", "frontDoor"} <= {
            entry.key for entry in whole.entries
        }
        changeable = {entry.key for entry in whole.entries if entry.at_run_time}
        assert {"fileReservedTime", "maxTopics"} <= changeable
        assert "brokerName" not in changeable
        missing = await wire.call(
            paths.GET_CONFIG, v1.GetConfigRequest(keys=["nope"]), v1.GetConfigResponse
        )
        assert missing.code == v2.NOT_FOUND


async def test_the_test_service_is_served_only_if_enabled(tmp_path: Path) -> None:
    async with running(settings(tmp_path, test_hooks=False)) as live, live.client() as wire:
        with pytest.raises(Exception, match="UNIMPLEMENTED"):
            await ask(wire, paths.GET_CLOCK, v1.GetClockRequest(), v1.ClockResponse)


def test_a_connection_that_was_closed_for_newer_ones_is_not_written_to() -> None:
    """On the loop of server processes: uvloop refuses a write that asyncio drops."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_read_after_newer_ones())


async def _read_after_newer_ones() -> None:
    release = threading.Event()
    failed: list[dict[str, Any]] = []
    server = MetricsServer(lambda: lambda: b"page" if release.wait(20) else b"", dict, Clock())
    asyncio.get_running_loop().set_exception_handler(lambda _, found: failed.append(found))
    port = await server.start("127.0.0.1", 0)
    opened = []
    for _ in range(6):
        opened.append(await asyncio.open_connection("127.0.0.1", port))
        opened[-1][1].write(b"GET /metrics HTTP/1.1\r\n\r\n")
    with suppress(ConnectionError):
        assert await opened[0][0].read() == b""
    release.set()
    assert (await opened[-1][0].read()).endswith(b"page")
    for _, writer in opened:
        writer.close()
    await server.stop()
    gc.collect()
    await asyncio.sleep(0)
    assert not failed
