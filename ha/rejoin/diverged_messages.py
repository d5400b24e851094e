"""Messages of an archived tail: turns its records into sends for a replay.

Mapping of records (docs/formats/broker-semantics.md, sections 5.1, 6.2 and 6.4; docs/formats/ha.md,
R7):

    Record of                                      Replayed as
    a topic                                        the same message: id, tag, keys, group,
                                                   properties, body as compressed
    the timer topic, the schedule topic            the message with its delivery time, for its own
                                                   topic
    the half topic                                 the half message, unless the tail has its outcome
                                                   too
    metadata, pop checkpoints, decisions           nothing: the leader writes its own
    a retry or dead-letter topic, a timer's copy   nothing: the original message is delivered again

Every message gets the user property REPLAYED_FROM = <file id>@<offset>, because consumers may
receive it twice. No message with an unknown outcome is left out.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from ...proto import v2
from ...store.format.properties import DELAY_LEVELS_MS, SCHEDULE_TOPIC, whole_number
from ...store.format.property_names import FORBIDDEN_PROPERTIES
from ...store.format.record import Record, decode, unpack_host
from ...store.scan.files import open_bytes
from ...store.timer.rules import OUT_MS, REAL_TOPIC, TIMER_TOPIC, UNIQUE_KEY

ORIGIN: Final = "REPLAYED_FROM"
DEQUEUED: Final = b"TIMER_DEQUEUE_MS"
_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
_OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
_NOT_SENT: Final = ("rmq_sys_COMETMQ_", "rmq_sys_REVIVE_LOG_", "%RETRY%", "%DLQ%")
_COMPRESSED: Final = 0x1
_INT_MAX: Final = (1 << 31) - 1
_TIME_MAX_MS: Final = 253_402_300_799_999  #: of a google.protobuf.Timestamp
#: Properties that a producer does not set: they are set again, or are valid only in the original
#: log.
_SYSTEM_NAMES: Final = FORBIDDEN_PROPERTIES | {ORIGIN}


def is_message(topic: str) -> bool:
    """Return whether records of this topic are messages of producers."""
    return topic != _OP_TOPIC and not topic.startswith(_NOT_SENT)


class Resend(Struct, frozen=True):
    """One message to send again."""

    offset: int  #: of its record in the former log
    end: int
    message: v2.Message


def records(path: Path, start: int) -> Iterator[Record]:
    """Yield the whole records of an archive that begins at offset `start`; other bytes are
    skipped."""
    from ...store.scan.walk import walk

    data = open_bytes(path)
    # The bytes span several segments: every blank ends a walk, and the next record starts another.
    position = 0
    while 0 <= position < len(data):
        walked = walk(data, start, position, len(data), "skip", check_crc=True)
        for columns in walked:
            for at, size in zip(columns.position.tolist(), columns.size.tolist(), strict=True):
                yield decode(data[at : at + size])
        position = _next_record(data, start, walked.end)


def _next_record(data: Any, start: int, position: int) -> int:
    from ...store.scan.walk import find_record

    return (
        find_record(memoryview(data), position + 1, len(data), start)
        if position < len(data)
        else -1
    )


def messages(path: Path, start: int, file_id: str) -> Iterator[Resend]:
    """Yield the messages of an archive in the order of the log."""
    settled = _settled(path, start)
    for record in records(path, start):
        properties = record.properties_dict
        if not is_message(record.topic) or _is_copy(record.topic, properties):
            continue
        if record.topic == _HALF_TOPIC and (
            record.queue_offset in settled.offsets or properties.get(UNIQUE_KEY) in settled.ids
        ):
            continue
        message = _message(record, properties)
        if message is not None:
            message.user_properties[ORIGIN] = f"{file_id}@{record.physical_offset}"
            yield Resend(record.physical_offset, record.physical_offset + record.size, message)


def _is_copy(topic: str, properties: Mapping[str, str]) -> bool:
    """Return whether a timer made it: the timer's own record stays, or is sent again."""
    return topic != TIMER_TOPIC and DEQUEUED.decode() in properties


class _Settled(Struct):
    """Half messages whose outcome is in the tail, by offset in the half queue and by id."""

    offsets: set[int]
    ids: set[str]


def _settled(path: Path, start: int) -> _Settled:
    settled = _Settled(set(), set())
    for record in records(path, start):
        if record.topic == _OP_TOPIC:
            numbers = (whole_number(part.strip()) for part in record.body.split(b","))
            settled.offsets.update(number for number in numbers if number is not None)
        elif record.topic != _HALF_TOPIC and b"TRAN_MSG" in record.properties:
            settled.ids.add(record.properties_dict.get(UNIQUE_KEY, ""))
    return settled


def _message(record: Record, properties: Mapping[str, str]) -> v2.Message | None:
    """Return the message to send, or None if it has no destination topic."""
    waits = record.topic in (TIMER_TOPIC, SCHEDULE_TOPIC, _HALF_TOPIC)
    topic = properties.get(REAL_TOPIC, "") if waits else record.topic
    if not topic or (waits and not is_message(topic)):
        return None
    message = v2.Message(body=record.body)
    message.topic.name = topic
    for name, value in properties.items():
        if name not in _SYSTEM_NAMES:
            message.user_properties[name] = value
    _set_system(message.system_properties, record, properties)
    return message


def _set_system(system: Any, record: Record, properties: Mapping[str, str]) -> None:
    system.message_id = properties.get(UNIQUE_KEY) or f"replayed-{record.physical_offset}"
    if "TAGS" in properties:
        system.tag = properties["TAGS"]
    system.keys.extend(key for key in properties.get("KEYS", "").split(" ") if key)
    system.body_encoding = v2.GZIP if record.sys_flag & _COMPRESSED else v2.IDENTITY
    system.born_timestamp.FromMilliseconds(min(max(record.born_timestamp_ms, 0), _TIME_MAX_MS))
    system.born_host = properties.get("__BORNHOST") or _host(record.born_host)
    system.message_type = v2.NORMAL
    group, lite = properties.get("__SHARDINGKEY"), properties.get("__LITE_TOPIC")
    priority = whole_number(properties.get("_SYS_MSG_PRIORITY_", ""))
    due_ms = _due_ms(record, properties)
    if group:
        system.message_group, system.message_type = group, v2.FIFO
    if lite:
        system.lite_topic, system.message_type = lite, v2.LITE
    if priority is not None and priority <= _INT_MAX:
        system.priority, system.message_type = priority, v2.PRIORITY
    if due_ms:
        system.delivery_timestamp.FromMilliseconds(min(due_ms, _TIME_MAX_MS))
        system.message_type = v2.DELAY
    if record.topic == _HALF_TOPIC:
        system.message_type = v2.TRANSACTION
    if "TRACE_CONTEXT" in properties:
        system.trace_context = properties["TRACE_CONTEXT"]


def _due_ms(record: Record, properties: Mapping[str, str]) -> int:
    """Return its delivery time; 0: immediately."""
    if record.topic == TIMER_TOPIC:
        for name in ("TIMER_DELIVER_MS", OUT_MS):
            due_ms = whole_number(properties.get(name, ""))
            if due_ms is not None:
                return due_ms
    level = whole_number(properties.get("DELAY", ""))
    if record.topic == SCHEDULE_TOPIC and level is not None:
        level = min(max(level, 1), len(DELAY_LEVELS_MS))
        return record.store_timestamp_ms + DELAY_LEVELS_MS[level - 1]
    return 0


def _host(packed: bytes) -> str:
    try:
        host, port = unpack_host(packed)
    except (ValueError, OSError):
        return ""
    return f"{host}:{port}"
