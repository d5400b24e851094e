"""ReceiveMessage requests: checks, defaults and the lookups that other consumer RPCs share.

Order of the checks and their codes: docs/formats/grpc-api.md, section 5.6; polling time: section
7.2.
Settings of the client are used if known and never required (pitfall 22).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ...proto import v2
from ...proto.errors import WireError
from ...proto.short_polls import SHORT_POLL
from ..messages.convert import topic_field
from ..messages.filters import Filter, parse_filter
from ..messages.validation import (
    MAX_BATCH,
    MIN_INVISIBLE_MS,
    MIN_POLLING_MS,
    check_group,
    check_invisible,
    check_topic,
    duration_ms,
    polling_ms,
)
from ..names.delivery import RENEW_SLICE_MS

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ...store.message_store import MessageStore
    from ..clients.registry import ClientRegistry
    from ..metadata.tables import Group, Metadata, Topic
    from ..names.handles import ReceiptHandle


class PopRequest(Struct):
    """A ReceiveMessage that passed its checks."""

    topic: Topic
    group: Group
    client_id: str
    batch: int
    invisible_ms: int
    #: The client id if the broker renews the invisible time; else empty.
    owner: str
    tags: Filter | None
    attempt_id: str
    #: Field 1 of every message of the answer.
    topic_bytes: bytes
    #: It is a long poll: it waits for messages if there are none.
    may_wait: bool = False


def poll_time_ms(
    clients: ClientRegistry, request: v2.ReceiveMessageRequest, ctx: RequestContext, now_ns: int
) -> int:
    """Return how long the request may wait."""
    asked, timeout = None, 0
    if request.HasField("long_polling_timeout"):
        asked = duration_ms(request.long_polling_timeout)
    else:
        timeout = clients.request_timeout_ms(ctx.client_id)
    # The mark is searched for only if it matters: most polls are longer.
    short = asked is not None and asked < MIN_POLLING_MS
    short = short and (ctx.short_poll or ctx.has(SHORT_POLL))
    return polling_ms(asked, ctx.remaining_ms(now_ns), timeout, may_be_short=short)


def checked(
    metadata: Metadata, request: v2.ReceiveMessageRequest, ctx: RequestContext
) -> PopRequest:
    """Return the checked request. Raises WireError for the first check that fails."""
    topic_name = request.message_queue.topic.name
    check_topic(topic_name)
    group_name = request.group.name
    check_group(group_name)
    renew = request.auto_renew
    invisible_ms = RENEW_SLICE_MS
    if not renew:
        invisible_ms = duration_ms(request.invisible_duration)
        check_invisible(invisible_ms, MIN_INVISIBLE_MS)
    tags = parse_filter(request.filter_expression)
    topic = readable_topic(metadata, topic_name)
    return PopRequest(
        topic,
        consuming_group(metadata, group_name),
        ctx.client_id,
        min(request.batch_size, MAX_BATCH) if request.batch_size > 0 else 1,
        invisible_ms,
        ctx.client_id if renew else "",
        tags,
        request.attempt_id,
        topic_field(request.message_queue.topic),
    )


def readable_topic(metadata: Metadata, name: str) -> Topic:
    """Return the topic if consumers may read it. Raises WireError."""
    topic = metadata.topic(name)
    if topic is None:
        raise WireError(v2.TOPIC_NOT_FOUND, f"topic {name} does not exist")
    if not topic.readable:
        raise WireError(v2.FORBIDDEN, f"no readable queue: topic {name} may not be read")
    return topic


def consuming_group(metadata: Metadata, name: str) -> Group:
    """Return the group if it may consume; create it if groups are created automatically.

    Raises WireError.
    """
    group = metadata.ensure_group(name)
    if not group.consume_enable:
        # The reference's code: its refusal has no name on the wire
        # (docs/formats/broker-semantics.md, section 13).
        raise WireError(v2.INTERNAL_SERVER_ERROR, f"consumer group {name} is switched off")
    return group


def is_same_message(store: MessageStore, topic: str, handle: ReceiptHandle) -> bool:
    """Return whether the handle's message is the leader's message at that queue offset.

    A deposed leader delivers messages that only its own log holds. When its diverged tail is
    truncated, other messages get their queue offsets, and those handles must not consume them.
    Raises OSError.
    """
    queue_id = handle.queue_id
    if handle.offset >= store.writer.next_offset(topic, queue_id):
        return False
    if handle.physical_offset < 0 or handle.offset < store.min_offset(topic, queue_id):
        return True  # not decidable; and deleted messages are not delivered
    return store.reader.physical_offset_of(topic, queue_id, handle.offset) == handle.physical_offset
