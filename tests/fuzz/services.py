"""Fuzz targets of services: requests for the handlers of a real broker, and replication frames.

The first byte selects the method; the rest is the request as a door receives it. A handler answers,
or refuses with a `WireError` or `RpcFailure`; anything else is INTERNAL to a client.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from cometmq.front.context import RequestContext
from cometmq.front.service import (
    Kind,
    Method,
    OutboundFull,
    encode,
    open_session,
    read_message,
    read_request,
)
from cometmq.ha.stream import frames
from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.proto import paths, v1, v2
from cometmq.proto.errors import RpcFailure, WireError
from cometmq.tests.broker.live import Live, create_topic, running, settings
from cometmq.tests.fuzz.target import Check, target
from cometmq.tests.harness.wire import normal_message

DEADLINE_MS = 30_000
_NS_PER_MS = 1_000_000
_TURNS = 5
_PROBE_EVERY = 500


class _Sink:
    """The sending side of a telemetry stream."""

    finished = False

    def send(self, message: Any) -> None:
        encode(message)

    def finish(self, error: RpcFailure | None = None) -> None:
        self.finished = True

    def drained(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()


class _Faults(logging.Handler):
    """Collects exceptions that a component logged instead of raising."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.found.append(record.exc_info[1])

    def raise_first(self) -> None:
        """Raise the first exception that was collected."""
        if self.found:
            raise self.found.pop(0)


class _Caller:
    """Calls the methods of a table on a loop of its own."""

    def __init__(self, methods: list[Method], steady_ns: Any) -> None:
        self.methods = methods
        self._steady_ns = steady_ns
        self._faults = _Faults()
        logging.getLogger("cometmq").addHandler(self._faults)
        logging.getLogger("asyncio").addHandler(self._faults)

    def context(self) -> RequestContext:
        """Return the context of a local client's call."""
        deadline_ns = self._steady_ns() + DEADLINE_MS * _NS_PER_MS
        return RequestContext("fuzz@1", "PYTHON", "5.1.2", "", "127.0.0.1:4711", deadline_ns)

    async def call(self, data: bytes) -> None:
        """Serve one request."""
        if not data:
            return
        method = self.methods[data[0] % len(self.methods)]
        try:
            if method.kind is Kind.BIDI:
                await self._stream(method, data[1:])
            else:
                await self._request(method, data[1:])
        except (WireError, RpcFailure, OutboundFull) as error:
            if isinstance(error, WireError):
                method.fail(error)
        self._faults.raise_first()

    async def _request(self, method: Method, raw: bytes) -> None:
        ctx = self.context()
        answer = method.handler(read_request(method, raw, ctx), ctx)
        if hasattr(answer, "__aiter__"):
            async for item in answer:
                encode(item)
            return
        if not isinstance(answer, Awaitable):
            for item in answer if isinstance(answer, list) else [answer]:
                encode(item)
            return
        await self._pending(answer)

    async def _pending(self, answer: Any) -> None:
        """Let the answer become ready; cancel it like a client that leaves if it does not."""
        future = asyncio.ensure_future(answer) if asyncio.iscoroutine(answer) else answer
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        if not future.done():
            future.cancel()
            await asyncio.sleep(0)
        elif not future.cancelled():
            found = future.result()
            for item in found if isinstance(found, list) else [found]:
                encode(item)

    async def _stream(self, method: Method, raw: bytes) -> None:
        session = open_session(method, self.context(), _Sink())
        try:
            session.receive(read_message(method, raw))
        finally:
            session.close("the stream has ended")


def serve(stack_of: Any, directory: Path) -> Iterator[Check]:
    """Open the parts on a loop, and yield a check that runs there."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    stack = AsyncExitStack()
    handle = loop.run_until_complete(stack_of(stack, directory))
    try:
        yield lambda data: loop.run_until_complete(handle(data))
    finally:
        loop.run_until_complete(stack.aclose())
        loop.close()


async def _broker(stack: AsyncExitStack, directory: Path) -> Live:
    # Without metrics, registration and large tables; a fuzzer creates many names.
    live = await stack.enter_async_context(
        running(settings(directory, test_hooks=False, max_topics=1_000, max_groups=1_000))
    )
    async with live.client() as wire:
        for name, kind in (
            ("good", v2.NORMAL),
            ("t", v2.NORMAL),
            ("f", v2.FIFO),
            ("d", v2.DELAY),
            ("x", v2.TRANSACTION),
        ):
            await create_topic(wire, name, queues=2, message_type=kind)
    return live


async def _methods(stack: AsyncExitStack, directory: Path, prefix: str) -> Any:
    live = await _broker(stack, directory)
    table = live.server.access.services
    methods = [table[path] for path in sorted(table) if path.startswith(prefix)]
    caller = _Caller(methods, live.node.runtime.clock.steady_ns)
    numbers = itertools.count(1)
    sending = table[paths.SEND_MESSAGE]

    async def handle(data: bytes) -> None:
        await caller.call(data)
        number = next(numbers)
        if number % _PROBE_EVERY == 0:
            request = v2.SendMessageRequest(messages=[normal_message("good", f"G{number}", b"x")])
            ctx = caller.context()
            raw = read_request(sending, request.SerializeToString(), ctx)
            answer = await sending.handler(raw, ctx)
            assert v2.SendMessageResponse.FromString(answer).status.code == v2.OK

    return handle


@target
def messaging(directory: Path) -> Iterator[Check]:
    """Each method of the client protocol."""
    return serve(lambda stack, path: _methods(stack, path, paths.MESSAGING), directory)


@target
def admin(directory: Path) -> Iterator[Check]:
    """Each method for operators."""
    return serve(lambda stack, path: _methods(stack, path, "/cometmq.v1.Admin/"), directory)


@target
def nameserver(directory: Path) -> Iterator[Check]:
    """Each method of a nameserver that decides about leaders."""

    async def open_nameserver(stack: AsyncExitStack, path: Path) -> Any:
        config = NameserverConfig(
            bind_address="127.0.0.1",
            listen_port=0,
            namesrv_data_dir=str(path / "routes"),
            controller=True,
        )
        server = NameserverServer(config)
        await server.start()
        stack.push_async_callback(server.stop, 0.1)
        table = server._services()
        methods = [table[path] for path in sorted(table)]
        return _Caller(methods, server._clock.steady_ns).call

    return serve(open_nameserver, directory)


@target
def ha_frames(directory: Path) -> Iterator[Check]:
    """Frames of a follower and of a leader; an even first byte is a follower's."""

    async def open_leader(stack: AsyncExitStack, path: Path) -> Any:
        live = await _broker(stack, path)
        faults = _Faults()
        logging.getLogger("cometmq").addHandler(faults)
        joiner = frames.MetaJoiner()

        async def handle(data: bytes) -> None:
            if not data:
                return
            if data[0] % 2:
                _read_leader_frame(data[1:], joiner, live)
            else:
                _read_follower_frame(data[1:], joiner, live)
            faults.raise_first()

        return handle

    return serve(open_leader, directory)


def _read_follower_frame(raw: bytes, joiner: frames.MetaJoiner, live: Live) -> None:
    """Do what the leader's side does with a follower's first and further frames."""
    try:
        frame = v1.FollowerFrame.FromString(raw)
    except DecodeError:
        return
    kind = frame.WhichOneof("frame")
    if kind == "hello":
        with suppress(ValueError):
            frames.follower_facts(frame.hello)
    elif kind == "meta":
        _join(frame.meta, joiner, live)
    elif kind == "nack":
        frames.nack_name(frame.nack.code)


def _read_leader_frame(raw: bytes, joiner: frames.MetaJoiner, live: Live) -> None:
    """Do what the follower's side does with a leader's frame."""
    try:
        frame = v1.LeaderFrame.FromString(raw)
    except DecodeError:
        return
    kind = frame.WhichOneof("frame")
    if kind == "hello_reply":
        frames.reject_name(frame.hello_reply.reject_code)
        with suppress(DecodeError):
            frames.state_of(frame.hello_reply.group_state)
    elif kind == "meta":
        _join(frame.meta, joiner, live)


def _join(meta: v1.Meta, joiner: frames.MetaJoiner, live: Live) -> None:
    payload = joiner.add(meta)
    if payload is None:
        return
    live.node.replication.roles.state_arrived(frames.kind_name(meta.kind), payload)
