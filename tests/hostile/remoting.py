"""Attacks on the remoting protocol of classic clients: frames, headers, bodies, floods."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import random
import struct
import zlib
from collections.abc import Iterator
from typing import Any

from cometmq.proto import paths, v1
from cometmq.remoting import admin_headers, headers
from cometmq.remoting.admin_codes import Admin
from cometmq.remoting.codec import FRAME_BYTES_MAX, encode
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.tests.harness.wire import receive_request
from cometmq.tests.hostile.attacker import Attacker, attack, summary
from cometmq.tests.hostile.values import EXTREMES, NAMES
from cometmq.tests.remoting.client import RemotingClient

MIB = 1 << 20
PORTS = ("remoting", "namesrv_remoting")
#: A topic that its requests may delete.
CLASSIC = "classic"
#: Requests for each code: a seeded choice of all pairs of field and value.
CHOSEN = 60
#: Not a flood: the neighbour's rate shows what a single request costs.
AT_ONCE = 4
#: Its success would change the configuration of the neighbour's broker.
EXCLUDED = (Admin.UPDATE_BROKER_CONFIG,)
_COMPRESSED = 1
_PLAUSIBLE = {
    **{"topic": CLASSIC, "b": CLASSIC, "c": "TBW102", "properties": "KEYS\x01k\x02"},
    **{"consumerGroup": "walkers", "producerGroup": "walkers", "group": "walkers", "a": "walkers"},
    **{"exp": "*", "subscription": "*", "expressionType": "TAG", "expType": "TAG"},
    **{"extraInfo": "0 1764000000000 30000 0 0 broker-a 0 0", "boundaryType": "lower"},
}
_TEXTS = (*NAMES, "", "9" * 5_000, "\u0663", "true", "*", "[" * 3_000, "\x01\x02", "%RETRY%walked")
_BODIES = (
    *(b"", b"x", b"{}", b"[]", b"null", b"\xff\xfe", b'{"x":NaN}', b"9" * 10_000, bytes(MIB)),
    *(b"[" * 100_000, b'{"a":' * 20_000, b"a=b\n" * 10_000),
    *(
        json.dumps(content).encode()
        for content in (
            {"clientID": 1, "consumerDataSet": [1], "producerDataSet": {}},
            {"clientID": "c", "consumerDataSet": [{"groupName": "g", "consumeType": 1 << 70}]},
            {"clientId": "c", "consumerGroup": "walkers", "mqSet": [{}] * 5_000},
            {"mqSet": [{"brokerName": "b", "queueId": 1 << 70, "topic": CLASSIC}]},
            {"topicConfigList": [{"topicName": "../../x", "readQueueNums": 1 << 40}]},
            {"groupName": "../../x", "retryMaxTimes": -(1 << 70), "retryQueueNums": 1 << 62},
            {"acks": [{"c": "g", "t": CLASSIC, "so": 1 << 70, "q": -1, "bm": "AAAA" * 1_000}]},
        )
    ),
)


def _fields() -> dict[str, str]:
    """Return a plausible value for each header field of each request, by name and by letter."""
    found = {}
    for layout in (*vars(headers).values(), *vars(admin_headers).values()):
        if isinstance(layout, type) and dataclasses.is_dataclass(layout):
            for field in dataclasses.fields(layout):
                for name in (field.metadata["name"], field.metadata["letter"]):
                    if name:
                        found[name] = _PLAUSIBLE.get(name, "1")
    return found


def hostile(code: int, chosen: int = CHOSEN) -> Iterator[Command]:
    """Yield requests with an extreme value in one field, or with a hostile body."""
    base = _fields()
    values = (*map(str, EXTREMES), str(-(1 << 63) - 1), *_TEXTS)
    pairs = [(name, value) for name in base for value in values]
    for name, value in random.Random(code).sample(pairs, chosen):
        yield Command(code, {**base, name: value}, b"body")
    for body in _BODIES:
        yield Command(code, dict(base), body)


@attack(*(reply.name for reply in Reply if reply is not Reply.SYSTEM_ERROR), "SYSTEM_ERROR")
async def every_remoting_request(one: Attacker) -> str:
    """Extreme numbers, hostile texts and bodies in each request of classic clients and tools."""
    words = set()
    for port in PORTS:
        async with RemotingClient(one.target.node.ports[port]) as client:
            for code in (*Request, *Admin, -1, (1 << 31) - 1):
                await _create(one, CLASSIC)
                if code not in EXCLUDED:
                    commands = list(hostile(code))
                    for begin in range(0, len(commands), AT_ONCE):
                        some = map(client.post, commands[begin : begin + AT_ONCE])
                        words |= {Reply(answer.code).name for answer in await asyncio.gather(*some)}
    return " ".join(sorted(words))


async def _create(one: Attacker, topic: str) -> None:
    await one.outcome(paths.CREATE_TOPIC, v1.CreateTopicRequest(name=topic, queues=4))


def frame(header: bytes, body: bytes = b"", layout: int = 0, length: int | None = None) -> bytes:
    size = 4 + len(header) + len(body) if length is None else length
    return struct.pack(">iI", size, layout << 24 | len(header)) + header + body


def broken_frames() -> Iterator[bytes]:
    """Yield frames that lie about their length or are no header."""
    for length in (-1, 0, 3, FRAME_BYTES_MAX, (1 << 31) - 1):
        yield frame(b"", length=length)
    for header in (b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff" * 99, b'{"a":' * 50_000):
        yield frame(header)
    yield frame(bytes(21), layout=7)
    yield frame(b"", layout=1)
    command = b'{"code":105,"flag":0,"opaque":1,"extFields":%s}'
    yield frame(command % (b'{"a":%s}' % (b"9" * 5_000)))
    yield frame(b'{"code":%d}' % (1 << 70))
    yield frame(command % (b"{" + b",".join(b'"k%d":"v"' % n for n in range(5_000)) + b"}"))


def acknowledgements() -> Iterator[bytes]:
    """Yield bodies of BATCH_ACK_MESSAGE that cost more than they have bytes."""
    one: dict[str, Any] = {"c": "walkers", "t": CLASSIC, "r": "0", "b": "AQ=="}
    one |= dict.fromkeys(("so", "pt", "it", "rq", "q"), 0)
    for digits in (4_000, 488_000):
        for name in ("so", "q"):
            acks = json.dumps(one).replace(f'"{name}": 0', f'"{name}": {"9" * digits}')
            yield f'{{"brokerName":"broker-a","acks":[{acks}]}}'.encode()
    for entries in (
        [{**one, "b": "/" * 400_000}],
        [{**one, "b": "A" * 399_996 + "AQ=="}],
        [{**one, "so": "9" * 488_000}],
        [{**one, "c": f"g{n}", "b": "/w=="} for n in range(20_000)],
    ):
        yield json.dumps({"brokerName": "broker-a", "acks": entries}).encode()


@attack(*(reply.name for reply in Reply))
async def acknowledgements_of_any_length(one: Attacker) -> str:
    """Batches of acknowledgements: numbers of 488,000 digits, large bit sets, 20,000 groups."""
    words = set()
    async with RemotingClient(one.target.node.ports["remoting"]) as client:
        for body in acknowledgements():
            answer = await client.post(Command(Request.BATCH_ACK_MESSAGE, {}, body))
            words.add(Reply(answer.code).name)
    return " ".join(sorted(words))


@attack("closed")
async def broken_remoting_frames(one: Attacker) -> str:
    """Frames that lie about their length or are no header: the connection is closed."""
    ports = [one.target.node.ports[port] for port in PORTS]
    return summary([await closes(port, broken) for port in ports for broken in broken_frames()])


async def closes(port: int, data: bytes, within_s: float = 10) -> str:
    """Send bytes; return whether the server closes the connection within a time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        async with asyncio.timeout(within_s):
            return "answered" if await reader.read(1) else "closed"
    except ConnectionError:
        return "closed"
    except TimeoutError:
        return "open"
    finally:
        writer.transport.abort()


@attack("done")
async def remoting_floods(one: Attacker) -> str:
    """Send 40,000 requests on each of four connections and read no answer."""
    for port in PORTS:
        request = encode(Command(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": CLASSIC}))
        number = one.target.node.ports[port]
        await asyncio.gather(*(pushed(number, request * 1_000, 40) for _ in range(4)))
    return "done"


async def pushed(port: int, data: bytes, times: int) -> None:
    """Write bytes again and again, for three seconds at most, and read nothing."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(3):
            for _ in range(times):
                writer.write(data)
                await writer.drain()
    writer.transport.abort()


def unfinished() -> bytes:
    """Return a frame of 16 MB without its last bytes."""
    return frame(b"", length=FRAME_BYTES_MAX - 4) + bytes(FRAME_BYTES_MAX - 100)


@attack("done")
async def small_remoting_answers_that_are_not_read(one: Attacker) -> str:
    """Requests with answers under 1 KiB on 200 connections that read none of them."""
    for port in PORTS:
        request = encode(Command(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "no-such-topic"}))
        number = one.target.node.ports[port]
        await asyncio.gather(*(pushed(number, request * 500, 8) for _ in range(200)))
    return "done"


@attack("done")
async def unfinished_remoting_frames(one: Attacker) -> str:
    """16 frames of 16 MB that do not end, on a connection each."""
    data = unfinished()
    port = one.target.node.ports["remoting"]
    await asyncio.gather(*(pushed(port, data, 1) for _ in range(16)))
    return "done"


@attack("OK", "MESSAGE_NOT_FOUND", "bytes")
async def inflating_bodies_of_classic_clients(one: Attacker) -> str:
    """Bodies of 60 KB that grow to 60 MB, from a classic client to one of gRPC."""
    fields = {
        **{"a": "walkers", "b": "inflated", "c": "TBW102", "d": "4", "f": str(_COMPRESSED)},
        **{"g": "1", "h": "0", "i": "", "j": "0"},
    }
    body = zlib.compress(bytes(60 * MIB))
    await _create(one, "inflated")
    async with RemotingClient(one.target.node.ports["remoting"]) as client:
        for number in range(8):
            command = Command(Request.SEND_MESSAGE_V2, {**fields, "e": str(number % 4)}, body)
            answer: Any = await client.post(command)
            if answer.code != Reply.SUCCESS:
                return Reply(answer.code).name
    answer, found = await one.call(
        paths.RECEIVE_MESSAGE, receive_request("inflated", "inflated", await_s=0.1)
    )
    size = sum(part.ByteSize() for part in found)
    return f"{answer} bytes:{size}" if size > 64 * MIB else answer
