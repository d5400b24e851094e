"""Telemetry stream: clients send their settings and receive the server's, and its commands.

Promises: every settings message is answered with status OK, in the same turn unless it has many
filter expressions, the client's own fields echoed and the server's overwritten; invalid settings
end the stream with a gRPC status; the end of a stream has no other effect, because some clients
open a new one every 30 s (docs/formats/grpc-api.md, section 8 and pitfalls 13-23).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ...front.service import OutboundFull
from ...proto import v2
from ...proto.errors import INTERNAL, INVALID_ARGUMENT, RESOURCE_EXHAUSTED, RpcFailure, WireError
from ..messages.filters import parse_filter
from ..messages.validation import check_group, check_topic, duration_ms, require_client_id
from ..metadata.tables import Group
from ..names.lite import quota as lite_quota
from .settings_rate import TOO_MANY_SETTINGS, SettingsRate
from .stacks import is_refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...front.clock import Clock
    from ...front.context import RequestContext
    from ...front.service import Outbound
    from ..metadata.tables import Metadata
    from .registry import Client, ClientRegistry
    from .stacks import ClientStacks
    from .telemetry_forward import TelemetryForward

logger = logging.getLogger(__name__)

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
#: Time of the loop in one turn for the expressions of one client's settings.
_CHECK_NS = 5_000_000
# The Node.js client supports an exponential policy only: with a customized one it retries without
# pause.
_EXPONENTIAL_ONLY = frozenset(("HTTP", "NODE_JS"))


class TelemetryService:
    """Opens the session of each Telemetry stream."""

    def __init__(
        self,
        clock: Clock,
        metadata: Metadata,
        clients: ClientRegistry,
        max_message_size: int,
        *,
        forward: TelemetryForward | None,
        stacks: ClientStacks,
    ) -> None:
        """`forward` sends the client's commands to the leaders that use this node as access point;
        `stacks` takes the answers to requests of this node."""
        self.clock = clock
        self._metadata = metadata
        self._clients = clients
        self._max_message_size = max_message_size
        self.forward = forward
        self.stacks = stacks

    def open(self, ctx: RequestContext, outbound: Outbound) -> TelemetrySession:
        """Handler of Telemetry."""
        return TelemetrySession(self, ctx, outbound)

    def register(self, ctx: RequestContext, outbound: Outbound) -> Client:
        """Return the client of a stream, with the stream; register it if it was forgotten."""
        return self._clients.attach(ctx, outbound, self.clock.steady_ns())

    def settle(self, settings: v2.Settings, ctx: RequestContext, client: Client) -> v2.Settings:
        """Store the client's checked settings; return the answer. Raises WireError."""
        kind = settings.WhichOneof("pub_sub")
        if kind is None:
            raise WireError(v2.BAD_REQUEST, "settings are of neither a producer nor a consumer")
        self._clients.reserve(client, settings.ByteSize())
        if kind == "publishing":
            _check_publishing(settings)
            answer = _producer_settings(settings, self._max_message_size)
            topics = {topic.name: topic.resource_namespace for topic in settings.publishing.topics}
            self._clients.publishes(client, topics)
        else:
            group = ensured_group(self._metadata, settings.subscription.group.name)
            if self._clients.is_taken(group.name):
                raise WireError(
                    v2.FORBIDDEN,
                    f"consumer group {group.name} is in use by clients of the remoting protocol: a "
                    "group belongs to one protocol at a time (allowMixedProtocols)",
                )
            answer = _consumer_settings(settings, group, ctx.language)
            client.group = group.name
        client.client_type = settings.client_type
        client.has_settings = True
        self._clients.keep(client, settings)
        client.request_timeout_ms = duration_ms(settings.request_timeout)
        return answer

    def closed(self, client_id: str, outbound: Outbound) -> None:
        """Remove a stream; the client stays registered until its heartbeats stop."""
        is_last = self._clients.detach(client_id, outbound)
        if self.forward is not None and is_last:
            self.forward.forget(client_id)


class TelemetrySession:
    """One open stream of one client."""

    def __init__(self, service: TelemetryService, ctx: RequestContext, outbound: Outbound) -> None:
        self._service = service
        self._ctx = ctx
        self._outbound = outbound
        self._rate = SettingsRate()
        try:
            require_client_id(ctx)
        except WireError as error:
            outbound.send(v2.TelemetryCommand(status=error.status()))
            outbound.finish()
            return
        service.register(ctx, outbound)

    def receive(self, command: v2.TelemetryCommand) -> asyncio.Future[None] | None:
        """Process a command of the client: settings, or the answer to a server command.

        Returns a future if the check of the settings takes several turns of the loop.
        """
        if not self._ctx.client_id or self._outbound.finished:
            return None
        self._service.register(self._ctx, self._outbound)
        kind = command.WhichOneof("command")
        if kind == "settings":
            if self._rate.exceeded(self._service.clock.steady_ns()):
                self._outbound.finish(TOO_MANY_SETTINGS)
                return None
            parts = _check_subscription(command.settings)
            if self._checked(parts):
                self._settle(command)
            elif not self._outbound.finished:
                return asyncio.ensure_future(self._settle_later(command, parts))
        elif kind is None and not is_refusal(command):
            text = "the telemetry message has no command"
            self._outbound.finish(_stream_error(WireError(v2.BAD_REQUEST, text)))
        else:
            # The answer to a command goes to the leader that sent the command.
            self._service.stacks.answered(self._ctx.client_id, command)
            self._forward(command)
        return None

    def _checked(self, parts: Iterator[None]) -> bool:
        """Check settings for one turn of the loop; return whether they are complete and valid.

        Invalid ones end the stream.
        """
        stop_ns = self._service.clock.steady_ns() + _CHECK_NS
        try:
            for _ in parts:
                if self._service.clock.steady_ns() >= stop_ns:
                    return False
        except WireError as error:
            self._outbound.finish(_stream_error(error))
            return False
        return True

    async def _settle_later(self, command: v2.TelemetryCommand, parts: Iterator[None]) -> None:
        while not self._outbound.finished:
            await asyncio.sleep(0)
            if self._checked(parts):
                self._settle(command)
                return

    def _settle(self, command: v2.TelemetryCommand) -> None:
        client = self._service.register(self._ctx, self._outbound)
        try:
            answer = self._service.settle(command.settings, self._ctx, client)
            status = v2.Status(code=v2.OK, message="OK")
            self._outbound.send(v2.TelemetryCommand(status=status, settings=answer))
            self._forward(command)
        except WireError as error:
            self._outbound.finish(_stream_error(error))
        except OutboundFull:
            # The client sends faster than it reads; its newest settings are registered.
            logger.info("telemetry.answer_dropped client=%s", client.client_id)

    def close(self, reason: str) -> None:
        """The client closed its side or disconnected."""
        self._service.closed(self._ctx.client_id, self._outbound)
        self._outbound.finish()

    def _forward(self, command: v2.TelemetryCommand) -> None:
        """Send a command to the leaders that reach this client through this node."""
        forward = self._service.forward
        if forward is not None and not self._ctx.forwarded:
            forward.forward(self._ctx, command)


def ensured_group(metadata: Metadata, name: str) -> Group:
    """Return the group, created if allowed; if not, an unregistered one, so that settings
    succeed."""
    try:
        return metadata.ensure_group(name)
    except WireError:
        return Group(name)


def _check_publishing(settings: v2.Settings) -> None:
    if settings.client_type not in (v2.PRODUCER, v2.CLIENT_TYPE_UNSPECIFIED):
        raise WireError(v2.BAD_REQUEST, "publishing settings belong to a producer")
    for topic in settings.publishing.topics:
        check_topic(topic.name)


def _check_subscription(settings: v2.Settings) -> Iterator[None]:
    """Check a consumer's settings, one expression for each step. Raises WireError."""
    if settings.WhichOneof("pub_sub") != "subscription":
        return
    if settings.client_type not in CONSUMER_TYPES:
        raise WireError(v2.BAD_REQUEST, "subscription settings belong to a consumer")
    check_group(settings.subscription.group.name)
    for entry in settings.subscription.subscriptions:
        check_topic(entry.topic.name)
        try:
            parse_filter(entry.expression)
        except WireError as error:
            # An unsupported filter is refused when it is used, not in the settings.
            if error.code != v2.UNSUPPORTED:
                raise
        yield


def _echo(settings: v2.Settings) -> v2.Settings:
    """Return the client's own fields unchanged: the C++ client adopts what it reads here."""
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
    if error.code == v2.TOO_MANY_REQUESTS:
        code = RESOURCE_EXHAUSTED
    else:
        code = INVALID_ARGUMENT if 40_000 <= error.code < 50_000 else INTERNAL
    return RpcFailure(
        code,
        f"process client telemetryCommand failed. {error.message}",
    )
