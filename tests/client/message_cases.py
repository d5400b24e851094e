"""Generated messages of the SDK, common and odd: sent and received, by the crate and by Python.

    python -m cometmq.tests.client.message_cases --messages 10000000 [--seed 1]

compares requests that the native crate encodes, and messages that it reads in responses, with
Python's, and prints the rate.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from cometmq.broker.messages.wire import field
from cometmq.client.message import Message, NativeRead, native_read, read_message
from cometmq.client.outgoing import Outgoing, outgoing, outgoing_like, python_request
from cometmq.client.transport.addresses import parse_endpoints
from cometmq.proto import native, v2

BROKER, SOURCE = "broker-é", parse_endpoints("127.0.0.1:8081")
NOW_MS = 1_700_000_000_123
_TEXTS = ["", "a", "key-1", "é", "\x00", "日本", "x" * 200]
_SECONDS = [0, 1, -1, 1_700_000_000, 253_402_300_799]
_ODD_SECONDS = [*_SECONDS, -(1 << 63), (1 << 63) - 1]
_ODD_SECONDS += [side * (9_223_372_036_854_772 + n) for n in range(5) for side in (1, -1)]
_INTEGERS = [0, 1, 7, -1, (1 << 31) - 1, -(1 << 31)]
#: Further fields of a message; of its system properties: numbers of more than 32 bits.
_EXTRA = [b"\x0a\x00", b"\x12\x00", b"\x22\x01x", b"\x1a\x02\x68\x01", b"\x18\x01", b"\x2a\x00"]
_EXTRA_SYSTEM = [key + b"\x82\x80\x80\x80\x10" for key in (b"\x68", b"\x30", b"\x28")]


class Cases:
    """Makes messages from a source of numbers."""

    def __init__(self, source: random.Random) -> None:
        self._source = source

    def outgoing(self) -> list[Outgoing]:
        """Return the messages of a request."""
        source = self._source
        made: list[Outgoing] = []
        for _ in range(source.choice((1, 1, 2))):
            first = outgoing(self._text(), b"x", self._text(), NOW_MS, **self._fields())
            made += outgoing_like(first, [self._body() for _ in range(3)], self._text)
        return made

    def response(self) -> bytes:
        """Return a response; most have a message, about half of them a common one."""
        source = self._source
        odd = source.random() < 0.4
        if odd and source.random() < 0.1:
            status = v2.Status(code=v2.OK, message=self._text())
            return v2.ReceiveMessageResponse(status=status).SerializeToString()
        message = v2.Message(topic=v2.Resource(name=self._text()), body=self._body())
        for _ in range(source.randrange(3)):
            message.user_properties[self._text()] = self._text()
        properties = v2.SystemProperties()
        self._fill(properties, message.body, odd)
        system = properties.SerializeToString()
        if odd and source.random() < 0.2:
            system += source.choice(_EXTRA_SYSTEM)
        raw = message.SerializeToString() + field(b"\x1a", system)
        if odd and source.random() < 0.2:
            raw += source.choice(_EXTRA)
        raw = field(b"\x12", raw)
        if odd and source.random() < 0.4:
            at = source.randrange(len(raw) + 1)
            raw = raw[:at] + source.randbytes(source.randrange(3)) + raw[at + 1 :]
        return raw

    def _fields(self) -> dict[str, Any]:
        source = self._source
        fields: dict[str, Any] = {
            "namespace": self._text(),
            "tag": source.choice(("", "a", "é")),
            "keys": source.choice(((), ("k",), ("k", "é"))),
            "trace_context": self._text(),
            "properties": {self._text(): self._text() for _ in range(source.randrange(4))},
        }
        match source.randrange(6):
            case 0:
                fields["group"] = "group-é"
            case 1:
                fields["deliver_in"] = source.choice((0, 0.5, 90))
            case 2:
                fields["deliver_at"] = datetime(source.choice((1, 1969, 9999)), 12, 30, tzinfo=UTC)
            case 3:
                fields["priority"] = source.choice((0, 3, (1 << 31) - 1))
            case 4:
                fields["transactional"] = True
        return fields

    def _fill(self, system: v2.SystemProperties, body: bytes, odd: bool) -> None:
        source = self._source
        for name in ("tag", "message_id", "born_host", "store_host", "receipt_handle"):
            setattr(system, name, self._text())
        for name in ("message_group", "trace_context", "lite_topic"):
            if source.random() < 0.2:
                setattr(system, name, self._text())
        system.keys.extend(self._text() for _ in range(source.randrange(3)))
        for name in ("queue_id", "queue_offset", "delivery_attempt", "priority"):
            if source.random() < 0.5:
                setattr(system, name, source.choice(_INTEGERS))
        system.message_type = source.randrange(9)  # type: ignore[assignment]
        for name in ("born", "store", "delivery"):
            if source.random() < 0.7:
                stamp = getattr(system, f"{name}_timestamp")
                stamp.seconds = source.choice(_ODD_SECONDS if odd else _SECONDS)
                stamp.nanos = source.choice((0, 999_999_999, *_INTEGERS))
        system.invisible_duration.seconds = source.choice(_SECONDS)
        system.body_encoding = v2.GZIP if odd and source.random() < 0.1 else v2.IDENTITY
        if source.random() < 0.2:
            system.dead_letter_queue.topic = self._text()
        right = hashlib.md5(body, usedforsecurity=False).hexdigest()
        checksum = source.choice((right, right.upper(), right[:-1], right[:-1] + "é", ""))
        kind = source.choice((v2.MD5, v2.MD5, v2.CRC32, v2.SHA1 if odd else v2.MD5))
        if source.random() < 0.9:
            system.body_digest.type = kind
            system.body_digest.checksum = checksum

    def _text(self) -> str:
        return self._source.choice(_TEXTS)

    def _body(self) -> bytes:
        source = self._source
        return source.randbytes(source.choice((1, 1, 40, 300)))


def check_request(messages: Sequence[Outgoing], queue_id: int) -> None:
    """Compare the request that the crate encodes with Python's."""
    crate = native.load()
    assert crate is not None
    found = crate.send_request(messages, queue_id)
    expected = python_request(messages, queue_id)
    if all(len(message.header.properties) < 2 for message in messages):
        assert found == expected, messages
    else:  # Python's protobuf writes them in any order
        parse = v2.SendMessageRequest.FromString
        assert len(found) == len(expected) and parse(found) == parse(expected), messages


def check_responses(read: NativeRead, responses: Sequence[bytes]) -> int:
    """Compare the messages that the crate reads with Python's; return their number."""
    messages = read(responses, BROKER, SOURCE)
    assert len(messages) == len(responses)
    for found, raw in zip(messages, responses, strict=True):
        if found is None:
            continue
        for kind in (v2.ReceiveMessageResponse, v2.PullMessageResponse):
            try:
                response = kind.FromString(raw)
            except DecodeError:
                raise AssertionError(f"read, but not decodable: {raw!r}") from None
            assert response.WhichOneof("content") == "message", raw
            expected = read_message(response.message, BROKER, SOURCE)
            assert type(found) is Message and found == expected, raw
            # The types, too. Python's protobuf reads properties in any order.
            ours, theirs = replace(found, properties={}), replace(expected, properties={})
            assert repr(ours) == repr(theirs), raw
    return sum(message is not None for message in messages)


class Outcome(NamedTuple):
    """Messages that were compared, responses that the crate read, and the CPU time."""

    compared: int
    read: int
    cpu_s: float


def run(count: int, seed: int) -> Outcome:
    """Compare messages, sent and received. Raises AssertionError at the first difference."""
    read = native_read()
    assert read is not None, "the native crate is not available"
    source = random.Random(seed)
    cases = Cases(source)
    begin = time.process_time()
    sent = received = common = 0
    while sent + received < count:
        messages = cases.outgoing()
        check_request(messages, source.choice(_INTEGERS))
        sent += len(messages)
        responses = [cases.response() for _ in range(source.randrange(12))]
        common += check_responses(read, responses)
        received += len(responses)
    return Outcome(sent + received, common, time.process_time() - begin)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Compare the SDK's native messages with Python's")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    done, read, cpu_s = run(options.messages, options.seed)
    print(
        f"{done} messages, {read} responses read by the crate, all equal; "
        f"{done / cpu_s:.0f} per CPU second"
    )


if __name__ == "__main__":
    main()
