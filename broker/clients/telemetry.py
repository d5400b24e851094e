"""Telemetry: clients say their settings and are told ours, at once; commands go the other way.

Promises: every settings message is answered in the same turn with status OK, the client's own fields
echoed and the server's overwritten; bad settings end the stream with a gRPC status; the end of a
stream ends nothing else, because some clients open a new one every 30 s (gRPC API, section 8 and
pitfalls 13-23).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...front.service import OutboundFull
from ...proto import v2
from ...proto.errors import INTERNAL, INVALID_ARGUMENT, RpcFailure, WireError
from ..lite.names import quota as lite_quota
from ..messages.filters import parse_filter
from ..messages.validation import check_group, check_topic, require_client_id
from ..metadata.tables import Group

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ...front.service import Outbound
    from ..node import Node
    from .registry import Client

log = logging.getLogger(__name__)

CONSUMER_TYPES = frozenset(
    (
        v2.PUSH_CONSUMER,
        v2.SIMPLE_CONSUMER,
        v2.PULL_CONSUMER,
        v2.LITE_PUSH_CONSUMER,
        v2.LITE_SIMPLE_CONSUMER,
    )
)
_LITE_TYPES = frozenset((v2.LITE_PUSH_CONSUMER, v2.LITE_SIMPLE_CONSUMER))

_PRODUCER_ATTEMPTS = 3
_PRODUCER_BACKOFF_MS = (10, 1_000)
_BACKOFF_MULTIPLIER = 2.0
_RECEIVE_BATCH = 32
_LONG_POLLING_S = 20
_LITE_TOPIC_BYTES = 64
# Streams of one client at once; some clients leave old ones open when they open a new one.
_STREAMS_MAX = 16
# Node understands an exponential policy only: with a customized one it would retry without a pause.
_EXPONENTIAL_ONLY = frozenset(("HTTP", "NODE_JS"))


class TelemetrySession:
    """One open stream of one client."""

    def __init__(self, node: Node, ctx: RequestContext, outbound: Outbound) -> None:
        self._node = node
        self._ctx = ctx
        self._outbound = outbound
        try:
            require_client_id(ctx)
        except WireError as error:
            outbound.send(v2.TelemetryCommand(status=error.status()))
            outbound.finish()
            return
        self._client()

    def receive(self, command: v2.TelemetryCommand) -> None:
        """A command of the client: settings, or the answer to one of ours."""
        if not self._ctx.client_id:
            return
        client = self._client()
        kind = command.WhichOneof("command")
        if kind == "settings":
            try:
                self._outbound.send(self._settle(command.settings))
                self._pass_on(command)
            except WireError as error:
                self._outbound.finish(_stream_error(error))
            except OutboundFull:
                # It asks faster than it reads: the newest settings are registered, that is enough.
                log.info("telemetry.answer_dropped client=%s", client.client_id)
        elif kind is None:
            text = "there is no command in the telemetry message"
            self._outbound.finish(_stream_error(WireError(v2.BAD_REQUEST, text)))
        else:
            # The answer to a command: whoever waits for it does so where the command came from.
            self._pass_on(command)

    def close(self, reason: str) -> None:
        """The client half-closed or left; it stays registered until its heartbeats stop."""
        client = self._node.clients.get(self._ctx.client_id)
        if client is not None and self._outbound in client.streams:
            client.streams.remove(self._outbound)
        forward = self._node.telemetry_forward
        if forward is not None and (client is None or not client.streams):
            forward.forget(self._ctx.client_id)
        self._outbound.finish()

    def _client(self) -> Client:
        """The client of the stream, with the stream, also if it was forgotten in between."""
        client = self._node.clients.seen(self._ctx, self._node.clock.steady_ns())
        if self._outbound not in client.streams:
            client.streams.append(self._outbound)
            del client.streams[:-_STREAMS_MAX]
        return client

    def _pass_on(self, command: v2.TelemetryCommand) -> None:
        """Let the leaders know that speak to this client through here (design, section 2)."""
        forward = self._node.telemetry_forward
        if forward is not None and not self._ctx.forwarded:
            forward.said(self._ctx, command)

    def _settle(self, settings: v2.Settings) -> v2.TelemetryCommand:
        kind = settings.WhichOneof("pub_sub")
        if kind is None:
            raise WireError(v2.BAD_REQUEST, "settings are of neither a producer nor a consumer")
        client = self._client()
        if kind == "publishing":
            _check_publishing(settings)
            answer = _producer_settings(settings, self._node.store.config.max_message_size)
            names = [topic.name for topic in settings.publishing.topics]
            self._node.clients.publishes(client, names)
        else:
            _check_subscription(settings)
            group = known_group(self._node, settings.subscription.group.name)
            answer = _consumer_settings(settings, group, self._ctx.language)
            client.group = group.name
        client.client_type = settings.client_type
        client.settings = settings
        return v2.TelemetryCommand(status=v2.Status(code=v2.OK, message="OK"), settings=answer)


def known_group(node: Node, name: str) -> Group:
    """The group, created where that may be done; a client's greeting never fails for want of it."""
    try:
        return node.metadata.ensure_group(name)
    except WireError:
        return Group(name)


def _check_publishing(settings: v2.Settings) -> None:
    if settings.client_type not in (v2.PRODUCER, v2.CLIENT_TYPE_UNSPECIFIED):
        raise WireError(v2.BAD_REQUEST, "publishing settings belong to a producer")
    for topic in settings.publishing.topics:
        check_topic(topic.name)


def _check_subscription(settings: v2.Settings) -> None:
    if settings.client_type not in CONSUMER_TYPES:
        raise WireError(v2.BAD_REQUEST, "subscription settings belong to a consumer")
    check_group(settings.subscription.group.name)
    for entry in settings.subscription.subscriptions:
        check_topic(entry.topic.name)
        try:
            parse_filter(entry.expression)
        except WireError as error:
            # What this broker cannot filter is said when it is asked to; the settings are fine.
            if error.code != v2.UNSUPPORTED:
                raise


def _echo(settings: v2.Settings) -> v2.Settings:
    """The fields that belong to the client, unchanged: C++ adopts what it reads here."""
    answer = v2.Settings()
    answer.CopyFrom(settings)
    answer.ClearField("backoff_policy")
    answer.metric.Clear()
    answer.metric.on = False
    return answer


def _producer_settings(settings: v2.Settings, max_body: int) -> v2.Settings:
    answer = _echo(settings)
    answer.publishing.max_body_size = max_body
    answer.publishing.validate_message_type = True
    answer.backoff_policy.max_attempts = _PRODUCER_ATTEMPTS
    _exponential(answer.backoff_policy, *_PRODUCER_BACKOFF_MS)
    return answer


def _consumer_settings(settings: v2.Settings, group: Group, language: str) -> v2.Settings:
    answer = _echo(settings)
    subscription = answer.subscription
    subscription.fifo = group.orderly
    subscription.receive_batch_size = _RECEIVE_BATCH
    subscription.long_polling_timeout.seconds = _LONG_POLLING_S
    subscription.long_polling_timeout.nanos = 0
    if settings.client_type in _LITE_TYPES:
        subscription.lite_subscription_quota = lite_quota(group)
        subscription.max_lite_topic_size = _LITE_TOPIC_BYTES
    answer.backoff_policy.max_attempts = group.max_attempts
    delays = group.backoff_ms()
    if language.upper() in _EXPONENTIAL_ONLY:
        _exponential(answer.backoff_policy, delays[0], delays[-1])
    else:
        for delay_ms in delays:
            answer.backoff_policy.customized_backoff.next.add().FromMilliseconds(delay_ms)
    return answer


def _exponential(policy: v2.RetryPolicy, initial_ms: int, max_ms: int) -> None:
    policy.exponential_backoff.initial.FromMilliseconds(initial_ms)
    policy.exponential_backoff.max.FromMilliseconds(max_ms)
    policy.exponential_backoff.multiplier = _BACKOFF_MULTIPLIER


def _stream_error(error: WireError) -> RpcFailure:
    client_fault = 40_000 <= error.code < 50_000
    return RpcFailure(
        INVALID_ARGUMENT if client_fault else INTERNAL,
        f"process client telemetryCommand failed. {error.message}",
    )
