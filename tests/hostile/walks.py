"""Attacks that walk the gRPC protocol: each field of each request gets hostile values in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from cometmq.proto import paths, v1, v2
from cometmq.proto.methods import RpcMethod, rpc_methods
from cometmq.tests.harness.wire import Wire
from cometmq.tests.hostile.attacker import (
    ADMIN,
    MESSAGING,
    Attacker,
    attack,
    connect,
    sub,
)
from cometmq.tests.hostile.sizes import TOO_LARGE, telemetry
from cometmq.tests.hostile.values import EXTREMES, NAMES, POLL_S, REFUSALS

NAMESERVER = "cometmq.v1.NameServer"
#: Their success would harm the neighbour: a drained broker, another leader, configuration, quota.
EXCLUDED = ("SetDrained", "ChangeReplication", "ChangeConfig", "PutQuota")
#: Of the elements that every bound refuses.
REPEATED = 30_000
_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(1 << 31), (1 << 31) - 1),
}
#: Texts that pass the first checks of the fields with these names.
_PLAUSIBLE = {
    "topic": "walked",
    "name": "walked",
    "group": "walkers",
    "broker": "",
    "receipt_handle": "1 1764000000000 30000 1 0 broker-a 0 0 0",
    "expression": "*",
    "message_type": "normal",
}
_TEXTS = (*NAMES, "", "9" * 5_000, "-1", "\ud7ff\ue000", "a=b;c=d", "*", "{", "[" * 5_000)


def _plausible(descriptor: Descriptor) -> Any:
    """Return a message of a type with a value in every field; the first one of a oneof."""
    made = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        oneof = field.containing_oneof
        if oneof is not None and oneof.fields[0] is not field and len(oneof.fields) > 1:
            continue
        _set(made, field, _value(field))
    return made


def _value(field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return _plausible(field.message_type)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        text = _PLAUSIBLE.get(field.name, "walked")
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return False
    return 1 if field.cpp_type in _INTEGERS else 1.0


def _set(message: Any, field: FieldDescriptor, value: Any) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return
    if field.is_repeated:
        getattr(message, field.name).append(value)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        getattr(message, field.name).CopyFrom(value)
    else:
        setattr(message, field.name, value)


def hostile_requests(descriptor: Descriptor) -> Iterator[Any]:
    """Yield requests that are plausible but for one field, which has each of its hostile values."""
    base = _plausible(descriptor)
    for path in _leaves(descriptor):
        field = path[-1]
        for value in _hostile_values(field):
            made = type(base)()
            made.CopyFrom(base)
            inner = made
            for step in path[:-1]:
                found = getattr(inner, step.name)
                inner = (found[0] if found else found.add()) if step.is_repeated else found
            if field.is_repeated:
                del getattr(inner, field.name)[:]
            _set(inner, field, value)
            yield made


def _leaves(
    descriptor: Descriptor, before: tuple[FieldDescriptor, ...] = ()
) -> Iterator[tuple[FieldDescriptor, ...]]:
    for field in descriptor.fields:
        kind = field.message_type
        if kind is None:
            yield (*before, field)
        elif not kind.GetOptions().map_entry:
            yield from _leaves(kind, (*before, field))


def _hostile_values(field: FieldDescriptor) -> Iterator[Any]:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        is_bytes = field.type == FieldDescriptor.TYPE_BYTES
        yield from (text.encode() if is_bytes else text for text in _TEXTS)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        yield True
    elif field.cpp_type in _INTEGERS:
        low, high = _INTEGERS[field.cpp_type]
        yield from {max(low, min(value, high)) for value in EXTREMES}
    else:
        yield from (float("nan"), float("inf"), -1.0, 1e308)


def _methods(service: str) -> list[RpcMethod]:
    return [
        method
        for name, method in rpc_methods(service).items()
        if not method.client_streaming and name not in EXCLUDED
    ]


async def _walk(one: Attacker, service: str, wire: Wire | None = None) -> str:
    await one.outcome(paths.CREATE_TOPIC, v1.CreateTopicRequest(name="walked", queues=2))
    await one.outcome(paths.CREATE_GROUP, v1.CreateGroupRequest(name="walkers"))
    answers = []
    for method in _methods(service):
        requests = hostile_requests(method.request.DESCRIPTOR)
        answers.append(
            await one.outcomes(method.path, requests, at_once=4, within_s=POLL_S, wire=wire)
        )
    return _words(answers)


def _words(answers: list[str]) -> str:
    """Return each word of several summaries once."""
    return " ".join(sorted({word.partition(":")[0] for text in answers for word in text.split()}))


WALKED = (*REFUSALS, *TOO_LARGE, "ILLEGAL_ACCESS_POINT")


@attack(*WALKED)
async def every_field_of_every_client_request(one: Attacker) -> str:
    """Extreme numbers and hostile texts in each field of the client protocol."""
    return await _walk(one, MESSAGING)


# ReadLog returns INTERNAL_SERVER_ERROR for a place where no record begins, as for a damaged log.
@attack(*WALKED, "INTERNAL_SERVER_ERROR")
async def every_field_of_every_admin_request(one: Attacker) -> str:
    """Extreme numbers and hostile texts in each field of the administrative service."""
    return await _walk(one, ADMIN)


@attack(*WALKED)
async def every_field_of_every_nameserver_request(one: Attacker) -> str:
    """Extreme numbers and hostile texts in each field of the nameserver's services."""
    answers = []
    async with connect(f"127.0.0.1:{one.target.node.ports['namesrv']}") as wire:
        for service in (NAMESERVER, MESSAGING):
            answers.append(await _walk(one, service, wire))
    return _words(answers)


# INTERNAL: see `telemetry_flood`. A command that only a server sends has no answer.
@attack(*WALKED, "INTERNAL", "no", "answer")
async def every_field_of_telemetry(one: Attacker) -> str:
    """Extreme numbers and hostile texts in each field of a telemetry command."""
    answers = []
    for field in v2.TelemetryCommand.DESCRIPTOR.fields:
        if field.message_type is None:
            continue
        requests = [
            v2.TelemetryCommand(**{field.name: made}).SerializeToString()
            for made in hostile_requests(field.message_type)
        ]
        for first in range(0, len(requests), 50):
            some = requests[first : first + 50]
            answers += await asyncio.gather(*(telemetry(one, one.wire, each) for each in some))
    return _words(answers)


@attack(*WALKED)
async def every_repeated_field(one: Attacker) -> str:
    """30,000 elements in each repeated field of each request."""
    answers = []
    for service in (MESSAGING, ADMIN):
        for method in _methods(service):
            for path in _repeated(method.request.DESCRIPTOR):
                request = _inside(path[:-1], sub(path[-1].number, b"") * REPEATED)
                answers.append(await one.outcome(method.path, request, within_s=POLL_S))
    return _words(answers)


def _inside(path: tuple[FieldDescriptor, ...], content: bytes) -> bytes:
    """Return a request that has encoded fields in the message at a path."""
    for step in reversed(path):
        content = sub(step.number, content)
    return content


def _repeated(
    descriptor: Descriptor, before: tuple[FieldDescriptor, ...] = ()
) -> Iterator[tuple[FieldDescriptor, ...]]:
    for field in descriptor.fields:
        if field.is_repeated:
            yield (*before, field)
        if field.message_type is not None:
            yield from _repeated(field.message_type, (*before, field))


@attack("INVALID_ARGUMENT")
async def texts_that_are_not_utf_8(one: Attacker) -> str:
    """Invalid UTF-8 in each text of each request."""
    answers = []
    for service in (MESSAGING, ADMIN):
        for method in _methods(service):
            for path in _leaves(method.request.DESCRIPTOR):
                if path[-1].type != FieldDescriptor.TYPE_STRING:
                    continue
                for text in (b"\xff", b"a\xc3", b"\xed\xa0\x80"):
                    request = _inside(path[:-1], sub(path[-1].number, text))
                    answers.append(await one.outcome(method.path, request, within_s=POLL_S))
    return _words(answers)


@attack(*WALKED)
async def groups_nested_deeply(one: Attacker) -> str:
    """Unknown groups nested 20,000 times, and messages nested 2,000 times."""
    nested = b"\xa3\x06" * 20_000 + b"\xa4\x06" * 20_000
    deep = b""
    for _ in range(2_000):
        deep = sub(100, deep)
    answers = []
    for service in (MESSAGING, ADMIN):
        for method in _methods(service):
            for request in (nested, deep):
                answers.append(await one.outcome(method.path, request, within_s=POLL_S))
    return _words(answers)
