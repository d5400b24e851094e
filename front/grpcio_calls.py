"""One gRPC call in the grpcio door: request bytes in, the service's handler, answer bytes out.

grpc.aio calls these classes method handlers. One is created for each call, so that the metadata
decoded to find the handler is not decoded again. The error rules are those of `service.py`; in
addition, a client that leaves cancels the future that its call waits for, and `on_undelivered` is
called when an answer was lost. This is the hot path: benchmarks compare it with an empty handler of
bare grpc.aio.

Every kind of call is registered with streaming requests and reads its single request itself:
grpc.aio would never answer a unary call whose message is cut short.

gRPC's core would decompress a message of gzip before it checks the size, on the event loop: 0.4 s
for 160 MB. It passes such messages on as they are (`_options` of the door), and `Inflation`
decompresses them. The core does not report a message's flag of compression, so they are recognized
by their first bytes, which no message of protobuf has.
"""

import asyncio
import zlib
from asyncio import CancelledError, isfuture
from collections.abc import Callable
from contextlib import aclosing
from types import CoroutineType
from typing import Any, Protocol

import grpc
from grpc.aio import EOF, BaseError

from ..proto.errors import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    RpcFailure,
)
from .config import DoorConfig
from .context import (
    CLIENT_ID,
    CLIENT_VERSION,
    FORWARDED,
    LANGUAGE,
    NAMESPACE,
    PICKED,
    TOKEN,
    USER,
    RequestContext,
)
from .failure import DETAILS_MAX, FailureHandler
from .faults import FaultAction, FaultTable
from .metrics.calls import CallTimes
from .outbound import QueuedOutbound
from .reply_future import ReplyFuture
from .service import (
    HALF_CLOSED,
    Kind,
    Method,
    Session,
    admit,
    encode,
    open_session,
    read_message,
)
from .slow_clients import COUNTED_MIN, SlowClients

_NS_PER_S = 1_000_000_000
_AWAITED = (ReplyFuture, CoroutineType)
_STATUS = {code.value[0]: code for code in grpc.StatusCode}
# grpc.aio reports the same end of the request stream whether the client half-closed or left; after
# a departure the call is cancelled right away. This wait tells the two apart.
_CANCEL_WAIT_S = 0.02
#: The begin of a gzip member; as protobuf it would be a field of a wire type that does not exist.
_GZIP = b"\x1f\x8b"
_GZIP_WINDOW_BITS = 31
#: Messages decompressed at once: each may hold the largest message, and they share the cores.
_INFLATING_MAX = 2


class Inflation:
    """Decompresses messages, in threads and a few at a time: one may take long."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_INFLATING_MAX)

    async def plain(self, data: bytes, bytes_max: int) -> bytes:
        """Return a message without compression. Raises RpcFailure."""
        if not data.startswith(_GZIP):
            return data
        async with self._free:
            return await asyncio.to_thread(_inflated, data, bytes_max)


def _inflated(data: bytes, bytes_max: int) -> bytes:
    """Return the content of one member of gzip, as gRPC makes them. Raises RpcFailure."""
    member = zlib.decompressobj(_GZIP_WINDOW_BITS)
    try:
        plain = member.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise RpcFailure(INTERNAL, f"cannot decompress a gzip message: {error}") from None
    if len(plain) > bytes_max:
        text = f"a message decompresses to more than {bytes_max} bytes"
        raise RpcFailure(RESOURCE_EXHAUSTED, text)
    if not member.eof or member.unused_data:
        raise RpcFailure(INTERNAL, "cannot decompress a gzip message: its end is damaged")
    return plain


class _Door(Protocol):
    """The parts of the door that a call uses."""

    config: DoorConfig
    tls: bool
    nodes: bool
    steady_ns: Callable[[], int]
    faults: FaultTable | None
    failures: FailureHandler
    times: CallTimes
    in_flight: int
    in_flight_max: int
    streams: set[QueuedOutbound]
    slow: SlowClients
    inflation: Inflation

    def disconnect(self, peer: str) -> None: ...

    def guarded(self) -> bool: ...

    def peer(self, name: str) -> str: ...


class _Call:
    """The handler attributes that grpc.aio reads, and what all kinds of calls share."""

    __slots__ = ("_door", "_metadata", "_method")
    request_streaming = True
    response_streaming = False
    request_deserializer = None
    response_serializer = None

    def __init__(self, door: _Door, method: Method, metadata: Any) -> None:
        self._door = door
        self._method = method
        self._metadata = metadata

    def _context(self, call: Any, request_bytes: int = 0) -> RequestContext:
        door = self._door
        picked = dict([pair for pair in self._metadata if pair[0] in PICKED])
        get = picked.get
        remaining_s = call.time_remaining()
        forwarded, user = picked.pop(FORWARDED, None), picked.pop(USER, "")
        now_ns = door.steady_ns()
        return RequestContext(
            get(CLIENT_ID, ""),
            get(LANGUAGE, ""),
            get(CLIENT_VERSION, ""),
            get(NAMESPACE, ""),
            door.peer(call.peer()),
            None if remaining_s is None else now_ns + int(remaining_s * _NS_PER_S),
            forwarded is not None,
            picked.pop(TOKEN, ""),
            tuple(picked.items()),
            request_bytes,
            tls=door.tls,
            peer_certificate=_certificate(call) if door.nodes and door.tls else b"",
            forwarded_for=forwarded or "",
            forwarded_user=user,
            begin_ns=now_ns,
        )

    async def _plain(self, data: bytes) -> bytes:
        """Return a message without compression. Raises RpcFailure."""
        bytes_max = self._door.config.front_max_receive_message_size
        own = self._method.request_bytes_max
        return await self._door.inflation.plain(data, min(own or bytes_max, bytes_max))

    async def _guard(self) -> bool:
        """Refuse a call beyond the bound and apply faults; True if the answer must be dropped."""
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
        """Return the answer that carries the error; aborts the call if it is a gRPC status."""
        failure = self._door.failures.failure(self._method, error)
        if not isinstance(failure, RpcFailure):
            return failure
        status = _STATUS.get(failure.grpc_code, grpc.StatusCode.UNKNOWN)
        await call.abort(status, failure.message[:DETAILS_MAX])


def _certificate(call: Any) -> bytes:
    """Return the verified certificate (PEM) of the caller; empty: it has none."""
    return next(iter(call.auth_context().get("x509_pem_cert", ())), b"")


async def _never() -> None:
    """Wait until the client leaves: the answer is dropped."""
    await asyncio.get_running_loop().create_future()


class _RequestCall(_Call):
    """A call with one request."""

    __slots__ = ()

    async def _serve(self, _requests: Any, call: Any) -> bytes | None:
        """Serve the call. Returns the answer of a unary call; a stream is written."""
        door = self._door
        ctx = self._context(call)
        answer: Any = None
        raw: Any = None
        door.in_flight += 1
        try:
            admit(self._method, ctx)  # before the request is read
            raw = await self._request(call)
            ctx.request_bytes = len(raw)
            dropped = await self._guard() if door.guarded() else False
            answer = self._method.handler(read_message(self._method, raw), ctx)
            if isinstance(answer, _AWAITED) or isfuture(answer):
                result = await answer
            else:
                result = answer
            if dropped:
                ctx.on_undelivered = None
                await _never()
            if self.response_streaming:
                await self._write(result, call, ctx)
                count = door.times.answered if result is answer else door.times.waited
                count(self._method.path, ctx.begin_ns)
                return None
            data = encode(result)
            door.times.answered(self._method.path, ctx.begin_ns)
            if len(data) >= COUNTED_MIN:
                door.slow.answered(len(data), ctx.peer)
            return data
        except CancelledError:
            if answer is None and door.slow.reset(ctx.peer):
                door.disconnect(ctx.peer)
            await self._cancelled(ctx, answer, call)
            raise
        except Exception as error:
            if self.response_streaming and isinstance(error, BaseError):
                self._undelivered(ctx)
                # The client has left: grpc.aio cancels the call right away, and would log an error
                # that is raised before that.
                await asyncio.sleep(_CANCEL_WAIT_S)
                raise
            door.times.failed(self._method.path, ctx.begin_ns, error)
            result = await self._failure(error, call)
            if self.response_streaming:
                await self._write(result if type(result) is list else [result], call, ctx)
                return None
            return encode(result)
        finally:
            door.in_flight -= 1
            # An exception carried by a future refers to this frame, and this frame to the future:
            # a cycle that would keep the request in memory until the garbage collector runs.
            answer = raw = None

    async def _request(self, call: Any) -> bytes:
        """Return the request. Raises RpcFailure if it does not arrive, or not in time."""
        try:
            raw = await self._door.slow.read(call)
        except TimeoutError:
            limit = self._door.config.front_request_timeout
            text = f"the request was not complete within {limit} ms"
            raise RpcFailure(DEADLINE_EXCEEDED, text) from None
        if raw is EOF:
            await asyncio.sleep(_CANCEL_WAIT_S)
            text = f"the request of {self._method.path} ends before its message is complete"
            raise RpcFailure(INVALID_ARGUMENT, text)
        return await self._plain(raw)

    async def _write(self, answers: Any, call: Any, ctx: RequestContext) -> None:
        write = self._door.slow.write
        if type(answers) is list:
            for answer in answers:
                await write(call, encode(answer), ctx.peer)
        elif hasattr(answers, "aclose"):
            async with aclosing(answers):
                async for answer in answers:
                    await write(call, encode(answer), ctx.peer)
        else:
            async for answer in answers:
                await write(call, encode(answer), ctx.peer)

    async def _cancelled(self, ctx: RequestContext, answer: Any, call: Any) -> None:
        """End a call without an answer: the client left, or the service cancelled its future."""
        if not ((isinstance(answer, ReplyFuture) or isfuture(answer)) and answer.cancelled()):
            self._undelivered(ctx)
        task = asyncio.current_task()
        if task is not None and not task.cancelling():
            await call.abort(grpc.StatusCode.UNAVAILABLE, "the request was given up")

    def _undelivered(self, ctx: RequestContext) -> None:
        self._door.failures.undelivered(self._method, ctx)


class UnaryCall(_RequestCall):
    """One request, one answer. grpc.aio sends it; only an earlier cancellation is noticed."""

    __slots__ = ()
    stream_unary = _RequestCall._serve


class StreamCall(_RequestCall):
    """One request, many answers, written as the handler produces them."""

    __slots__ = ()
    response_streaming = True
    stream_stream = _RequestCall._serve


class BidiCall(_Call):
    """A bidirectional stream: a task reads for the session, the call itself writes its messages."""

    __slots__ = ("_open",)
    response_streaming = True

    async def stream_stream(self, _requests: Any, call: Any) -> None:
        """Serve the call (grpc.aio's method name)."""
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
            session = open_session(self._method, ctx, outbound)
            reader = asyncio.get_running_loop().create_task(self._read(session, outbound, call))
            if dropped:
                await _never()
            while (data := await outbound.take()) is not None:
                await door.slow.write(call, data, ctx.peer)
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
                pause = session.receive(read_message(self._method, await self._plain(raw)))
                if pause is not None:
                    await pause
            await asyncio.sleep(_CANCEL_WAIT_S)
            rest = self._close(session, HALF_CLOSED)
            if rest is not None:
                await rest
            outbound.finish()
        except BaseError:
            outbound.finish()
        except Exception as error:
            self._door.failures.end_stream(self._method, outbound, error)

    def _close(self, session: Session, reason: str) -> "asyncio.Future[Any] | None":
        """Close the session once; later calls do nothing."""
        if not self._open:
            return None
        self._open = False
        return self._door.failures.close_session(self._method, session, reason)


CALLS = {Kind.UNARY: UnaryCall, Kind.SERVER_STREAM: StreamCall, Kind.BIDI: BidiCall}
