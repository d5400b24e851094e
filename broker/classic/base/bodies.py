"""JSON bodies of requests: objects, lists and names, with limits, and the documents of clients.

Values are read as fastjson reads them (`bare_json.py`). Each reader of a document makes the whole
object of a request, or raises RemotingError: rights are decided on what the handler gets
(`Command.document`). The bodies of tools for users of type Super are read by their handlers.
"""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ....proto.request_limits import ACKS_MAX
from ....remoting.bare_json import (
    BareJsonError,
    QueueKey,
    as_bool,
    as_enum,
    as_int,
    as_text,
    loads,
    queue_key,
)
from ....remoting.codes import BY_LETTER, Reply
from ....remoting.connection import RemotingError
from ....remoting.headers import SendMessage
from .members import About, Subscription

if TYPE_CHECKING:
    from ....remoting.command import Command

#: A heartbeat or a list of queues: 1,000 subscriptions take about 200 KiB.
BODY_BYTES_MAX = 512 << 10
ITEMS_MAX = 1_000
NAME_CHARS_MAX = 255
#: The longest document that only fastjson can read: 30 ms of the event loop at most.
_BARE_BYTES_MAX = 32 << 10
#: Converts a value as fastjson does, by the type that is needed.
_CONVERTERS = {int: as_int, str: as_text, bool: as_bool}
#: Producer groups, and consumer groups, of one heartbeat: 20 ms of the event loop each.
_GROUPS_MAX = 500
_CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
_MODELS = ("BROADCASTING", "CLUSTERING")
_FROM_WHERE = (
    *("CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"),
    *("CONSUME_FROM_MIN_OFFSET", "CONSUME_FROM_MAX_OFFSET", "CONSUME_FROM_FIRST_OFFSET"),
    "CONSUME_FROM_TIMESTAMP",
)
#: The longest tag expression; SQL expressions have a lower limit.
_EXPRESSION_MAX = 16_384
#: Queues of one LOCK_BATCH_MQ, of all topics of a client at a broker: 20 ms of the event loop.
_QUEUES_MAX = 4_096
#: Characters kept of what a client tells of itself.
_LABEL_MAX = 64
#: 64 bytes in base64.
_BITS_CHARS_MAX = 88
#: Kinds of topics in receipt handles (`broker/names/handles.py`).
_KINDS = ("0", "1", "2")


def json_object(body: bytes) -> dict[Any, Any]:
    """Return the JSON object of a body."""
    if len(body) > BODY_BYTES_MAX:
        raise malformed(f"it is over {BODY_BYTES_MAX} bytes")
    try:
        text = body.decode("utf-8", "replace")
        try:
            document = json.loads(text)
        except ValueError:
            if len(body) > _BARE_BYTES_MAX:
                raise
            document = loads(body)
        else:
            if "\\u" in text:  # half of a surrogate pair: it cannot be encoded
                json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # RecursionError: too many levels
        raise malformed(str(error)) from None
    if not isinstance(document, dict):
        raise malformed("it is not a JSON object")
    return document


def items_of(document: Any, name: str, limit: int = ITEMS_MAX) -> list[Any]:
    """Return a list of an object; empty if it is absent."""
    items = document.get(name) if isinstance(document, dict) else None
    if items is None:
        return []
    if not isinstance(items, list) or len(items) > limit:
        raise malformed(f"{name} is not a list of at most {limit} items")
    return items


def name_of(document: Any, name: str) -> str:
    """Return a text of an object that is a name."""
    text = as_text(document.get(name)) if isinstance(document, dict) else None
    if text is None or not 0 < len(text) <= NAME_CHARS_MAX:
        raise malformed(f"{name} is not a text of 1 to {NAME_CHARS_MAX} characters")
    return text


def value_of(document: Any, name: str, kind: type, default: Any) -> Any:
    """Return a value of an object; the default if it is absent or null."""
    value = document.get(name) if isinstance(document, dict) else None
    if value is None:
        return default
    if type(value) is kind and kind is not int:  # an integer may be too large
        return value
    value = _CONVERTERS[kind](value) if kind in _CONVERTERS else None
    if value is None:
        raise malformed(f"{name} is not of type {kind.__name__}")
    return value


@contextmanager
def in_range() -> Iterator[None]:
    """Let a request of the gRPC protocol be built of a body's values: a number that its field
    cannot hold raises RemotingError."""
    try:
        yield
    except ValueError as error:
        raise malformed(str(error)) from None


def malformed(reason: str) -> RemotingError:
    """Return the error for a body that cannot be read."""
    return RemotingError(Reply.SYSTEM_ERROR, f"the body cannot be read: {reason}")


def sent_header(command: Command) -> SendMessage:
    """Return the header of a send or of a reply. Raises HeaderError."""
    return command.header(SendMessage, letters=command.code in BY_LETTER)


@dataclass(frozen=True, slots=True)
class ConsumerData:
    """One consumer group of a heartbeat."""

    group: str
    #: None: those that the group has.
    subscriptions: list[Subscription] | None
    about: About


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """HEART_BEAT: the groups that can be read, and why the others cannot."""

    client_id: str
    about: About
    producer_groups: list[str]
    consumers: list[ConsumerData]
    problems: list[RemotingError]


def heartbeat(command: Command) -> Heartbeat:
    """Read a heartbeat. The other groups of the client do not depend on one that is malformed."""
    document = json_object(command.body)
    about = About(command.language[:_LABEL_MAX], command.version)
    beat = Heartbeat(name_of(document, "clientID"), about, [], [], [])
    light = value_of(document, "withoutSub", bool, False)
    for each in _groups_of(document, "producerDataSet", beat.problems):
        with _collecting(beat.problems):
            beat.producer_groups.append(name_of(each, "groupName"))
    for each in _groups_of(document, "consumerDataSet", beat.problems):
        with _collecting(beat.problems):
            beat.consumers.append(_consumer_data(each, about, light=light))
    return beat


def _groups_of(document: Any, name: str, problems: list[RemotingError]) -> list[Any]:
    """Return the groups of a heartbeat up to the limit, beyond which there is a problem."""
    items = items_of(document, name, sys.maxsize)
    if len(items) > _GROUPS_MAX:
        problems.append(
            RemotingError(
                Reply.SYSTEM_BUSY,
                f"{name} has {len(items)} groups: a client has at most {_GROUPS_MAX}, and the "
                "others are ignored; use several client instances",
            )
        )
    return items[:_GROUPS_MAX]


@contextmanager
def _collecting(problems: list[RemotingError]) -> Iterator[None]:
    try:
        yield
    except RemotingError as error:
        problems.append(error)


def _consumer_data(document: Any, about: About, *, light: bool) -> ConsumerData:
    group = name_of(document, "groupName")
    labels = (
        as_enum(document.get(name), names)[:_LABEL_MAX]
        for name, names in (
            ("consumeType", _CONSUME_TYPES),
            ("messageModel", _MODELS),
            ("consumeFromWhere", _FROM_WHERE),
        )
    )
    subscriptions = None if light else _subscriptions(document)
    return ConsumerData(group, subscriptions, About(about.language, about.version, *labels))


@dataclass(frozen=True, slots=True)
class CheckedSubscription:
    """CHECK_CLIENT_CONFIG."""

    #: Clients name it in every version; empty without one.
    group: str
    subscription: Subscription


def checked_subscription(command: Command) -> CheckedSubscription:
    """Read a subscription that is to be checked."""
    document = json_object(command.body)
    group = name_of(document, "group") if value_of(document, "group", str, "") else ""
    return CheckedSubscription(group, _subscription(document.get("subscriptionData")))


@dataclass(frozen=True, slots=True)
class QueueList:
    """LOCK_BATCH_MQ, UNLOCK_BATCH_MQ."""

    group: str
    client_id: str
    queues: list[QueueKey]
    #: What is ignored, for the answer; None: nothing.
    remark: str | None


def queue_list(command: Command) -> QueueList:
    """Read a list of queues, at most _QUEUES_MAX of them."""
    document = json_object(command.body)
    items = items_of(document, "mqSet", sys.maxsize)
    try:
        queues = [queue_key(item) for item in items[:_QUEUES_MAX]]
    except BareJsonError as error:
        raise malformed(str(error)) from None
    remark = None
    if len(items) > _QUEUES_MAX:
        remark = f"mqSet has {len(items)} queues: those after the first {_QUEUES_MAX} are ignored"
    group, client_id = name_of(document, "consumerGroup"), name_of(document, "clientId")
    return QueueList(group, client_id, queues, remark)


@dataclass(frozen=True, slots=True)
class AskedAssignment:
    """QUERY_ASSIGNMENT."""

    group: str
    client_id: str
    topic: str
    broadcasting: bool


def asked_assignment(command: Command) -> AskedAssignment:
    """Read a request for an assignment."""
    document = json_object(command.body)
    return AskedAssignment(
        name_of(document, "consumerGroup"),
        name_of(document, "clientId"),
        name_of(document, "topic"),
        as_enum(document.get("messageModel"), _MODELS) == "BROADCASTING",
    )


@dataclass(frozen=True, slots=True)
class BatchAck:
    """BATCH_ACK_MESSAGE."""

    #: Receipt handles by group and topic (the retry topic for a message from there).
    handles: dict[tuple[str, str], list[str]]


def batch_ack(command: Command) -> BatchAck:
    """Read acknowledgements, at most ACKS_MAX in all."""
    document = json_object(command.body)
    broker = name_of(document, "brokerName")
    entries = [_ack_entry(item) for item in items_of(document, "acks")]
    total = sum(bits.bit_count() for _, _, bits in entries)  # before a handle is made
    if total > ACKS_MAX:
        raise RemotingError(Reply.INVALID_PARAMETER, f"over {ACKS_MAX} messages in one request")
    handles: dict[tuple[str, str], list[str]] = {}
    for item, (start, *rest), bits in entries:
        pop_ms, invisible_ms, revive, queue_id = rest
        kind = value_of(item, "r", str, "0")
        made = handles.setdefault((name_of(item, "c"), name_of(item, "t")), [])
        head = f"{start} {pop_ms} {invisible_ms} {revive} {kind} {broker} {queue_id}"
        made.extend(f"{head} {start + bit}" for bit in range(bits.bit_length()) if bits >> bit & 1)
    return BatchAck(handles)


def _ack_entry(item: Any) -> tuple[dict[Any, Any], list[int], int]:
    """Return an entry, its numbers and its bits."""
    if not isinstance(item, dict):
        raise malformed("an entry of the acknowledgement is not an object")
    numbers = [_long(item, name) for name in ("so", "pt", "it", "rq", "q")]
    bits = item.get("b")
    if not isinstance(bits, str) or value_of(item, "r", str, "0") not in _KINDS:
        raise malformed("the bits or the kind of the topic of an entry are invalid")
    if len(bits) > _BITS_CHARS_MAX:
        raise malformed(f"the bits of an entry are over {_BITS_CHARS_MAX} characters")
    try:
        return item, numbers, int.from_bytes(base64.b64decode(bits, validate=True), "little")
    except (binascii.Error, ValueError):
        raise malformed("the bits of an entry are not base64") from None


def _long(document: dict[Any, Any], name: str) -> int:
    value = as_int(document.get(name))
    if value is None:
        raise malformed(f"{name} is not a 64-bit integer")
    return value


def _subscriptions(group: Any) -> list[Subscription]:
    """Return the subscriptions of a group.

    Expressions are not parsed here, which takes 20 ms for a long one: the pulls of a topic are
    refused with the reason, the heartbeat is not.
    """
    return [_subscription(item) for item in items_of(group, "subscriptionDataSet")]


def _subscription(item: Any) -> Subscription:
    if not isinstance(item, dict):
        raise malformed("a subscription is not an object")
    expression = value_of(item, "subString", str, "*")
    version = value_of(item, "subVersion", int, 0)
    kind = value_of(item, "expressionType", str, "") or "TAG"
    if max(len(expression), len(kind)) > _EXPRESSION_MAX:
        raise malformed(f"an expression is longer than {_EXPRESSION_MAX} characters")
    return Subscription(name_of(item, "topic"), expression, kind, version)
