"""SendMessage of anything but the common message: ordered checks, then what each message type needs.

Types (broker semantics, sections 5.1, 6.2, 6.4, 12.2; gRPC API, section 10.2): NORMAL and FIFO go to a
queue of their topic; PRIORITY to the queue of its priority; DELAY, TRANSACTION and LITE are handed to
the part that owns the type, which makes the record that is stored in their place. A part says that it
does by entering its `SpecialType` in `Sender.types`; without one the type is UNSUPPORTED. A message is
judged by its properties, not by the type that the client declares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.properties import encode_properties
from ...store.format.record import Message
from ..messages.convert import SYS_COMPRESSED
from ..messages.stored_properties import encode_sent, sent_properties
from ..messages.validation import Draft, check_message_type
from .answer import Special
from .fast_path import EXEMPT_PREFIXES, Origin, Prepared, TopicTemplate, fifo_queue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...front.context import RequestContext
    from ..metadata.tables import Topic

_NORMAL, _PRIORITY = v2.NORMAL, v2.PRIORITY
_ORDINARY = (v2.NORMAL, v2.FIFO, v2.PRIORITY)


@dataclass(frozen=True, slots=True)
class Sending:
    """Who sends, and when."""

    ctx: RequestContext
    peer: tuple[str, bytes]
    """The host as text, and its address as the store keeps it."""
    now_ms: int


class SpecialType(Protocol):
    """Who owns a message type whose messages are not stored as they are sent."""

    def prepare(
        self,
        draft: Draft,
        message: Message,
        properties: dict[str, str],
        topic: Topic,
        ctx: RequestContext,
    ) -> tuple[Message, Special | None]:
        """The record to store in the place of `message`, and what its receipt says.

        `message` lies in a queue of its topic and holds `properties`, encoded. Raises WireError.
        """
        ...


def writable_topic(topic: Topic | None, name: str) -> Topic:
    """The topic, if it takes messages. Raises WireError."""
    if topic is None:
        raise WireError(v2.TOPIC_NOT_FOUND, f"topic {name} does not exist")
    if not topic.writable:
        raise WireError(v2.FORBIDDEN, f"no writable queue: topic {name} takes no messages")
    return topic


def prepare_typed(
    drafts: list[Draft],
    lane: TopicTemplate,
    origin: Origin,
    types: Mapping[int, SpecialType],
    *,
    sender: Sending,
) -> Prepared:
    """The records of one request whose drafts passed the checks. Raises WireError."""
    topic, peer = lane.topic, sender.peer
    if not topic.name.startswith(EXEMPT_PREFIXES):
        check_message_type(drafts, topic.message_type)
    owners = [_owner(draft, types, sender.now_ms) for draft in drafts]
    turn = lane.next_queue()
    ready = Prepared([], [], topic.name, drafts[0].message_type, 0)
    specials: list[Special | None] = []
    for draft, owner in zip(drafts, owners, strict=True):
        message = _message(draft, topic.name, _queue(draft, topic, turn), origin, peer)
        special = None
        if owner is not None:
            host = draft.born_host or peer[0]
            properties = sent_properties(draft, topic.name, origin.region, origin.cluster, host)
            message.properties = encode_properties(properties)
            message, special = owner.prepare(draft, message, properties, topic, sender.ctx)
        ready.messages.append(message)
        ready.ids.append(draft.message_id.encode())
        ready.size += len(draft.body)
        specials.append(special)
    if any(specials):
        ready.specials = specials
    return ready


def _owner(draft: Draft, types: Mapping[int, SpecialType], now_ms: int) -> SpecialType | None:
    """Who makes the record of a message; None: it is stored as it is. Raises WireError."""
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
    owner = types.get(kind)
    if owner is None:
        name = v2.MessageType.Name(v2.MessageType.ValueType(kind)).lower()
        raise WireError(v2.UNSUPPORTED, f"{name} messages are not supported by this broker")
    return owner


def _queue(draft: Draft, topic: Topic, turn: int) -> int:
    """A group's messages keep to one queue; so do those of a lite topic; a priority is a queue."""
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
