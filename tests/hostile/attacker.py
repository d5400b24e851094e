"""What an attack uses: calls with any bytes, raw connections, and protobuf fields by hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc

from cometmq.proto import paths, v2
from cometmq.proto.methods import RpcMethod, rpc_methods
from cometmq.tests.front.raw_http2 import RawConnection
from cometmq.tests.harness.wire import Wire, normal_message
from cometmq.tests.hostile.target import Target, code_name

MESSAGING, ADMIN = "apache.rocketmq.v2.MessagingService", "cometmq.v1.Admin"
ATTACKED = "attacked"
CALL_S = 30.0
# The limits are the server's to enforce.
_NO_LIMITS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


def connect(address: str, client_id: str = "attacker@1") -> Wire:
    """Return a connection whose client library limits nothing."""
    return Wire(address, client_id, options=_NO_LIMITS)


class Attacker:
    """One attacking client of a target."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.wire = connect(target.address)

    async def call(
        self,
        path: str,
        request: Any,
        *,
        within_s: float = CALL_S,
        gzip: bool = False,
        metadata: tuple[tuple[str, str], ...] = (),
        wire: Wire | None = None,
    ) -> tuple[str, list[Any]]:
        """Make a call with a message or bytes; return the answer in one word, and the messages."""
        used = wire or self.wire
        method = _method(path)
        raw = request if isinstance(request, bytes) else request.SerializeToString()
        kind = used.channel.unary_stream if method.server_streaming else used.channel.unary_unary
        compression = grpc.Compression.Gzip if gzip else None
        call = kind(path, response_deserializer=method.response.FromString)(
            raw, timeout=within_s, metadata=(*used.metadata, *metadata), compression=compression
        )
        try:
            found = [one async for one in call] if method.server_streaming else [await call]
        except grpc.aio.AioRpcError as error:
            return error.code().name, []
        return _outcome(found), found

    async def outcome(self, path: str, request: Any, **options: Any) -> str:
        """Make a call; return the answer in one word."""
        return (await self.call(path, request, **options))[0]

    async def outcomes(
        self, path: str, requests: Iterable[Any], *, at_once: int = 50, **options: Any
    ) -> str:
        """Make calls, `at_once` in parallel; return the answers and how often each came."""
        limit = asyncio.Semaphore(at_once)

        async def one(request: Any) -> str:
            async with limit:
                return await self.outcome(path, request, **options)

        return summary(await asyncio.gather(*(one(request) for request in requests)))

    async def raw(self, port: int | None = None) -> RawConnection:
        """Return an HTTP/2 connection without a client library."""
        return await RawConnection.open(port or self.target.port)

    async def close(self) -> None:
        """Close the connection."""
        await self.wire.close()


def _method(path: str) -> RpcMethod:
    service, name = path.strip("/").split("/")
    return rpc_methods(service)[name]


def _outcome(found: list[Any]) -> str:
    """Return the name of the code in the answers."""
    for one in found:
        if "code" in one.DESCRIPTOR.fields_by_name:
            return code_name(one.code) if one.code else "OK"
        if "status" in one.DESCRIPTOR.fields_by_name and one.HasField("status"):
            return code_name(one.status.code)
    return "no status"


def summary(answers: Iterable[str]) -> str:
    """Return answers and their numbers, the most frequent first."""
    counted = Counter(answers).most_common()
    return " ".join(word if len(counted) == 1 else f"{word}:{count}" for word, count in counted)


Run = Callable[[Attacker], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Attack:
    """One hostile input."""

    #: Returns the broker's answer in a few words.
    run: Run
    #: Words that the answer may consist of.
    answers: frozenset[str]
    title: str = field(default="")
    #: The door that bounds it; empty: every door.
    door: str = ""

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.run.__name__

    def concerns(self, door: str) -> bool:
        """Whether it is an attack on this door."""
        return self.door in ("", door)

    def unexpected(self, answer: str) -> list[str]:
        """Return the words of an answer that the attack must not get."""
        words = [word.partition(":")[0] for word in answer.split()]
        return [word for word in words if word not in self.answers]


CATALOGUE: list[Attack] = []


def attack(*answers: str, door: str = "") -> Callable[[Run], Run]:
    """Enter a coroutine function into the catalogue, with the answers it may get; `door` names the
    one door that bounds it, if another has no limit of its own for it (docs/security.md)."""

    def enter(run: Run) -> Run:
        title = (run.__doc__ or "").strip().split("\n")[0]
        CATALOGUE.append(Attack(run, frozenset(answers), title, door))
        return run

    return enter


# -- protobuf by hand: large requests without a Python object for each element ------------------


def varint(value: int) -> bytes:
    """Encode a number, negative ones as 64 bits."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def sub(number: int, content: bytes) -> bytes:
    """Encode a field with a length: a message, a string or bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def plain(topic: str = ATTACKED, body: bytes = b"x", message_id: str = "H") -> Any:
    """Return a normal message."""
    return normal_message(topic, message_id, body)


async def send(one: Attacker, *messages: Any) -> str:
    """Send messages in one request."""
    return await one.outcome(paths.SEND_MESSAGE, v2.SendMessageRequest(messages=messages))
