"""Sessions of the access point: one forwards a bidirectional stream, one serves it on this node.

A forwarded stream keeps the order of messages and runs at the pace of the slower side: the client's
next message is read when the last one is written, and an owner's message waits while the client's
queue is full. If the owner fails, the stream ends with UNAVAILABLE; clients open it again.
"""

import asyncio
from typing import Any

import grpc
import grpc.aio

from ..proto.errors import UNAVAILABLE, RpcFailure
from .service import HALF_CLOSED, Method, Outbound, OutboundFull, Session, read_message


class ParsingSession:
    """Decodes messages for a session of this node."""

    __slots__ = ("_method", "_session")

    def __init__(self, method: Method, session: Session) -> None:
        self._method = method
        self._session = session

    def receive(self, message: Any) -> "asyncio.Future[Any] | None":
        """Decode a message and pass it to the session."""
        return self._session.receive(read_message(self._method, message))

    def close(self, reason: str) -> "asyncio.Future[Any] | None":
        """Close the session."""
        return self._session.close(reason)


class BridgeSession:
    """Connects a client's stream to a stream to the owner."""

    __slots__ = ("_call", "_outbound", "_pump")

    def __init__(self, call: Any, outbound: Outbound) -> None:
        self._call = call
        self._outbound = outbound
        self._pump = asyncio.get_running_loop().create_task(self._pass_back())

    def receive(self, message: Any) -> "asyncio.Future[Any] | None":
        """Forward a message; the future is done when the owner's connection has accepted it."""
        return asyncio.get_running_loop().create_task(self._pass_on(message))

    def close(self, reason: str) -> "asyncio.Future[Any] | None":
        """Half-close the stream to the owner, or cancel it if the client left."""
        if reason == HALF_CLOSED:
            return asyncio.get_running_loop().create_task(self._end())
        self._call.cancel()
        self._pump.cancel()
        return None

    async def _pass_on(self, message: bytes) -> None:
        try:
            await self._call.write(message)
        except (grpc.RpcError, asyncio.InvalidStateError):
            # The owner ended the stream; its status is forwarded to the client.
            await self._pump

    async def _end(self) -> None:
        await self._call.done_writing()
        await asyncio.shield(self._pump)

    async def _pass_back(self) -> None:
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                await self._queue(message)
            self._outbound.finish()
        except grpc.aio.AioRpcError as error:
            self._outbound.finish(RpcFailure(error.code().value[0], error.details() or ""))
        except grpc.aio.BaseError as error:
            self._outbound.finish(RpcFailure(UNAVAILABLE, str(error)))

    async def _queue(self, message: bytes) -> None:
        while True:
            try:
                self._outbound.send(message)
                return
            except OutboundFull:
                await self._outbound.drained()
