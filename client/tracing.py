"""Interceptor for OpenTelemetry spans and context (`pip install opentelemetry-api`).

    Producer(..., interceptors=[Tracing()])
    PushConsumer(..., interceptors=[Tracing()])

The producer's span context is sent in the user properties `traceparent` and `tracestate` (W3C Trace
Context). The span of a push consumer's handler is its child. RocketMQ clients of every language
can read the properties.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..proto import v2
    from .message import Message, Receipt

_NAME = "cometmq"


class Tracing:
    """Tracing interceptor. Raises ImportError when OpenTelemetry's API is not installed."""

    def __init__(self, tracer: Any = None) -> None:
        from opentelemetry import propagate, trace

        self._propagate = propagate
        self._trace = trace
        self._tracer = tracer or trace.get_tracer(_NAME)
        self._sending: dict[str, Any] = {}
        self._handling: dict[str, Any] = {}

    def sending(self, message: v2.Message) -> None:
        """Start a producer span and write its context into the message."""
        topic = message.topic.name
        span = self._tracer.start_span(
            f"{topic} send",
            kind=self._trace.SpanKind.PRODUCER,
            attributes={"messaging.system": "rocketmq", "messaging.destination.name": topic},
        )
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier, self._trace.set_span_in_context(span))
        for key, value in carrier.items():
            message.user_properties[key] = value
        self._sending[message.system_properties.message_id] = span

    def sent(self, message: v2.Message, result: Receipt | Exception) -> None:
        """End the producer span."""
        span = self._sending.pop(message.system_properties.message_id, None)
        self._end(span, result if isinstance(result, Exception) else None)

    def handling(self, message: Message) -> None:
        """Start a consumer span as child of the producer's."""
        parent = self._propagate.extract(dict(message.properties))
        self._handling[message.receipt_handle] = self._tracer.start_span(
            f"{message.topic} process",
            context=parent,
            kind=self._trace.SpanKind.CONSUMER,
            attributes={
                "messaging.system": "rocketmq",
                "messaging.destination.name": message.topic,
                "messaging.message.id": message.message_id,
            },
        )

    def handled(self, message: Message, error: Exception | None) -> None:
        """End the consumer span."""
        self._end(self._handling.pop(message.receipt_handle, None), error)

    def _end(self, span: Any, error: Exception | None) -> None:
        if span is None:
            return
        if error is not None:
            span.record_exception(error)
            span.set_status(self._trace.StatusCode.ERROR)
        span.end()
