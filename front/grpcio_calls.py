"""One gRPC call as grpc.aio hands it over: bytes in, the service's handler, bytes out.

Each class is what grpc.aio calls a method handler, made for one call, so that the metadata which was
decoded to find the handler is not decoded again. Promises, for every kind of call: a `WireError` is
an answer, an `RpcFailure` a status, anything else INTERNAL, logged once a path and counted; a client
that leaves cancels what its call waits for, and `on_undelivered` is told when the answer was lost.
This is the hot path: benchmarks compare it with an empty handler of bare grpc.aio.

Every kind of call is registered as one whose requests stream, and reads its one request itself:
grpc.aio would leave a unary call whose message is cut short without an answer for ever.
"""

import asyncio
from asyncio import CancelledError, isfuture
from contextlib import aclosing
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from grpc.aio import EOF, BaseError

from ..proto.errors import (
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    RpcFailure,
    WireError,
)
from .context import (
    CLIENT_ID,
    CLIENT_VERSION,
    FORWARDED,
    LANGUAGE,
    NAMESPACE,
    PICKED,
    TOKEN,
    RequestContext,
)
from .failure import DETAILS_MAX
from .faults import FaultAction
from .outbound import QueuedOutbound
from .reply_future import ReplyFuture
from .service import HALF_CLOSED, Kind, Method, OutboundFull, Session, encode, read_request

if TYPE_CHECKING:
    from .grpcio_door import GrpcioDoor

_NS_PER_S = 1_000_000_000
_AWAITED = (ReplyFuture, CoroutineType)
_STATUS = {code.value[0]: code for code in grpc.StatusCode}
# grpc.aio reads the same end whether a client has said all or has left; if it left, the call is
# cancelled right after. So long is waited to tell one from the other.
_HAS_IT_LEFT_S = 0.02


class _Call:
    """What grpc.aio asks of a handler, and what all kinds of calls share."""

    __slots__ = ("_door", "_metadata", "_method")
    request_streaming = True
    response_streaming = False
    request_deserializer = None
    response_serializer = None

    def __init__(self, door: "GrpcioDoor", method: Method, metadata: Any) -> None:
        self._door = door
        self._method = method
        self._metadata = metadata

    def _context(self, call: Any, request_bytes: int = 0) -> RequestContext:
        door = self._door
        picked = dict([pair for pair in self._metadata if pair[0] in PICKED])
        get = picked.get
        remaining_s = call.time_remaining()
        return RequestContext(
            get(CLIENT_ID, ""),
            get(LANGUAGE, ""),
            get(CLIENT_VERSION, ""),
            get(NAMESPACE, ""),
            door.peer(call.peer()),
            None if remaining_s is None else door.steady_ns() + int(remaining_s * _NS_PER_S),
            FORWARDED in picked,
            get(TOKEN, ""),
            tuple(picked.items()),
            request_bytes,
        )

    async def _no_request(self) -> NoReturn:
        await asyncio.sleep(_HAS_IT_LEFT_S)
        text = f"the request of {self._method.path} ends before its message is complete"
        raise RpcFailure(INVALID_ARGUMENT, text)

    async def _guard(self) -> bool:
        """Refuse beyond the bound, meet faults; True when the answer shall be dropped."""
        door = self._door
        if door.in_flight > door.in_flight_max:
            raise RpcFailure(RESOURCE_EXHAUSTED, "too many calls at once; try again later")
        fault = door.faults.rpc_fault(self._method.path) if door.faults is not None else None
        if fault is None:
            return False
        if fault.delay_ms:
            await asyncio.sleep(fault.delay_ms / 1_000)
        if fault.action is FaultAction.FAIL:
            fault.raise_rpc()
        return fault.action is FaultAction.DROP

    async def _failure(self, error: Exception, call: Any) -> Any:
        """The answer that says what went wrong; does not return where that is a gRPC status."""
        failure = self._door.failures.failure(self._method, error)
        if not isinstance(failure, RpcFailure):
            return failure
        status = _STATUS.get(failure.grpc_code, grpc.StatusCode.UNKNOWN)
        await call.abort(status, failure.message[:DETAILS_MAX])

    async def _cancelled(self, ctx: RequestContext, answer: Any, call: Any) -> None:
        """The call ends without its answer: the client left, or the service gave its future up."""
        if not ((type(answer) is ReplyFuture or isfuture(answer)) and answer.cancelled()):
            self._undelivered(ctx)
        task = asyncio.current_task()
        if task is not None and not task.cancelling():
            await call.abort(grpc.StatusCode.UNAVAILABLE, "the request was given up")

    def _undelivered(self, ctx: RequestContext) -> None:
        self._door.failures.undelivered(self._method, ctx)


async def _never() -> None:
    """Wait until the client has had enough: a dropped answer."""
    await asyncio.get_running_loop().create_future()


class UnaryCall(_Call):
    """One request, one answer. The answer's last step is grpc's own: only a cancel before it shows."""

    __slots__ = ()

    async def stream_unary(self, _requests: Any, call: Any) -> bytes:
        """Named by grpc.aio."""
        door = self._door
        raw = await call.read()
        ctx = self._context(call, 0 if raw is EOF else len(raw))
        answer: Any = None
        door.in_flight += 1
        try:
            if raw is EOF:
                await self._no_request()
            dropped = await self._guard() if door.guarded() else False
            answer = self._method.handler(read_request(self._method, raw), ctx)
            if type(answer) in _AWAITED or isfuture(answer):
                result = await answer
            else:
                result = answer
            if dropped:
                ctx.on_undelivered = None
                await _never()
            return encode(result)
        except CancelledError:
            await self._cancelled(ctx, answer, call)
            raise
        except Exception as error:
            return encode(await self._failure(error, call))
        finally:
            door.in_flight -= 1
            # An exception that a future carried refers to this frame, and this frame to the future:
            # a ring that would keep the request in memory until the garbage collector comes.
            answer = raw = None


class StreamCall(_Call):
    """One request, many answers, written as they come."""

    __slots__ = ()
    response_streaming = True

    async def stream_stream(self, _requests: Any, call: Any) -> None:
        """Named by grpc.aio."""
        door = self._door
        raw = await call.read()
        ctx = self._context(call, 0 if raw is EOF else len(raw))
        answer: Any = None
        door.in_flight += 1
        try:
            if raw is EOF:
                await self._no_request()
            dropped = await self._guard() if door.guarded() else False
            answer = self._method.handler(read_request(self._method, raw), ctx)
            answers = await answer if isfuture(answer) else answer
            if dropped:
                ctx.on_undelivered = None
                await _never()
            await self._write(answers, call)
        except CancelledError:
            await self._cancelled(ctx, answer, call)
            raise
        except BaseError:
            self._undelivered(ctx)
            raise
        except Exception as error:
            answers = await self._failure(error, call)
            await self._write(answers if type(answers) is list else [answers], call)
        finally:
            door.in_flight -= 1
            # As above: no ring around the request.
            answer = raw = None

    async def _write(self, answers: Any, call: Any) -> None:
        write = call.write
        if type(answers) is list:
            for answer in answers:
                await write(encode(answer))
        elif hasattr(answers, "aclose"):
            async with aclosing(answers):
                async for answer in answers:
                    await write(encode(answer))
        else:
            async for answer in answers:
                await write(encode(answer))


class BidiCall(_Call):
    """Messages both ways: a reading task feeds the session, the call itself writes what it sends."""

    __slots__ = ("_open",)
    response_streaming = True

    async def stream_stream(self, _requests: Any, call: Any) -> None:
        """Named by grpc.aio."""
        door = self._door
        ctx = self._context(call)
        outbound = QueuedOutbound(
            door.config.front_outbound_messages, door.config.front_outbound_bytes
        )
        session: Session | None = None
        reader: asyncio.Task[None] | None = None
        self._open = True
        door.in_flight += 1
        door.streams.add(outbound)
        try:
            dropped = await self._guard() if door.guarded() else False
            session = self._method.handler(ctx, outbound)
            reader = asyncio.get_running_loop().create_task(self._read(session, outbound, call))
            if dropped:
                await _never()
            while (data := await outbound.take()) is not None:
                await call.write(data)
        except (CancelledError, BaseError):
            raise
        except Exception as error:
            await call.write(encode(await self._failure(error, call)))
        finally:
            door.in_flight -= 1
            door.streams.discard(outbound)
            outbound.abandon()
            if reader is not None:
                reader.cancel()
            if session is not None:
                self._close(session, "the stream has ended")

    async def _read(self, session: Session, outbound: QueuedOutbound, call: Any) -> None:
        try:
            while (raw := await call.read()) is not EOF:
                pause = session.receive(read_request(self._method, raw))
                if pause is not None:
                    await pause
            await asyncio.sleep(_HAS_IT_LEFT_S)
            rest = self._close(session, HALF_CLOSED)
            if rest is not None:
                await rest
            outbound.finish()
        except WireError as error:
            self._finish_with(error, outbound)
        except RpcFailure as error:
            outbound.finish(error)
        except BaseError:
            outbound.finish()
        except Exception as error:
            outbound.finish(self._door.failures.internal(self._method.path, error))

    def _finish_with(self, error: WireError, outbound: QueuedOutbound) -> None:
        try:
            outbound.send(self._method.fail(error))
            outbound.finish()
        except OutboundFull:
            outbound.finish(RpcFailure(RESOURCE_EXHAUSTED, error.message))
        except Exception as broken:
            outbound.finish(self._door.failures.internal(self._method.path, broken))

    def _close(self, session: Session, reason: str) -> "asyncio.Future[Any] | None":
        """Once: whoever comes first says why."""
        if not self._open:
            return None
        self._open = False
        try:
            return session.close(reason)
        except Exception as error:
            self._door.failures.internal(self._method.path, error)
            return None


CALLS = {Kind.UNARY: UnaryCall, Kind.SERVER_STREAM: StreamCall, Kind.BIDI: BidiCall}
