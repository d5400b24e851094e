"""Calls of a connection, by grpcio or by the native client if it is installed.

A unary call has one request and one response. A stream here is one request and all of its
responses, returned when it ends. Both implementations take and return bytes, raise `CallFailed`
with the name of the gRPC code for every call without a response, and never retry. Cancelling the
caller cancels its call; closing fails the calls in flight.

grpcio reads a stream one message at a time, each with a switch between its thread and the event
loop (about 18 us). The native client collects the messages in its thread and wakes the loop once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import grpc
import grpc.aio

from ...proto import native
from ...proto.channels import cancel_requests
from ...proto.native import Native
from .addresses import Target

Metadata = Sequence[tuple[str, str]]
CallFuture: TypeAlias = "asyncio.Future[tuple[int, str, list[bytes]]]"
#: CallFuture calls processed in one turn of the loop.
_TAKE_MAX = 1_024
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}


class CallFailed(Exception):
    """A call ended without a response. `code` is a gRPC code name, CLOSED or INVALID_RESPONSE."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(details)
        self.code = code


class Calls(Protocol):
    """Calls to one target."""

    async def unary(self, path: str, request: bytes, timeout_s: float, metadata: Metadata) -> bytes:
        """Make one call. Raises CallFailed."""
        ...

    async def stream(
        self, path: str, request: bytes, timeout_s: float, metadata: Metadata
    ) -> tuple[list[bytes], CallFailed | None]:
        """Make one call. Return its responses and the failure that followed them, if any."""
        ...

    async def close(self) -> None:
        """Fail the calls in flight."""
        ...


def calls_to(target: Target, channel: Any, *, plaintext: bool) -> Calls:
    """Return native calls if possible, else grpcio's; the native client has no TLS."""
    crate = native.load() if plaintext else None
    if crate is not None:
        return NativeCalls(target, crate)
    return GrpcioCalls(channel)


def _failed(error: BaseException) -> CallFailed | None:
    """Translate an exception of grpcio; None if the call did not cause it."""
    if isinstance(error, grpc.aio.AioRpcError):
        return CallFailed(error.code().name, error.details() or "")
    if isinstance(error, grpc.aio.UsageError):  # the channel was closed before the call
        return CallFailed("CLOSED", str(error))
    if isinstance(error, asyncio.CancelledError):  # the caller's was checked before
        return CallFailed("CLOSED", "the connection was closed during the call")
    return None


class GrpcioCalls:
    """Calls over a channel of grpcio. The channel's owner closes it."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._calls: dict[str, Any] = {}

    async def unary(self, path: str, request: bytes, timeout_s: float, metadata: Metadata) -> bytes:
        """See `Calls`."""
        call = self._calls.get(path)
        if call is None:
            call = self._calls[path] = self._channel.unary_unary(path)
        cancelled_before = cancel_requests()
        try:
            answer: bytes = await call(request, timeout=timeout_s, metadata=metadata)
        except BaseException as error:
            if cancel_requests() > cancelled_before:
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
        responses: list[bytes] = []
        call = None
        cancelled_before = cancel_requests()
        try:
            call = start(request, timeout=timeout_s, metadata=metadata)
            while (raw := await call.read()) is not grpc.aio.EOF:
                responses.append(raw)
        except BaseException as error:
            if cancel_requests() > cancelled_before:
                raise asyncio.CancelledError from None
            failure = _failed(error)
            if failure is None:
                raise
            return responses, failure
        finally:
            if call is not None:
                call.cancel()
        return responses, None

    async def close(self) -> None:
        """Do nothing: the channel's owner closes it."""


class _LoopClient:
    """The native client of one event loop: one thread and one descriptor for its connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, crate: Native) -> None:
        self.client = crate.client()
        self.users = 0
        self.waiting: dict[int, CallFuture] = {}
        loop.add_reader(self.client.descriptor(), self._take)

    def _take(self) -> None:
        for number, code, text, messages in self.client.take(_TAKE_MAX):
            future = self.waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_result((code, text, messages))

    def release(self) -> None:
        """Release the client; the last user ends its thread."""
        self.users -= 1
        if not self.users:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self.client.descriptor())
            self.client.stop()
            del _loop_clients[loop]


_loop_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopClient] = WeakKeyDictionary()


class NativeCalls:
    """Calls of the native client, over a separate connection."""

    def __init__(self, target: Target, crate: Native) -> None:
        loop = asyncio.get_running_loop()
        native = _loop_clients.get(loop)
        if native is None:
            native = _loop_clients[loop] = _LoopClient(loop, crate)
        native.users += 1
        self._native = native
        self._open: set[int] = set()
        self._closed = False
        self._channel = native.client.connect(
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
            raise CallFailed("INTERNAL", "the call ended with OK and without a response")
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
        native = self._native
        for number in self._open:
            native.client.cancel(number)
            future = native.waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_exception(
                    CallFailed("CLOSED", "the connection was closed during the call")
                )
        native.client.disconnect(self._channel)
        native.release()

    async def _call(
        self, path: str, request: bytes, timeout_s: float, metadata: Metadata
    ) -> tuple[int, str, list[bytes]]:
        if self._closed:
            raise CallFailed("CLOSED", "the channel is closed")
        native = self._native
        timeout_ms = max(1, int(timeout_s * 1000))
        number = native.client.call(self._channel, path, request, metadata, timeout_ms)
        future: CallFuture = asyncio.get_running_loop().create_future()
        native.waiting[number] = future
        self._open.add(number)
        try:
            return await future
        except asyncio.CancelledError:
            native.client.cancel(number)
            native.waiting.pop(number, None)
            raise
        finally:
            self._open.discard(number)
