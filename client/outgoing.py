"""Validation of outgoing messages and conversion to protobuf. Pure.

A message that no broker would accept raises ValueError or TypeError before anything is sent. At
most one of message group, delivery time, priority and transaction is set
(docs/formats/grpc-api.md, sections 4.3 and 10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..proto import v2

KEYS_MAX = 64
PROPERTIES_MAX = 128
GROUP_BYTES_MAX = 63


@dataclass(slots=True)
class Outgoing:
    """A validated message and the fields that routing needs."""

    proto: v2.Message
    topic: str
    message_id: str
    group: str
    kind: v2.MessageType.ValueType


def outgoing(
    topic: str,
    body: bytes,
    message_id: str,
    now_ms: int,
    *,
    tag: str = "",
    keys: Iterable[str] | str = (),
    properties: Mapping[str, str] | None = None,
    group: str = "",
    deliver_at: datetime | None = None,
    deliver_in: timedelta | float | None = None,
    priority: int | None = None,
    transactional: bool = False,
    trace_context: str = "",
) -> Outgoing:
    """Validate and build a message. Raises ValueError or TypeError.

    `deliver_in` is a timedelta or seconds.
    """
    body = _checked(body)
    delivery_ms = _delivery_ms(deliver_at, deliver_in, now_ms)
    kind = _kind(group, delivery_ms, priority, transactional)
    system = v2.SystemProperties(
        message_id=message_id,
        message_type=kind,
        body_encoding=v2.IDENTITY,
        keys=_keys(keys),
    )
    system.born_timestamp.FromMilliseconds(now_ms)
    if tag:
        if "|" in tag or not tag.strip():
            raise ValueError(f"invalid tag {tag!r}: a tag is not blank and has no '|'")
        system.tag = tag
    if group:
        if len(group.encode()) > GROUP_BYTES_MAX:
            raise ValueError(
                f"message group of {len(group.encode())} bytes: the limit is {GROUP_BYTES_MAX}"
            )
        system.message_group = group
    if delivery_ms is not None:
        system.delivery_timestamp.FromMilliseconds(delivery_ms)
    if priority is not None:
        system.priority = priority
    if trace_context:
        system.trace_context = trace_context
    message = v2.Message(topic=v2.Resource(name=topic), body=body, system_properties=system)
    for key, value in _properties(properties or {}):
        message.user_properties[key] = value
    return Outgoing(message, topic, message_id, group, kind)


def outgoing_like(
    first: Outgoing, bodies: Iterable[bytes], ids: Callable[[], str]
) -> list[Outgoing]:
    """Return messages that differ from `first` only in body and id."""
    template = v2.Message()
    template.CopyFrom(first.proto)
    template.ClearField("body")
    made = []
    for body in bodies:
        proto = v2.Message()
        proto.CopyFrom(template)
        proto.body = _checked(body)
        message_id = proto.system_properties.message_id = ids()
        made.append(Outgoing(proto, first.topic, message_id, first.group, first.kind))
    return made


def _checked(body: bytes) -> bytes:
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise TypeError(f"the body must be bytes, not {type(body).__name__}: encode it first")
    if not body:
        raise ValueError("the body is empty: brokers refuse empty messages")
    return bytes(body)


def _kind(
    group: str, delivery_ms: int | None, priority: int | None, transactional: bool
) -> v2.MessageType.ValueType:
    features = {
        "group": bool(group),
        "deliver_at/deliver_in": delivery_ms is not None,
        "priority": priority is not None,
        "a transaction": transactional,
    }
    used = [name for name, is_used in features.items() if is_used]
    if len(used) > 1:
        raise ValueError(f"{' and '.join(used)} cannot be combined in one message")
    if priority is not None and priority < 0:
        raise ValueError(f"priority {priority} is negative: use 0 or more")
    if transactional:
        return v2.TRANSACTION
    if group:
        return v2.FIFO
    if delivery_ms is not None:
        return v2.DELAY
    return v2.NORMAL if priority is None else v2.PRIORITY


def _delivery_ms(at: datetime | None, after: timedelta | float | None, now_ms: int) -> int | None:
    if at is not None and after is not None:
        raise ValueError("deliver_at and deliver_in are mutually exclusive")
    if at is not None:
        if not isinstance(at, datetime):
            raise TypeError(f"deliver_at must be a datetime, not {type(at).__name__}")
        if at.tzinfo is None:
            raise ValueError("deliver_at has no time zone: use datetime.now(timezone.utc) + ...")
        return int(at.timestamp() * 1000)
    if after is None:
        return None
    seconds = after.total_seconds() if isinstance(after, timedelta) else after
    if seconds < 0:
        raise ValueError(f"deliver_in of {seconds} s is negative: use 0 or more")
    return now_ms + round(seconds * 1000)


def _keys(keys: Iterable[str] | str) -> list[str]:
    found = [keys] if isinstance(keys, str) else list(keys)
    if len(found) > KEYS_MAX:
        raise ValueError(f"{len(found)} keys: a message has at most {KEYS_MAX}")
    for key in found:
        if not key or any(character.isspace() for character in key):
            raise ValueError(f"invalid key {key!r}: a key is not empty and has no white space")
    return found


def _properties(properties: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    if len(properties) > PROPERTIES_MAX:
        raise ValueError(f"{len(properties)} properties: a message has at most {PROPERTIES_MAX}")
    for key, value in properties.items():
        if not isinstance(value, str) or not isinstance(key, str):
            raise TypeError(f"property {key!r}={value!r}: names and values must be str")
        yield key, value
