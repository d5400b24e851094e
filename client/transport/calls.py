"""How a connection's calls get to a server and back: by grpcio, or by the native half where it is.

A unary call has one request and one answer; a stream here is one request and all of its answers, given
when it ends, because a receive hands on everything it got. Promises of both ways: bytes in, bytes out;
`CallFailed` with the name of the gRPC code for every end that is no answer, and nothing is repeated; a
caller that is cancelled gives its call up; closing fails what is under way.

grpcio reads a stream one message at a time, each a turn of its own thread and of the event loop (about
18 us); the native half collects the messages in its thread and wakes the loop once for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import grpc
import grpc.aio

from ...proto.peers import cancel_requests
from .addresses import Target

NativeClient: Any
try:
    from cometmq_native import Client as NativeClient
except ImportError:  # not installed, or older than its client half
    NativeClient = None

Metadata = Sequence[tuple[str, str]]
Ended: TypeAlias = "asyncio.Future[tuple[int, str, list[bytes]]]"
_TAKE_MAX = 1_024
"""Ended calls that are handed on in one turn of the loop."""
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}


class CallFailed(Exception):
    """A call ended without an answer; `code` is the name of the gRPC code, or CLOSED."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(details)
        self.code = code


class Calls(Protocol):
    """Calls to one target."""

    async def unary(self, path: str, request: bytes, timeout_s: float, metadata: Metadata) -> bytes:
        """One call. Raises CallFailed."""
        ...

    async def stream(
        self, path: str, request: bytes, timeout_s: float, metadata: Metadata
    ) -> tuple[list[bytes], CallFailed | None]:
        """All answers of one call, and how it failed after them."""
        ...

    async def close(self) -> None:
        """Fail what is under way."""
        ...


def calls_to(target: Target, channel: Any, *, plaintext: bool) -> Calls:
    """The fastest way there is; TLS is spoken by grpcio."""
    if plaintext and NativeClient is not None:
        return NativeCalls(target)
    return GrpcioCalls(channel)


def _failed(error: BaseException) -> CallFailed | None:
    """What a failure of grpcio's means; None: it is none of the call's."""
    if isinstance(error, grpc.aio.AioRpcError):
        return CallFailed(error.code().name, error.details() or "")
    if isinstance(error, grpc.aio.UsageError):  # the channel was closed before the call
        return CallFailed("CLOSED", str(error))
    if isinstance(error, asyncio.CancelledError):  # not the caller's: that was looked at before
        return CallFailed("CLOSED", "the connection was closed under the call")
    return None


class GrpcioCalls:
    """By a channel of grpcio, which is not ours to close."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._calls: dict[str, Any] = {}

    async def unary(self, path: str, request: bytes, timeout_s: float, metadata: Metadata) -> bytes:
        """See `Calls`."""
        call = self._calls.get(path)
        if call is None:
            call = self._calls[path] = self._channel.unary_unary(path)
        asked_to_end = cancel_requests()
        try:
            answer: bytes = await call(request, timeout=timeout_s, metadata=metadata)
        except BaseException as error:
            if cancel_requests() > asked_to_end:
                raise asyncio.CancelledError from None
            raise _failed(error) or error from None
        return answer

    async def stream(
        self, path: str, request: bytes, timeout_s: float, metadata: Metadata
    ) -> tuple[list[bytes], CallFailed | None]:
        """See `Calls`."""
        key = path + "*"
        start = self._calls.get(key)
        if start is None:
            start = self._calls[key] = self._channel.unary_stream(path)
        found: list[bytes] = []
        call = None
        asked_to_end = cancel_requests()
        try:
            call = start(request, timeout=timeout_s, metadata=metadata)
            while (raw := await call.read()) is not grpc.aio.EOF:
                found.append(raw)
        except BaseException as error:
            if cancel_requests() > asked_to_end:
                raise asyncio.CancelledError from None
            failure = _failed(error)
            if failure is None:
                raise
            return found, failure
        finally:
            if call is not None:
                call.cancel()
        return found, None

    async def close(self) -> None:
        """The channel's owner closes it."""


class _Hub:
    """The native client of one event loop: a thread and a descriptor for all of its connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.client = NativeClient()
        self.users = 0
        self.waiting: dict[int, Ended] = {}
        loop.add_reader(self.client.descriptor(), self._take)

    def _take(self) -> None:
        for number, code, text, messages in self.client.take(_TAKE_MAX):
            future = self.waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_result((code, text, messages))

    def leave(self) -> None:
        """A user is gone; the last one ends the thread."""
        self.users -= 1
        if not self.users:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self.client.descriptor())
            self.client.stop()
            del _hubs[loop]


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, _Hub] = WeakKeyDictionary()


class NativeCalls:
    """By the native half, over a connection of its own."""

    def __init__(self, target: Target) -> None:
        loop = asyncio.get_running_loop()
        hub = _hubs.get(loop)
        if hub is None:
            hub = _hubs[loop] = _Hub(loop)
        hub.users += 1
        self._hub = hub
        self._open: set[int] = set()
        self._closed = False
        self._channel = hub.client.connect(
            [
                f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                for host, port in target.addresses
            ]
        )

    async def unary(self, path: str, request: bytes, timeout_s: float, metadata: Metadata) -> bytes:
        """See `Calls`."""
        code, text, messages = await self._call(path, request, timeout_s, metadata)
        if code:
            raise CallFailed(_CODES.get(code, "UNKNOWN"), text)
        if not messages:
            raise CallFailed("INTERNAL", "the call ended well and without an answer")
        return messages[0]

    async def stream(
        self, path: str, request: bytes, timeout_s: float, metadata: Metadata
    ) -> tuple[list[bytes], CallFailed | None]:
        """See `Calls`."""
        try:
            code, text, messages = await self._call(path, request, timeout_s, metadata)
        except CallFailed as failure:
            return [], failure
        return messages, CallFailed(_CODES.get(code, "UNKNOWN"), text) if code else None

    async def close(self) -> None:
        """See `Calls`."""
        if self._closed:
            return
        self._closed = True
        hub = self._hub
        for number in self._open:
            hub.client.cancel(number)
            future = hub.waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_exception(
                    CallFailed("CLOSED", "the connection was closed under the call")
                )
        hub.client.disconnect(self._channel)
        hub.leave()

    async def _call(
        self, path: str, request: bytes, timeout_s: float, metadata: Metadata
    ) -> tuple[int, str, list[bytes]]:
        if self._closed:
            raise CallFailed("CLOSED", "the channel is closed")
        hub = self._hub
        timeout_ms = max(1, int(timeout_s * 1000))
        number = hub.client.call(self._channel, path, request, metadata, timeout_ms)
        future: Ended = asyncio.get_running_loop().create_future()
        hub.waiting[number] = future
        self._open.add(number)
        try:
            return await future
        except asyncio.CancelledError:
            hub.client.cancel(number)
            hub.waiting.pop(number, None)
            raise
        finally:
            self._open.discard(number)
