"""OpenTelemetry spans of the broker: send, store, replicate, deliver, settle. Opt-in.

A message has spans if the producer's context says so: the user property `traceparent` (W3C Trace
Context, as the SDK writes it), or the trace context of the protocol's system properties, with the
sampled flag. All spans are children of the producer's, those of an acknowledgement of its delivery:

    send TOPIC         from the arrival of the request to its answer
      store TOPIC      until the message is in the log
      replicate TOPIC  until it is as durable as the broker's settings require
    deliver TOPIC      a delivery to a consumer group
      settle TOPIC     its acknowledgement

Names and attributes follow OpenTelemetry's semantic conventions for messaging. Promises: spans are
exported by a thread of OpenTelemetry with a bounded queue, which drops what it cannot hold; a
message without a sampled context costs one search in its properties; without this object nothing is
done. OpenTelemetry is imported by `exporting_tracer` only.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ...front.clock import Clock
from ...store.format.properties import property_value

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    from ...store.format.record import Delivery
    from .sent import SentMessages

_NS_PER_MS: Final = 1_000_000
#: Deliveries whose acknowledgement finds its parent; about 1 KB each.
DELIVERIES_MAX: Final = 10_000
#: 00-<trace id>-<span id>-<flags>
_PARENT_BYTES: Final = 55
_SAMPLED: Final = 1
#: Around the ids of every context that `_parsed` accepts.
_CONTEXT: Final = re.compile(rb"-[^-]{32}-[^-]{16}-", re.DOTALL)
_FAREWELL_S: Final = 2.0
_CARRIERS: Final = (b"traceparent", b"TRACE_CONTEXT")


def exporting_tracer(service: str) -> tuple[Tracer, Any]:
    """Return a tracer that exports with OTLP over HTTP, and its provider, to be shut down.

    OpenTelemetry's usual variables apply (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, ...).
    Raises ValueError if OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ValueError(
            f"traceSpansEnable=true needs OpenTelemetry ({error}): pip install 'cometmq[otel]'."
        ) from None
    resource = Resource.create({"service.name": "cometmq", "service.instance.id": service})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer("cometmq.broker"), provider


async def stop_exporting(provider: Any) -> None:
    """Export what is queued, for at most `_FAREWELL_S`: the collector may be unreachable."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def shut_down() -> None:
        provider.shutdown()
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(done.set)

    # A daemon: the process does not wait for it at its end.
    threading.Thread(target=shut_down, daemon=True).start()
    with suppress(TimeoutError):
        async with asyncio.timeout(_FAREWELL_S):
            await done.wait()


class Spans:
    """The spans of one broker; used on its event loop."""

    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        from opentelemetry import trace

        self._api = trace
        self._tracer = tracer
        self._clock = clock
        #: By group and receipt handle; the oldest first.
        self._deliveries: OrderedDict[tuple[str, str], tuple[str, Context]] = OrderedDict()

    def arrived(self, ready: SentMessages, begin_ns: int) -> RequestSpans | None:
        """Open the spans of a request's sampled messages; `begin_ns` is its arrival, steady."""
        now_ns = self.now_ns()
        start_ns = now_ns - max(0, self._clock.steady_ns() - begin_ns) if begin_ns else now_ns
        spans: list[tuple[Span, Span]] = []
        for message in ready.messages:
            parent = self._parent(message.properties)
            if parent is not None:
                ident = _message_id(message.properties)
                attributes = {**_attributes(ready.topic, ident, "send"), _BODY: len(message.body)}
                send = self._start("send", ready.topic, parent, start_ns, attributes, server=True)
                inner = self._api.set_span_in_context(send)
                spans.append((send, self._start("store", ready.topic, inner, start_ns)))
        return RequestSpans(self, ready.topic, spans) if spans else None

    def may_start(self, raw: bytes) -> bool:
        """Return whether an encoded request may hold a sampled context; True for some that do
        not."""
        return _CONTEXT.search(raw) is not None

    def received(self, group: str, handle: str, record: Delivery, attempt: int, topic: str) -> None:
        """Record the delivery of a message to a consumer of the group."""
        parent = self._parent(record.properties)
        if parent is None:
            return
        ident = _message_id(record.properties)
        attributes = {
            **_attributes(topic, ident, "receive"),
            _GROUP: group,
            "messaging.rocketmq.message.delivery_attempt": attempt,
            "messaging.rocketmq.queue.id": record.queue_id,
            "messaging.rocketmq.queue.offset": record.queue_offset,
        }
        now_ns = self.now_ns()
        span = self._start("deliver", topic, parent, now_ns, attributes, server=True)
        span.end(now_ns)
        while len(self._deliveries) >= DELIVERIES_MAX:
            self._deliveries.popitem(last=False)
        context = self._api.set_span_in_context(span)
        self._deliveries[group, handle] = (topic, context)

    def acked(self, group: str, handle: str, message_id: str) -> None:
        """Record the acknowledgement of a delivery, if that was recorded."""
        delivered = self._deliveries.pop((group, handle), None)
        if delivered is None:
            return
        topic, context = delivered
        attributes = {**_attributes(topic, message_id, "settle"), _GROUP: group}
        now_ns = self.now_ns()
        self._start("settle", topic, context, now_ns, attributes, server=True).end(now_ns)

    def now_ns(self) -> int:
        """Return the wall time in nanoseconds, as spans have it."""
        return self._clock.wall_ms() * _NS_PER_MS

    def replicating(self, topic: str, send: Span) -> Span:
        """Open the span of the wait for durability."""
        return self._start("replicate", topic, self._api.set_span_in_context(send), self.now_ns())

    def fail(self, span: Span, reason: str) -> None:
        """Mark a span as failed."""
        span.set_status(self._api.StatusCode.ERROR, reason)

    def _start(
        self,
        operation: str,
        topic: str,
        parent: Context,
        start_ns: int,
        attributes: dict[str, Any] | None = None,
        *,
        server: bool = False,
    ) -> Span:
        kinds = self._api.SpanKind
        return self._tracer.start_span(
            f"{operation} {topic}",
            context=parent,
            kind=kinds.SERVER if server else kinds.INTERNAL,
            attributes=attributes,
            start_time=start_ns,
        )

    def _parent(self, properties: bytes) -> Context | None:
        """Return the producer's context if it is sampled."""
        for name in _CARRIERS:
            text = property_value(properties, name)
            ids = _parsed(text) if text else None
            if ids is not None:
                api = self._api
                trace_id, span_id, flags = ids
                context = api.SpanContext(trace_id, span_id, True, api.TraceFlags(flags))
                found: Context = api.set_span_in_context(api.NonRecordingSpan(context))
                return found
        return None


class RequestSpans:
    """The open spans of one send request."""

    __slots__ = ("_messages", "_spans", "_topic")

    def __init__(self, spans: Spans, topic: str, messages: list[tuple[Span, Span]]) -> None:
        """`messages` are pairs of the span of the send and of the step that it is in."""
        self._spans = spans
        self._topic = topic
        self._messages = messages

    def stored(self) -> None:
        """The messages are in the log."""
        now_ns = self._spans.now_ns()
        following = []
        for send, store in self._messages:
            store.end(now_ns)
            following.append((send, self._spans.replicating(self._topic, send)))
        self._messages = following

    def answered(self, failure: str = "") -> None:
        """The request is answered; `failure` is the reason if nothing is stored or durable."""
        now_ns = self._spans.now_ns()
        for send, step in self._messages:
            for span in (step, send):
                if failure:
                    self._spans.fail(span, failure)
                span.end(now_ns)
        self._messages = []


class DeliveryTraces:
    """Several traces of deliveries as one."""

    def __init__(self, traces: Iterable[Any]) -> None:
        self._traces = tuple(traces)

    def received(self, group: str, handle: str, record: Delivery, attempt: int, topic: str) -> None:
        """See `Spans` and `TraceService`."""
        for trace in self._traces:
            trace.received(group, handle, record, attempt, topic)

    def acked(self, group: str, handle: str, message_id: str) -> None:
        """See `Spans` and `TraceService`."""
        for trace in self._traces:
            trace.acked(group, handle, message_id)


_GROUP: Final = "messaging.consumer.group.name"
_BODY: Final = "messaging.message.body.size"


def _message_id(properties: bytes) -> str:
    return property_value(properties, b"UNIQ_KEY").decode("utf-8", "replace")


def _attributes(topic: str, message_id: str, kind: str) -> dict[str, Any]:
    return {
        "messaging.system": "rocketmq",
        "messaging.destination.name": topic,
        "messaging.message.id": message_id,
        "messaging.operation.type": kind,
    }


def _parsed(text: bytes) -> tuple[int, int, int] | None:
    """Return trace id, span id and flags of a sampled `traceparent`; None for any other text."""
    parts = text.split(b"-")
    if len(text) < _PARENT_BYTES or list(map(len, parts[:4])) != [2, 32, 16, 2]:
        return None
    try:
        version, trace_id, span_id, flags = (int(part, 16) for part in parts[:4])
    except ValueError:
        return None
    valid = version != 0xFF and trace_id and span_id and flags & _SAMPLED
    return (trace_id, span_id, flags) if valid else None
