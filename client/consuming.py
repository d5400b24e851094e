"""Requests of every consumer: receive, acknowledge, change invisible time, dead-letter, subscribe
to lite topics.

Each function makes one request of the protocol and retries it where that has no side effect
(docs/formats/grpc-api.md, sections 5.6-5.9). An acknowledgement goes to the endpoint that
delivered the message; if it is unreachable, to the access point, which forwards it. Results of
single messages are returned per message. An invalid receipt handle in a retry counts as success
when the response to an earlier attempt was lost: that attempt used the handle.

Brokers hold subscriptions to lite topics in memory and drop what is not repeated for a minute: the
session repeats all names every 30 seconds, which also tells them to a new leader. A node passes
them to all broker groups of the parent topic. An exclusive group takes a lite topic from a client
when another one subscribes to it (section 5.13).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..proto import paths, v2
from ..proto.errors import is_retriable
from ..proto.short_polls import SHORT_POLL_METADATA
from .base import Client
from .errors import CometError, OutcomeUnknown, RequestRefused, refused
from .filters import Filter
from .message import Message, read_responses
from .retrying import RetryableError
from .session import Attempts

if TYPE_CHECKING:
    from .routes import Queue
    from .session import Session
    from .transport.addresses import Target

logger = logging.getLogger(__name__)

_LITE_TYPES = {
    v2.PUSH_CONSUMER: v2.LITE_PUSH_CONSUMER,
    v2.SIMPLE_CONSUMER: v2.LITE_SIMPLE_CONSUMER,
}
#: Added to the polling time: the deadline of the response.
ANSWER_MARGIN_S = 3.0
#: Brokers hold a poll at least this long, unless it is marked (`proto/short_polls.py`); Apache's
#: proxy refuses shorter ones.
POLL_LEAST_S = 5.0
_EMPTY = frozenset((v2.MESSAGE_NOT_FOUND,))
_MISSING = v2.Status(code=v2.INTERNAL_ERROR, message="the response has no result for this message")
Refusals = list[tuple[Message, RequestRefused]]


async def receive(
    session: Session,
    queue: Queue,
    wanted: Filter,
    *,
    count: int,
    wait_s: float,
    invisible_s: float | None,
    attempt_id: str = "",
) -> list[Message]:
    """Make one long poll and return its messages.

    Without `invisible_s` the broker hides the messages while this client is connected. Raises
    RetryableError or RequestRefused.
    """
    request = v2.ReceiveMessageRequest(
        group=session.resource(session.group),
        message_queue=queue.proto,
        filter_expression=wanted.proto(),
        batch_size=count,
        auto_renew=invisible_s is None,
    )
    request.long_polling_timeout.FromMilliseconds(int(wait_s * 1000))
    if invisible_s is not None:
        request.invisible_duration.FromMilliseconds(int(invisible_s * 1000))
    if attempt_id:
        request.attempt_id = attempt_id
    try:
        return await _poll(session, queue, request, wait_s)
    except RequestRefused as error:
        if error.code != v2.ILLEGAL_POLLING_TIME or wait_s >= POLL_LEAST_S:
            raise
        return await _poll(session, queue, request, POLL_LEAST_S)


async def _poll(
    session: Session, queue: Queue, request: v2.ReceiveMessageRequest, wait_s: float
) -> list[Message]:
    received, others = await session.stream(
        queue.target,
        paths.RECEIVE_MESSAGE,
        request,
        lambda responses: read_responses(
            responses, v2.ReceiveMessageResponse, queue.broker, queue.target
        ),
        wait_s + ANSWER_MARGIN_S,
        metadata=SHORT_POLL_METADATA if wait_s < POLL_LEAST_S else (),
    )
    status = None
    for answer in others:
        if answer.WhichOneof("content") == "status":
            status = answer.status
    session.statistics.received += len(received)
    if not received and status is not None and status.code not in (v2.OK, *_EMPTY):
        error = refused(status.code, status.message)
        if is_retriable(status.code):
            raise RetryableError(error, maybe_done=False)
        raise error
    return received


async def acknowledge(session: Session, messages: Iterable[Message]) -> Refusals:
    """Acknowledge messages, one request per topic and endpoint. Return the refused ones.

    The failure of an endpoint is raised after the requests to all other endpoints.
    """
    batches: dict[tuple[Target | None, str], list[Message]] = defaultdict(list)
    for message in messages:
        batches[message.source, message.topic].append(message)
    refusals: Refusals = []
    failure: CometError | None = None
    for (target, topic), batch in batches.items():
        try:
            refused_here = await _acknowledge(session, target, topic, batch)
        except CometError as error:
            failure = error
            continue
        session.statistics.acknowledged += len(batch) - len(refused_here)
        session.statistics.refused_acks += len(refused_here)
        refusals += refused_here
    if failure is not None:
        raise failure
    return refusals


async def _acknowledge(
    session: Session, target: Target | None, topic: str, messages: list[Message]
) -> Refusals:
    request = v2.AckMessageRequest(
        group=session.resource(session.group), topic=session.resource(topic)
    )
    for message in messages:
        entry = request.entries.add(
            message_id=message.message_id, receipt_handle=message.receipt_handle
        )
        if message.lite_topic:
            entry.lite_topic = message.lite_topic
    attempts = Attempts()
    try:
        answer = await session.call_until_done(
            target,
            paths.ACK_MESSAGE,
            request,
            v2.AckMessageResponse,
            (v2.MULTIPLE_RESULTS, v2.INVALID_RECEIPT_HANDLE),
            attempts=attempts,
        )
    except RequestRefused as error:
        return [(message, error) for message in messages]
    if answer.status.code == v2.OK:
        return []
    statuses = {entry.receipt_handle: entry.status for entry in answer.entries}
    if answer.status.code == v2.INVALID_RECEIPT_HANDLE:
        statuses = {message.receipt_handle: answer.status for message in messages} | statuses
    refusals: Refusals = []
    for message in messages:
        status = statuses.get(message.receipt_handle, _MISSING)
        expired = status.code == v2.INVALID_RECEIPT_HANDLE
        if status.code != v2.OK and not (expired and attempts.maybe_done):
            refusals.append((message, refused(status.code, status.message)))
    return refusals


async def change_invisible(
    session: Session, message: Message, invisible_s: float, *, give_back: bool = False
) -> None:
    """Hide a message for `invisible_s` from now and store its new receipt handle.

    `give_back`: the caller does not need the new handle, so a handle that an earlier attempt used
    up counts as success.
    """
    request = v2.ChangeInvisibleDurationRequest(
        group=session.resource(session.group),
        topic=session.resource(message.topic),
        receipt_handle=message.receipt_handle,
        message_id=message.message_id,
    )
    request.invisible_duration.FromMilliseconds(int(invisible_s * 1000))
    if message.lite_topic:
        request.lite_topic = message.lite_topic
    try:
        answer = await session.call_until_done(
            message.source,
            paths.CHANGE_INVISIBLE_DURATION,
            request,
            v2.ChangeInvisibleDurationResponse,
        )
    except OutcomeUnknown as error:
        if give_back and _handle_used(error):
            return
        raise
    message.receipt_handle = answer.receipt_handle or message.receipt_handle


async def forward_to_dead_letters(session: Session, message: Message, attempts_max: int) -> None:
    """Move a message to the group's dead-letter queue."""
    request = v2.ForwardMessageToDeadLetterQueueRequest(
        group=session.resource(session.group),
        topic=session.resource(message.topic),
        receipt_handle=message.receipt_handle,
        message_id=message.message_id,
        delivery_attempt=message.attempt,
        max_delivery_attempts=attempts_max,
    )
    if message.lite_topic:
        request.lite_topic = message.lite_topic
    try:
        await session.call_until_done(
            message.source,
            paths.FORWARD_MESSAGE_TO_DEAD_LETTER_QUEUE,
            request,
            v2.ForwardMessageToDeadLetterQueueResponse,
        )
    except OutcomeUnknown as error:
        if not _handle_used(error):
            raise


def _handle_used(error: OutcomeUnknown) -> bool:
    """Whether the last attempt was refused because an earlier one used the handle up."""
    cause = error.__cause__
    return isinstance(cause, RequestRefused) and cause.code == v2.INVALID_RECEIPT_HANDLE


def fill_subscription(
    session: Session, settings: v2.Settings, subscriptions: dict[str, Filter], wait_s: float | None
) -> None:
    """Fill in the subscription of a consumer's settings."""
    mine = settings.subscription
    mine.group.CopyFrom(session.resource(session.group))
    for topic, wanted in subscriptions.items():
        mine.subscriptions.add(topic=session.resource(topic), expression=wanted.proto())
    if wait_s is not None:
        mine.long_polling_timeout.FromMilliseconds(int(wait_s * 1000))


class LiteTopics:
    """The subscriptions of one consumer."""

    def __init__(
        self, session: Session, topics: dict[str, Filter], names: str | Iterable[str]
    ) -> None:
        """`topics` are the consumer's. Raises ValueError unless they are one parent topic."""
        if list(topics.values()) != [Filter("*")]:
            raise ValueError("lite topics need one topic, their parent, without a filter")
        self._session = session
        (self._parent,) = topics
        self.names = dict.fromkeys([names] if isinstance(names, str) else names)

    async def repeat(self) -> None:
        """Tell all names to the brokers. Raises RequestRefused, ConnectionFailed."""
        await self._sync(v2.COMPLETE_ADD, self.names)

    async def add(self, name: str) -> None:
        """Subscribe to a lite topic. Raises RequestRefused, ConnectionFailed."""
        await self._sync(v2.PARTIAL_ADD, [name])
        self.names[name] = None

    async def remove(self, name: str) -> None:
        """Unsubscribe from a lite topic. Raises RequestRefused, ConnectionFailed."""
        self.names.pop(name, None)
        await self._sync(v2.PARTIAL_REMOVE, [name])

    def lost(self, name: str) -> None:
        """Note that another client of the group has the lite topic now."""
        logger.info("client.lite_topic_lost topic=%s lite_topic=%s", self._parent, name)
        self.names.pop(name, None)

    async def _sync(
        self, action: v2.LiteSubscriptionAction.ValueType, names: Iterable[str]
    ) -> None:
        session = self._session
        request = v2.SyncLiteSubscriptionRequest(
            action=action,
            topic=session.resource(self._parent),
            group=session.resource(session.group),
            lite_topic_set=names,
        )
        await session.call_until_done(
            None, paths.SYNC_LITE_SUBSCRIPTION, request, v2.SyncLiteSubscriptionResponse
        )


class LiteConsumer(Client):
    """A consumer of topics, or of the lite topics of one parent."""

    _subscribed: LiteTopics | None = None

    def _take_lite_topics(
        self, topics: dict[str, Filter], names: str | Iterable[str] | None
    ) -> None:
        """Make this a consumer of lite topics, unless `names` is None. Raises ValueError."""
        if names is not None:
            session = self._session
            session.client_type = _LITE_TYPES[session.client_type]
            lite = self._subscribed = LiteTopics(session, topics, names)
            session.on_refresh, session.on_lite_lost = lite.repeat, lite.lost

    @property
    def lite_topics(self) -> list[str]:
        """The lite topics that it receives; an exclusive group may give one to another client."""
        return list(self._lite().names)

    async def subscribe_lite(self, name: str) -> None:
        """Receive the messages of a further lite topic: those sent from now on, if the group is
        new to it. Raises RequestRefused, ConnectionFailed."""
        await self._lite().add(name)

    async def unsubscribe_lite(self, name: str) -> None:
        """Receive no more messages of a lite topic. Raises RequestRefused, ConnectionFailed."""
        await self._lite().remove(name)

    def _lite(self) -> LiteTopics:
        if self._subscribed is None:
            raise ValueError("the consumer was created without lite_topics")
        return self._subscribed
