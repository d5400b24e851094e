"""The records of a SendMessage: ordered checks, then the record for each message type.

Types (docs/formats/broker-semantics.md, sections 5.1, 6.2, 6.4, 12.2; docs/formats/grpc-api.md,
section 10.2): NORMAL and FIFO messages go to a queue of their topic, PRIORITY messages to the queue
of their priority. DELAY, TRANSACTION and LITE messages go to the handler that another part has
registered with `Sender.register`; it makes the record to store instead. A type without a handler is
UNSUPPORTED. The type follows from the properties of a message, not from the type that the client
declares. The native crate makes the same records of common messages (`crate_planner.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.properties import encode_properties
from ...store.format.record import Message
from ..messages.convert import SYS_COMPRESSED
from ..messages.stored_properties import encode_sent, sent_properties
from ..messages.validation import Draft, check_message_type, check_messages, check_total
from .answer import ReceiptExtras
from .send import Prepared, peer_of
from .topic_template import (
    EXEMPT_PREFIXES,
    Origin,
    TopicTemplate,
    TopicTemplates,
    fifo_queue,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...front.context import RequestContext
    from ..metadata.auto_topics import AutoTopics
    from ..metadata.tables import Topic

_NORMAL, _PRIORITY = v2.NORMAL, v2.PRIORITY
_ORDINARY = (v2.NORMAL, v2.FIFO, v2.PRIORITY)


class TypeHandler(Protocol):
    """Handler of a message type whose messages are not stored as they are sent."""

    def prepare(
        self,
        draft: Draft,
        message: Message,
        properties: dict[str, str],
        topic: Topic,
        ctx: RequestContext,
    ) -> tuple[Message, ReceiptExtras | None]:
        """Return the record to store instead of `message`, and the extra fields of its receipt.

        `message` is addressed to a queue of its topic and holds `properties`, encoded. Raises
        WireError.
        """
        ...


class GrpcRecords:
    """Makes the records of requests."""

    def __init__(
        self,
        *,
        auto_topics: AutoTopics,
        templates: TopicTemplates,
        origin: Origin,
        max_delay_ms: int,
        wall_ms: Callable[[], int],
    ) -> None:
        self._auto_topics = auto_topics
        self._templates = templates
        self._origin = origin
        self._max_delay_ms = max_delay_ms
        self._wall_ms = wall_ms
        #: By type of messages.
        self.handlers: dict[int, TypeHandler] = {}

    def make(self, sent: Sequence[v2.Message], ctx: RequestContext) -> Prepared:
        """Return the records of a request. Raises WireError."""
        max_body, now_ms = self._origin.max_body, self._wall_ms()
        if ctx.request_bytes > max_body and len(sent) > 1:
            check_total(sent, max_body)
        drafts = check_messages(sent, now_ms, max_body, self._max_delay_ms)
        template = self._templates.of(self.topic_to_send(sent[0].topic.name))
        return prepare(drafts, template, self._origin, self.handlers, ctx=ctx, now_ms=now_ms)

    def topic_to_send(self, name: str, template_queues: int = 0) -> Topic:
        """Return the topic, created if that is allowed, if it accepts messages. Raises WireError.

        `name` is a legal topic name; `template_queues`: see `AutoTopics.topic_or_new`.
        """
        topic = self._auto_topics.topic_or_new(name, template_queues)
        if topic is None:
            raise WireError(v2.TOPIC_NOT_FOUND, f"topic {name} does not exist")
        if not topic.writable:
            raise WireError(
                v2.FORBIDDEN, f"no writable queue: topic {name} does not accept messages"
            )
        return topic


def prepare(
    drafts: list[Draft],
    template: TopicTemplate,
    origin: Origin,
    handlers: Mapping[int, TypeHandler],
    *,
    ctx: RequestContext,
    now_ms: int,
) -> Prepared:
    """Return the records of one request whose drafts passed the checks. Raises WireError."""
    topic, peer = template.topic, peer_of(ctx.peer)
    if not topic.name.startswith(EXEMPT_PREFIXES):
        check_message_type(drafts, topic.message_type)
    chosen = [_handler(draft, handlers, now_ms) for draft in drafts]
    turn = template.next_queue()
    ready = Prepared([], [], topic.name, drafts[0].message_type, 0)
    extras: list[ReceiptExtras | None] = []
    for draft, handler in zip(drafts, chosen, strict=True):
        message = _message(draft, topic.name, _queue(draft, topic, turn), origin, peer)
        extra = None
        if handler is not None:
            host = draft.born_host or peer[0]
            properties = sent_properties(draft, topic.name, origin.region, origin.cluster, host)
            message.properties = encode_properties(properties)
            message, extra = handler.prepare(draft, message, properties, topic, ctx)
        ready.messages.append(message)
        ready.ids.append(draft.message_id.encode())
        ready.size += len(draft.body)
        extras.append(extra)
    if any(extras):
        ready.extras = extras
    return ready


def _handler(draft: Draft, handlers: Mapping[int, TypeHandler], now_ms: int) -> TypeHandler | None:
    """Return the handler of a message, None if it is stored as it is. Raises WireError."""
    kind = draft.message_type
    if kind in _ORDINARY:
        return None
    if kind == v2.TRANSACTION and (draft.message_group or draft.delivery_ms is not None):
        raise WireError(
            v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "a transactional message has neither a message group nor a delivery time",
        )
    if kind == v2.DELAY and draft.delivery_ms is not None and draft.delivery_ms <= now_ms:
        return None
    handler = handlers.get(kind)
    if handler is None:
        name = v2.MessageType.Name(v2.MessageType.ValueType(kind)).lower()
        raise WireError(v2.UNSUPPORTED, f"{name} messages are not supported by this broker")
    return handler


def _queue(draft: Draft, topic: Topic, turn: int) -> int:
    """Return the queue: fixed for a message group, a lite topic or a priority, else `turn`."""
    name = draft.message_group or (draft.message_type == v2.LITE and draft.lite_topic)
    if name:
        return fifo_queue(name, topic.write_queues)
    if draft.message_type == _PRIORITY:
        assert draft.priority is not None
        return min(draft.priority, topic.write_queues - 1)
    return turn


def _message(
    draft: Draft, topic: str, queue_id: int, origin: Origin, peer: tuple[str, bytes]
) -> Message:
    host, born_host = peer
    host = draft.born_host or host
    return Message(
        topic,
        queue_id,
        draft.body,
        encode_sent(draft, topic, origin.region, origin.cluster, host),
        0,
        SYS_COMPRESSED if draft.compressed else 0,
        draft.born_ms,
        born_host,
        origin.store_host,
    )
