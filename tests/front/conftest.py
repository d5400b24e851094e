"""The bench of the front's tests: a table of small services behind a door, and clients that call
it.

Tests may be coroutines; each runs on a loop of its own. `door` is parametrised: every door must
pass the same suite (front-door note, section 4).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest
from msgspec.structs import replace

from cometmq.front.access_point import AccessPoint, Decision
from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.front.context import RequestContext
from cometmq.front.door import Door, choose_door
from cometmq.front.faults import FaultTable
from cometmq.front.process import loop_factory
from cometmq.front.reply_future import ReplyFuture
from cometmq.front.service import HALF_CLOSED, Kind, Method, Outbound, OutboundFull, status_failure
from cometmq.nodes.node_links import NodeLinks
from cometmq.proto import paths, v2
from cometmq.proto.errors import RpcFailure, WireError
from cometmq.proto.native import is_available

PREFIX = "/test.Conformance/"
#: The native door is tested where it is installed; scripts/test builds it where there is a
#: toolchain.
DOORS = ("grpcio", "native") if is_available() else ("grpcio",)
PATIENCE_S = 60.0


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests on the event loop of server processes."""
    return {"server": loop_factory()}


class TalkSession:
    """Echoes; obeys a few words. Remembers what it was told."""

    def __init__(self, services: "TestServices", ctx: RequestContext, outbound: Outbound) -> None:
        self.services = services
        self.ctx = ctx
        self.outbound = outbound
        self.received: list[bytes] = []
        self.closed: list[str] = []
        self.tail: asyncio.Future[None] | None = None

    def receive(self, message: bytes) -> "asyncio.Future[Any] | None":
        self.received.append(message)
        if message == b"wire":
            raise WireError(v2.ILLEGAL_TOPIC, "no such topic")
        if message == b"rpc":
            raise RpcFailure(3, "not like this")
        if message == b"boom":
            raise ZeroDivisionError("boom")
        if message == b"finish":
            self.outbound.finish()
        elif message == b"flood":
            self._flood()
        elif message == b"tail":
            self.tail = asyncio.get_running_loop().create_future()
        else:
            self.outbound.send(message)
        return None

    def _flood(self) -> None:
        try:
            while True:
                self.outbound.send(b"x" * 100_000)
        except OutboundFull:
            self.services.floods += 1

    def close(self, reason: str) -> "asyncio.Future[Any] | None":
        self.closed.append(reason)
        return self.tail if reason == HALF_CLOSED else None


@dataclass
class TestServices:
    """The table, and what its handlers saw."""

    __test__ = False
    contexts: list[RequestContext] = field(default_factory=list)
    futures: list["asyncio.Future[Any]"] = field(default_factory=list)
    laters: list[ReplyFuture] = field(default_factory=list)
    sessions: list[TalkSession] = field(default_factory=list)
    undelivered: int = 0
    generators_closed: int = 0
    floods: int = 0

    def table(self) -> dict[str, Method]:
        unary, stream = Kind.UNARY, Kind.SERVER_STREAM
        send = (v2.SendMessageRequest.FromString, status_failure(v2.SendMessageResponse))
        receive = (bytes, status_failure(v2.ReceiveMessageResponse))
        telemetry = (bytes, status_failure(v2.TelemetryCommand))
        raw = (bytes, status_failure(v2.AckMessageResponse))
        rows: list[tuple[str, Kind, tuple[Any, Any], Callable[..., Any]]] = [
            ("Echo", unary, raw, self.echo),
            ("Message", unary, send, self.message),
            ("Wire", unary, raw, _raise(WireError(v2.TOPIC_NOT_FOUND, "no topic here"))),
            ("Rpc", unary, raw, _raise(RpcFailure(7, "not you"))),
            ("Boom", unary, raw, _raise(ZeroDivisionError("boom"))),
            ("Wrong", unary, raw, lambda _request, _ctx: "neither bytes nor a message"),
            ("Later", unary, raw, self.later),
            ("Lighter", unary, raw, self.lighter),
            ("Coroutine", unary, raw, self.coroutine),
            ("Items", stream, receive, self.items),
            ("ItemsLater", stream, receive, self.later),
            ("Generate", stream, receive, self.generate),
            ("StreamWire", stream, receive, _raise(WireError(v2.TOPIC_NOT_FOUND, "no topic here"))),
            ("StreamBoom", stream, receive, _raise(ZeroDivisionError("boom"))),
            ("Talk", Kind.BIDI, telemetry, self.talk),
            ("Refuse", Kind.BIDI, telemetry, _raise(WireError(v2.CLIENT_ID_REQUIRED, "who?"))),
        ]
        return {
            PREFIX + name: Method(PREFIX + name, kind, parse, handler, fail)
            for name, kind, (parse, fail), handler in rows
        }

    def echo(self, request: bytes, ctx: RequestContext) -> bytes:
        self.contexts.append(ctx)
        return request

    def message(self, request: v2.SendMessageRequest, ctx: RequestContext) -> Any:
        return v2.SendMessageResponse(
            status=v2.Status(code=v2.OK, message=str(len(request.messages)))
        )

    def later(self, request: bytes, ctx: RequestContext) -> "asyncio.Future[Any]":
        self.contexts.append(ctx)
        ctx.on_undelivered = self.count_undelivered
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        return future

    def lighter(self, request: bytes, ctx: RequestContext) -> ReplyFuture:
        """What `later` gives, as the lighter kind; the request "now" is answered already."""
        ctx.on_undelivered = self.count_undelivered
        answer = ReplyFuture()
        if request == b"now":
            answer.set_result(b"at once")
        self.laters.append(answer)
        return answer

    async def coroutine(self, request: bytes, ctx: RequestContext) -> bytes:
        await asyncio.sleep(0)
        return request[::-1]

    def items(self, request: bytes, ctx: RequestContext) -> list[bytes]:
        """The request says "count size"."""
        count, size = (int(word) for word in request.split())
        ctx.on_undelivered = self.count_undelivered
        return [number.to_bytes(8, "big") + bytes(size) for number in range(count)]

    async def generate(self, request: bytes, ctx: RequestContext) -> AsyncIterator[bytes]:
        """The request says how many items, and what comes after them."""
        count, _, end = request.partition(b" ")
        try:
            for number in range(int(count)):
                yield str(number).encode()
            if end == b"wire":
                raise WireError(v2.TOO_MANY_REQUESTS, "slower")
            if end == b"boom":
                raise ZeroDivisionError("boom")
            if end == b"wait":
                await asyncio.get_running_loop().create_future()
        finally:
            self.generators_closed += 1

    def talk(self, ctx: RequestContext, outbound: Outbound) -> TalkSession:
        session = TalkSession(self, ctx, outbound)
        self.sessions.append(session)
        return session

    def count_undelivered(self) -> None:
        self.undelivered += 1


def _raise(error: Exception) -> Callable[..., Any]:
    def handler(*_arguments: Any) -> Any:
        raise error

    return handler


class Client:
    """Calls by name, bytes in and out."""

    def __init__(self, port: int, **options: Any) -> None:
        settings = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=settings, **options)

    def unary(self, name: str, request: bytes = b"", **options: Any) -> Any:
        return self.channel.unary_unary(_path(name))(request, **_patient(options))

    def stream(self, name: str, request: bytes = b"", **options: Any) -> Any:
        return self.channel.unary_stream(_path(name))(request, **_patient(options))

    def bidi(self, name: str, **options: Any) -> Any:
        return self.channel.stream_stream(_path(name))(**_patient(options))


def _path(name: str) -> str:
    return name if name.startswith("/") else PREFIX + name


def _patient(options: dict[str, Any]) -> dict[str, Any]:
    return {"timeout": PATIENCE_S, **options}


@dataclass
class Bench:
    """One door with the test services, and a client of it."""

    services: TestServices
    door: Door
    port: int
    client: Client
    faults: FaultTable
    _clients: list[Client] = field(default_factory=list)

    def another_client(self, **options: Any) -> Client:
        client = Client(self.port, **options)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in (self.client, *self._clients):
            await client.channel.close()
        await self.door.drain(0)

    async def __aenter__(self) -> "Bench":
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


OpenBench = Callable[..., Any]


@pytest.fixture(params=DOORS)
def door_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def bench(door_name: str) -> OpenBench:
    """`async with await bench(...) as b`: options of DoorConfig; `wrap` may replace the table."""

    async def open_bench(
        wrap: Callable[[dict[str, Method]], dict[str, Method]] | None = None, **options: Any
    ) -> Bench:
        services = TestServices()
        clock = Clock()
        faults = FaultTable(1, clock)
        table = services.table()
        config = DoorConfig(front_door=door_name, **options)
        door = choose_door(config)(wrap(table) if wrap else table, clock, faults)
        port = await door.start("127.0.0.1", 0)
        return Bench(services, door, port, Client(port), faults)

    return open_bench


async def _eventually(condition: Callable[[], Any]) -> None:
    for _ in range(int(PATIENCE_S / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came true")


@pytest.fixture
def eventually() -> Iterator[Callable[..., Any]]:
    """Wait until a condition holds; fails after a minute."""
    yield _eventually


@dataclass
class Front:
    """A bench whose table is wrapped, the wrapping, and what was decided in it."""

    owner: str | None
    decision: Decision
    bench: Any = None
    access: AccessPoint = field(init=False)
    asked: list[tuple[str, Any, RequestContext]] = field(default_factory=list)

    def locate(self, path: str, request: Any, ctx: RequestContext) -> str | None:
        self.asked.append((path, request, ctx))
        return self.owner

    def unreachable(self, _path: str, _request: Any, _ctx: RequestContext) -> Decision:
        return self.decision


@pytest.fixture
def front(bench: Any) -> Callable[..., Any]:
    """`async with front(owner, **options) as f`: a door that passes everything to `owner`."""

    @contextlib.asynccontextmanager
    async def open_front(
        owner: str | None, decision: Decision = "hold", token: str = "", **options: Any
    ) -> AsyncIterator[Front]:
        made = Front(owner, decision)

        def wrap(table: dict[str, Method]) -> dict[str, Method]:
            config = DoorConfig(**options)
            echo = table["/test.Conformance/Echo"]
            made.access = AccessPoint(
                {**table, paths.SEND_MESSAGE: replace(echo, path=paths.SEND_MESSAGE)},
                config,
                Clock(),
                made.locate,
                made.unreachable,
                links=NodeLinks(token),
            )
            return made.access.services

        async with await bench(wrap=wrap) as opened:
            made.bench = opened
            try:
                yield made
            finally:
                await made.access.close()

    return open_front
