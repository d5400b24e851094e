"""Validation of outgoing messages, and the SendMessage request with them. Pure.

A message that no broker would accept raises ValueError or TypeError before anything is sent. At
most one of message group, delivery time, priority and transaction is set
(docs/formats/grpc-api.md, sections 4.3 and 10). The native crate encodes requests, if it is
installed; `tests/client/message_cases.py` compares both.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache

from ..proto import native, v2

KEYS_MAX = 64
PROPERTIES_MAX = 128
GROUP_BYTES_MAX = 63
PRIORITY_MAX = (1 << 31) - 1
#: Bounds of protobuf's timestamps: the years 1 to 9999.
DELIVERY_MIN_MS, DELIVERY_MAX_MS = -62_135_596_800_000, 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class Header:
    """The validated fields that messages of one call share: all but body and id."""

    namespace: str
    topic: str
    kind: v2.MessageType.ValueType
    born_ms: int
    tag: str
    keys: tuple[str, ...]
    properties: dict[str, str]
    group: str
    delivery_ms: int | None
    priority: int | None
    trace_context: str
    #: The crate does not encode it.
    lite_topic: str = ""


@dataclass(slots=True)
class Outgoing:
    """A validated message."""

    header: Header
    body: bytes
    message_id: str
    #: What interceptors got, and may have changed; if set, it is sent instead of the other fields.
    proto: v2.Message | None = None

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self.header.topic

    @property
    def group(self) -> str:
        """Message group, or an empty text."""
        return self.header.group

    @property
    def sequence(self) -> str:
        """What keeps its order: the message group or the lite topic, or an empty text."""
        return self.header.group or self.header.lite_topic

    @property
    def kind(self) -> v2.MessageType.ValueType:
        """Type of the message."""
        return self.header.kind


def outgoing(
    topic: str,
    body: bytes,
    message_id: str,
    now_ms: int,
    *,
    namespace: str = "",
    tag: str = "",
    keys: Iterable[str] | str = (),
    properties: Mapping[str, str] | None = None,
    group: str = "",
    deliver_at: datetime | None = None,
    deliver_in: timedelta | float | None = None,
    priority: int | None = None,
    lite_topic: str = "",
    transactional: bool = False,
    trace_context: str = "",
) -> Outgoing:
    """Validate a message. Raises ValueError or TypeError.

    `deliver_in` is a timedelta or seconds.
    """
    body = _checked(body)
    tag = _text("tag", tag or "")
    if tag and ("|" in tag or not tag.strip()):
        raise ValueError(f"invalid tag {tag!r}: a tag is not blank and has no '|'")
    group = _text("message group", group or "")
    if len(group.encode()) > GROUP_BYTES_MAX:
        raise ValueError(
            f"message group of {len(group.encode())} bytes: the limit is {GROUP_BYTES_MAX}"
        )
    priority = _priority(priority)
    delivery_ms = _delivery_ms(deliver_at, deliver_in, now_ms)
    header = Header(
        _text("namespace", namespace or ""),
        _text("topic", topic),
        _kind(group, delivery_ms, priority, lite_topic, transactional),
        now_ms,
        tag,
        _keys(keys),
        dict(_properties(properties or {})),
        group,
        delivery_ms,
        priority,
        _text("trace context", trace_context or ""),
        _text("lite topic", lite_topic or ""),
    )
    return Outgoing(header, body, _text("message id", message_id))


def outgoing_like(
    first: Outgoing, bodies: Iterable[bytes], ids: Callable[[], str]
) -> list[Outgoing]:
    """Return messages that differ from `first` only in body and id."""
    header = first.header
    return [Outgoing(header, _checked(body), ids()) for body in bodies]


def message_proto(message: Outgoing) -> v2.Message:
    """Return the protobuf message, without a queue."""
    proto = _header_proto(message.header)
    proto.system_properties.message_id = message.message_id
    proto.body = message.body
    return proto


def _header_proto(header: Header) -> v2.Message:
    system = v2.SystemProperties(
        message_type=header.kind, body_encoding=v2.IDENTITY, keys=header.keys
    )
    system.born_timestamp.FromMilliseconds(header.born_ms)
    if header.tag:
        system.tag = header.tag
    if header.group:
        system.message_group = header.group
    if header.delivery_ms is not None:
        system.delivery_timestamp.FromMilliseconds(header.delivery_ms)
    if header.priority is not None:
        system.priority = header.priority
    if header.trace_context:
        system.trace_context = header.trace_context
    if header.lite_topic:
        system.lite_topic = header.lite_topic
    return v2.Message(
        topic=v2.Resource(resource_namespace=header.namespace, name=header.topic),
        user_properties=header.properties,
        system_properties=system,
    )


@cache
def _native_request() -> Callable[[Sequence[Outgoing], int], bytes] | None:
    """Return the crate's function; None without the crate. Raises NativeVersionError."""
    crate = native.load()
    return None if crate is None else crate.send_request


def send_request(messages: Sequence[Outgoing], queue_id: int) -> bytes:
    """Return the encoded SendMessage request with these messages for a queue."""
    native_request = _native_request()
    if native_request is not None and all(
        message.proto is None and not message.header.lite_topic for message in messages
    ):
        return native_request(messages, queue_id)
    return python_request(messages, queue_id)


def python_request(messages: Sequence[Outgoing], queue_id: int) -> bytes:
    """Return the request as `send_request` does, without the crate."""
    request = v2.SendMessageRequest()
    header: Header | None = None
    for message in messages:
        sent = request.messages.add()
        if message.proto is not None:
            sent.CopyFrom(message.proto)
        else:
            if message.header is not header:  # messages of one call share it
                header = message.header
                template = _header_proto(header)
            sent.CopyFrom(template)
            sent.system_properties.message_id = message.message_id
            sent.body = message.body
        sent.system_properties.queue_id = queue_id
    return request.SerializeToString()


def _text(what: str, value: str) -> str:
    """Return a text that UTF-8 can encode. Raises TypeError, ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"the {what} must be str, not {type(value).__name__}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the {what} is not valid Unicode: {error}") from None
    return value


def _checked(body: bytes) -> bytes:
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise TypeError(f"the body must be bytes, not {type(body).__name__}: encode it first")
    if not body:
        raise ValueError("the body is empty: brokers refuse empty messages")
    return bytes(body)


def _kind(
    group: str,
    delivery_ms: int | None,
    priority: int | None,
    lite_topic: str,
    transactional: bool,
) -> v2.MessageType.ValueType:
    features = {
        "group": bool(group),
        "deliver_at/deliver_in": delivery_ms is not None,
        "priority": priority is not None,
        "lite_topic": bool(lite_topic),
        "a transaction": transactional,
    }
    used = [name for name, is_used in features.items() if is_used]
    if len(used) > 1:
        raise ValueError(f"{' and '.join(used)} cannot be combined in one message")
    if transactional:
        return v2.TRANSACTION
    if group:
        return v2.FIFO
    if delivery_ms is not None:
        return v2.DELAY
    if lite_topic:
        return v2.LITE
    return v2.NORMAL if priority is None else v2.PRIORITY


def _priority(priority: int | None) -> int | None:
    if priority is None:
        return None
    if isinstance(priority, bool) or not hasattr(priority, "__index__"):
        raise TypeError(f"the priority must be int, not {type(priority).__name__}")
    number = operator.index(priority)
    if not 0 <= number <= PRIORITY_MAX:
        raise ValueError(f"priority {number} is out of range: use 0 to {PRIORITY_MAX}")
    return number


def _delivery_ms(at: datetime | None, after: timedelta | float | None, now_ms: int) -> int | None:
    if at is not None and after is not None:
        raise ValueError("deliver_at and deliver_in are mutually exclusive")
    if at is not None:
        if not isinstance(at, datetime):
            raise TypeError(f"deliver_at must be a datetime, not {type(at).__name__}")
        if at.tzinfo is None:
            raise ValueError("deliver_at has no time zone: use datetime.now(timezone.utc) + ...")
        return _delivery_time_ms(at.timestamp() * 1000)
    if after is None:
        return None
    seconds = after.total_seconds() if isinstance(after, timedelta) else after
    if seconds < 0:
        raise ValueError(f"deliver_in of {seconds} s is negative: use 0 or more")
    return _delivery_time_ms(now_ms + seconds * 1000, round)


def _delivery_time_ms(time_ms: float, whole: Callable[[float], int] = int) -> int:
    if not DELIVERY_MIN_MS <= time_ms <= DELIVERY_MAX_MS:  # also for NaN
        raise ValueError(
            f"the delivery time of {time_ms:.15g} ms since 1970 is not in the years 1 to 9999"
        )
    return whole(time_ms)


def _keys(keys: Iterable[str] | str) -> tuple[str, ...]:
    found = (keys,) if isinstance(keys, str) else tuple(keys)
    if len(found) > KEYS_MAX:
        raise ValueError(f"{len(found)} keys: a message has at most {KEYS_MAX}")
    for key in found:
        if not _text("key", key) or any(character.isspace() for character in key):
            raise ValueError(f"invalid key {key!r}: a key is not empty and has no white space")
    return found


def _properties(properties: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    if len(properties) > PROPERTIES_MAX:
        raise ValueError(f"{len(properties)} properties: a message has at most {PROPERTIES_MAX}")
    for key, value in properties.items():
        if not isinstance(value, str) or not isinstance(key, str):
            raise TypeError(f"property {key!r}={value!r}: names and values must be str")
        yield _text("name of a property", key), _text(f"property {key[:64]!r}", value)
