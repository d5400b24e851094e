"""One gRPC call in the native door: request bytes in, the service's handler, answer bytes out.

The guarantees equal those of `..grpcio_calls`, without a task for each call: the handler runs in
the loop's read callback, a ready answer is sent with the others of the turn (`replies.py`), and a
pending one by the callback of its future. A `PendingCall` is registered with the door, which
notifies it when the client has left or the answer was delivered.
"""

from __future__ import annotations

import asyncio
from asyncio import isfuture
from contextlib import aclosing
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Protocol

from ...proto.errors import UNAVAILABLE, RpcFailure
from ..failure import DETAILS_MAX, FailureHandler
from ..reply_future import ReplyFuture
from ..service import (
    HALF_CLOSED,
    Method,
    OutboundFull,
    Session,
    encode,
    open_session,
    read_message,
    read_request,
)

if TYPE_CHECKING:
    from ..config import DoorConfig
    from ..context import RequestContext
    from ..metrics.calls import CallTimes
    from .replies import Replies

# A stream of answers pauses while more than this many bytes wait for its client.
_STREAM_BYTES_MAX = 1 << 20
_OK = 0
CLOSING = RpcFailure(UNAVAILABLE, "the server is shutting down")
_CANCELLED = RpcFailure(UNAVAILABLE, "the request was given up")


class _Door(Protocol):
    """The parts of the door that a call uses."""

    config: DoorConfig
    loop: asyncio.AbstractEventLoop
    failures: FailureHandler
    replies: Replies
    times: CallTimes

    def enter(self, pending: Any) -> None: ...

    def leave(self, pending: Any) -> None: ...

    def leave_taken(self, pending: TakenCalls) -> None: ...

    def drained(self, call: Any) -> asyncio.Future[None]: ...


def finish(call: Any, failure: RpcFailure) -> None:
    """End the call with a gRPC status."""
    call.finish(failure.grpc_code, failure.message[:DETAILS_MAX])


class PendingCall:
    """A call whose answer is not ready, or not yet delivered."""

    __slots__ = ("call", "ctx", "door", "future", "left", "method", "waited")

    def __init__(self, door: _Door, call: Any, method: Method, ctx: RequestContext) -> None:
        self.door = door
        self.call = call
        self.method = method
        self.ctx = ctx
        self.future: asyncio.Future[Any] | ReplyFuture | None = None
        self.left = False
        self.waited = False

    def wait(self, future: asyncio.Future[Any] | ReplyFuture) -> None:
        """Send the answer when the service's future is done."""
        self.future = future
        self.waited = True
        self.door.enter(self)
        future.add_done_callback(self._done)

    def gone(self) -> None:
        """Called by the door: the client has left, or its deadline has passed."""
        self.left = True
        if self.future is None or (self.future.done() and not self.future.cancelled()):
            self.door.failures.undelivered(self.method, self.ctx)
        else:
            self.future.cancel()

    def shut_down(self) -> None:
        """Called by the door as it closes: end the call, unless an answer is being sent."""
        self.door.leave(self)
        self.gone()
        finish(self.call, CLOSING)

    def _done(self, future: asyncio.Future[Any] | ReplyFuture) -> None:
        # Drop the future: an exception refers to this frame, and the future to the exception, a
        # cycle that would keep the request in memory.
        self.future = None
        if self.left:
            if not future.cancelled():
                self.done_late(future.exception())
            return
        self.door.leave(self)
        if future.cancelled():
            finish(self.call, _CANCELLED)
            return
        error = future.exception()
        if error is not None:
            self.fail(error)
        else:
            self.answer(future.result())

    def done_late(self, _error: BaseException | None) -> None:
        """Handle a future that was done after the client had left."""
        self.door.failures.undelivered(self.method, self.ctx)

    def answer(self, answer: Any) -> None:
        """Send the handler's answer."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        """Send the failure."""
        raise NotImplementedError


class UnaryCall(PendingCall):
    """One request, one answer."""

    __slots__ = ()

    def answer(self, answer: Any) -> None:
        try:
            content = encode(answer)
        except Exception as error:
            self.fail(error)
            return
        self.door.replies.add(self.call, content, self.method, self.ctx)

    def fail(self, error: BaseException) -> None:
        reply_failure(self.door, self.call, self.method, self.ctx, error)


def reply_failure(
    door: _Door, call: Any, method: Method, ctx: RequestContext, error: BaseException
) -> None:
    """Answer a unary call with a failure."""
    door.times.failed(method.path, ctx.begin_ns, error)
    failure = door.failures.failure(method, error)
    if isinstance(failure, RpcFailure):
        finish(call, failure)
    else:
        call.reply(encode(failure))


def serve_unary(door: _Door, call: Any, method: Method, ctx: RequestContext, raw: bytes) -> None:
    """Serve a unary call; a ready answer is sent at once, or at the exit of `door.replies`."""
    try:
        answer = method.handler(read_request(method, raw, ctx), ctx)
        if type(answer) is bytes:
            door.replies.add(call, answer, method, ctx)
        elif isinstance(answer, ReplyFuture) or isfuture(answer):
            UnaryCall(door, call, method, ctx).wait(answer)
        elif type(answer) is CoroutineType:
            UnaryCall(door, call, method, ctx).wait(door.loop.create_task(answer))
        else:
            UnaryCall(door, call, method, ctx).answer(answer)
    except Exception as error:
        reply_failure(door, call, method, ctx, error)


class TakenCalls:
    """Unary calls that a `TurnHandler` has taken; registered with the door until it answers."""

    __slots__ = ("calls", "ctx", "door", "method")

    def __init__(self, door: _Door, calls: list[Any], method: Method, ctx: RequestContext) -> None:
        self.door = door
        self.calls = calls
        self.method = method
        self.ctx = ctx

    def answer(self, answers: list[bytes]) -> None:
        """Send the answers, unless the door has ended the calls."""
        calls = self._leave()
        if calls:
            self.door.replies.add_all(calls, answers, self.method, self.ctx)

    def shut_down(self) -> None:
        """Called by the door as it closes: end the calls."""
        for call in self._leave():
            finish(call, CLOSING)

    def fail(self, error: BaseException) -> None:
        """End the calls with a failure."""
        for call in self._leave():
            reply_failure(self.door, call, self.method, self.ctx, error)

    def _leave(self) -> list[Any]:
        """Unregister the calls; return those that were not answered."""
        self.door.leave_taken(self)
        calls, self.calls = self.calls, []
        return calls


class StreamCall(PendingCall):
    """One request, many answers; a list of answers is sent in one piece."""

    __slots__ = ()

    def answer(self, answer: Any) -> None:
        if type(answer) is not list:
            GeneratorCall(self.door, self.call, self.method, self.ctx).generate(answer)
            return
        try:
            messages = [encode(each) for each in answer]
        except Exception as error:
            self.fail(error)
            return
        self._count()
        self.door.enter(self)  # until the connection has accepted the last message
        self.door.replies.add_stream(self, messages)

    def _count(self) -> None:
        times = self.door.times
        count = times.waited if self.waited else times.answered
        count(self.method.path, self.ctx.begin_ns)

    def fail(self, error: BaseException) -> None:
        self.door.times.failed(self.method.path, self.ctx.begin_ns, error)
        failure = self.door.failures.failure(self.method, error)
        if isinstance(failure, RpcFailure):
            finish(self.call, failure)
        else:
            answers = failure if type(failure) is list else [failure]
            for answer in answers:
                self.call.send(encode(answer))
            self.call.finish(_OK, "")


class GeneratorCall(StreamCall):
    """A stream whose answers come from an asynchronous iterator."""

    __slots__ = ()

    def generate(self, answers: Any) -> None:
        """Send the answers in a task."""
        self.wait(self.door.loop.create_task(self._generate(answers)))

    def answer(self, _answer: Any) -> None:
        self._count()
        self.call.finish(_OK, "")

    def done_late(self, error: BaseException | None) -> None:
        if error is not None:
            self.door.failures.internal(self.method.path, error)

    async def _generate(self, answers: Any) -> None:
        if hasattr(answers, "aclose"):
            async with aclosing(answers):
                await self._send_each(answers)
        else:
            await self._send_each(answers)

    async def _send_each(self, answers: Any) -> None:
        async for answer in answers:
            if self.call.send(encode(answer)) > _STREAM_BYTES_MAX:
                await self.door.drained(self.call)


def serve_stream(door: _Door, call: Any, method: Method, ctx: RequestContext, raw: bytes) -> None:
    """Serve a call with one request and many answers."""
    pending = StreamCall(door, call, method, ctx)
    try:
        answer = method.handler(read_request(method, raw, ctx), ctx)
        if isfuture(answer):
            pending.wait(answer)
        else:
            pending.answer(answer)
    except Exception as error:
        pending.fail(error)


class NativeOutbound:
    """`service.Outbound` of the native door: a bounded queue held by the network thread."""

    __slots__ = ("_call", "_count", "_door", "finished")

    def __init__(self, door: _Door, call: Any) -> None:
        self._door = door
        self._call = call
        self._count = 0  # messages sent since the queue was last empty
        self.finished = False

    def send(self, message: Any) -> None:
        """Queue one message; dropped after the end. Raises OutboundFull at the bound."""
        if self.finished:
            return
        data = encode(message)
        waiting = self._call.queued()
        config = self._door.config
        if not waiting:
            self._count = 0
        elif (
            self._count >= config.front_outbound_messages
            or waiting + len(data) > config.front_outbound_bytes
        ):
            raise OutboundFull(f"{self._count} messages ({waiting} bytes) are already queued")
        self._count += 1
        self._call.send(data)

    def finish(self, error: RpcFailure | None = None) -> None:
        """End the stream after the queued messages. Only the first call has an effect."""
        if not self.finished:
            self.finished = True
            if error is None:
                self._call.finish(_OK, "")
            else:
                finish(self._call, error)

    def drained(self) -> asyncio.Future[None]:
        """Return a future that is done when the queue has been written, or the stream has ended."""
        return self._door.drained(self._call)


class BidiCall:
    """A bidirectional stream: its session and its outbound queue."""

    __slots__ = ("call", "ctx", "door", "method", "outbound", "rest", "session")

    def __init__(self, door: _Door, call: Any, method: Method, ctx: RequestContext) -> None:
        self.door = door
        self.call = call
        self.method = method
        self.ctx = ctx
        self.outbound = NativeOutbound(door, call)
        self.session: Session | None = None
        self.rest: asyncio.Future[Any] | None = None

    def open(self) -> None:
        """Create the session."""
        self.call.watch()  # the end of the stream closes the session
        self.door.enter(self)
        try:
            self.session = open_session(self.method, self.ctx, self.outbound)
        except Exception as error:
            self._end_with(error)

    def receive(self, raw: bytes) -> None:
        """Called by the door: a message arrived."""
        if self.session is None or self.outbound.finished:
            return
        try:
            pause = self.session.receive(read_message(self.method, raw))
        except Exception as error:
            self._end_with(error)
            return
        if pause is None:
            self.call.consumed()
        else:
            pause.add_done_callback(self._resumed)

    def _resumed(self, pause: asyncio.Future[Any]) -> None:
        if pause.cancelled():
            return
        error = pause.exception()
        if error is None:
            self.call.consumed()
        else:
            self._end_with(error)

    def half_closed(self) -> None:
        """Called by the door: the client has sent its last message."""
        rest = self._close(HALF_CLOSED)
        if rest is None:
            self.outbound.finish()
        else:
            self.rest = rest
            rest.add_done_callback(self._rested)

    def _rested(self, rest: asyncio.Future[Any]) -> None:
        self.rest = None
        error = None if rest.cancelled() else rest.exception()
        if error is not None:
            self._end_with(error)
        else:
            self.outbound.finish()

    def shut_down(self) -> None:
        """Called by the door as it closes."""
        self.outbound.finish(CLOSING)

    def broken(self, failure: RpcFailure) -> None:
        """Called by the door: the client's bytes cannot be decoded."""
        self.outbound.finish(failure)

    def gone(self) -> None:
        """Called by the door: the stream has ended on either side."""
        self.outbound.finished = True
        if self.rest is not None:
            self.rest.cancel()
        self._close("the stream has ended")

    def _end_with(self, error: BaseException) -> None:
        self.door.failures.end_stream(self.method, self.outbound, error)

    def _close(self, reason: str) -> asyncio.Future[Any] | None:
        """Close the session once; later calls do nothing."""
        session, self.session = self.session, None
        if session is None:
            return None
        return self.door.failures.close_session(self.method, session, reason)


def serve_bidi(door: _Door, call: Any, method: Method, ctx: RequestContext, _raw: bytes) -> None:
    """Serve a bidirectional stream."""
    BidiCall(door, call, method, ctx).open()
