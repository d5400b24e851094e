"""OpenTelemetry spans from send to acknowledgement, exported to a collector over OTLP."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import cometmq
from cometmq.broker.trace.spans import _parsed
from cometmq.client.tracing import Tracing
from cometmq.tests.broker.desk import desk, message
from cometmq.tests.broker.live import running, settings

PARENT = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


@contextmanager
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Run an OTLP collector; yield the spans that it receives."""
    spans: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            import gzip

            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    spans.extend(scope.spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: Any) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    try:
        yield spans
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def attributes(span: Any) -> dict[str, Any]:
    """Return the attributes of an exported span."""
    return {
        each.key: getattr(each.value, str(each.value.WhichOneof("value")))
        for each in span.attributes
    }


async def test_a_message_has_spans_from_send_to_acknowledgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    producing = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(producing))
    with collector(monkeypatch) as spans:
        chosen = settings(tmp_path, trace_spans_enable=True)
        async with running(chosen) as live:
            from cometmq.broker.metadata.tables import Topic

            live.node.meta_log.write_topic(Topic("t", 1, 1))
            tracing = Tracing(provider.get_tracer("test"))
            async with cometmq.Producer(live.bound.client, interceptors=[tracing]) as producer:
                receipt = await producer.send("t", b"12345")
            consumer = cometmq.SimpleConsumer(live.bound.client, group="g", topics="t")
            async with consumer:
                (got,) = await consumer.receive()
                await consumer.ack(got)
    (root,) = producing.get_finished_spans()
    assert root.context is not None
    by_name = {span.name: span for span in spans}
    assert sorted(by_name) == ["deliver t", "replicate t", "send t", "settle t", "store t"]
    trace_id = root.context.trace_id.to_bytes(16, "big")
    assert {span.trace_id for span in spans} == {trace_id}
    send, deliver = by_name["send t"], by_name["deliver t"]
    parents = {
        name: by_name[name].parent_span_id for name in ("store t", "replicate t", "settle t")
    }
    assert parents == {
        "store t": send.span_id,
        "replicate t": send.span_id,
        "settle t": deliver.span_id,
    }
    producer_id = root.context.span_id.to_bytes(8, "big")
    assert send.parent_span_id == deliver.parent_span_id == producer_id
    assert send.start_time_unix_nano <= by_name["store t"].end_time_unix_nano
    assert by_name["replicate t"].end_time_unix_nano == send.end_time_unix_nano
    sent = attributes(send)
    assert sent["messaging.system"] == "rocketmq"
    assert sent["messaging.destination.name"] == "t"
    assert sent["messaging.message.id"] == receipt.message_id
    assert sent["messaging.message.body.size"] == 5
    for span in (deliver, by_name["settle t"]):
        assert attributes(span)["messaging.consumer.group.name"] == "g"
        assert attributes(span)["messaging.message.id"] == receipt.message_id


async def test_only_sampled_messages_have_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector(monkeypatch) as spans:
        async with desk(tmp_path, trace_spans_enable=True) as one:
            one.topic("t")
            dropped = {"traceparent": PARENT[:-2] + "00"}
            await one.send(message("t", b"1"), message("t", b"2", properties=dropped))
            await one.send(message("t", b"3", trace_context=PARENT))
            await one.dispatched()
            got = await one.receive("t", "g")
            assert len(got.handles) == 3
            one.ack("t", "g", *got.handles)
    assert len(spans) == 5
    assert {span.trace_id for span in spans} == {bytes.fromhex("ab" * 16)}


async def test_a_send_that_is_not_stored_has_a_failed_span(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector(monkeypatch) as spans:
        async with desk(tmp_path, trace_spans_enable=True) as one:
            one.topic("t")

            def broken(_messages: object) -> None:
                raise OSError("the disk broke")

            monkeypatch.setattr(one.node.store.writer, "append_many", broken)
            await one.send(message("t", b"1", properties={"traceparent": PARENT}))
            monkeypatch.undo()
    assert {(span.name, span.status.code) for span in spans} == {("send t", 2), ("store t", 2)}


def test_a_context_that_is_invalid_is_ignored() -> None:
    assert _parsed(PARENT.encode()) is not None
    for text in (
        "",
        "x",
        PARENT[:-1],
        "ff" + PARENT[2:],
        PARENT.replace("ab", "00"),
        PARENT.replace("cd", "xx"),
        PARENT.replace("-", "_"),
    ):
        assert _parsed(text.encode()) is None, text


def test_without_spans_opentelemetry_is_not_loaded() -> None:
    program = (
        "import sys, cometmq.broker.server\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
