"""One call that came through the native door: the service's handler between two sets of bytes.

The same promises as `grpcio_calls.py`, without a task a call: a handler runs in the loop's read
callback, an answer that is ready goes back at once, and one that must be waited for goes back from its
future's callback. `Answering` is a call that the door still has to do with; the door tells it when
the client has left or has the answer.
"""

from __future__ import annotations

import asyncio
from asyncio import isfuture
from contextlib import aclosing
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from ..proto.errors import RESOURCE_EXHAUSTED, UNAVAILABLE, RpcFailure
from .failure import DETAILS_MAX
from .reply_future import ReplyFuture
from .service import HALF_CLOSED, Method, OutboundFull, Session, encode, read_request

if TYPE_CHECKING:
    from .context import RequestContext
    from .native_door import NativeDoor

# A stream of answers waits for its client above this many bytes.
_STREAM_BYTES_MAX = 1 << 20
_OK = 0
CLOSING = RpcFailure(UNAVAILABLE, "the server is shutting down")


def finish(call: Any, failure: RpcFailure) -> None:
    """End the call with a gRPC status."""
    call.finish(failure.grpc_code, failure.message[:DETAILS_MAX])


class Answering:
    """A call whose answer is still to come, or on its way."""

    __slots__ = ("call", "ctx", "door", "future", "left", "method")

    def __init__(self, door: NativeDoor, call: Any, method: Method, ctx: RequestContext) -> None:
        self.door = door
        self.call = call
        self.method = method
        self.ctx = ctx
        self.future: asyncio.Future[Any] | ReplyFuture | None = None
        self.left = False

    def wait(self, future: asyncio.Future[Any] | ReplyFuture) -> None:
        """Go on when the service has made up its mind."""
        self.future = future
        self.door.enter(self)
        future.add_done_callback(self._done)

    def gone(self) -> None:
        """The client has left, or its deadline has passed."""
        self.left = True
        if self.future is None or (self.future.done() and not self.future.cancelled()):
            self.door.failures.undelivered(self.method, self.ctx)
        else:
            self.future.cancel()

    def give_up(self) -> None:
        """The server closes: the client is told, where it has not begun to read an answer."""
        self.door.leave(self)
        self.gone()
        finish(self.call, CLOSING)

    def _done(self, future: asyncio.Future[Any] | ReplyFuture) -> None:
        # Nothing may keep the request in memory: an exception refers to this frame, and the future
        # to the exception.
        self.future = None
        if self.left:
            if not future.cancelled():
                future.exception()  # it was looked at
                self.door.failures.undelivered(self.method, self.ctx)
            return
        self.door.leave(self)
        if future.cancelled():
            finish(self.call, RpcFailure(UNAVAILABLE, "the request was given up"))
            return
        error = future.exception()
        if error is not None:
            self.fail(error)
        else:
            self.answer(future.result())

    def answer(self, answer: Any) -> None:
        """Send what the handler gave."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        """Send what went wrong."""
        raise NotImplementedError


class UnaryAnswering(Answering):
    """One request, one answer."""

    __slots__ = ()

    def answer(self, answer: Any) -> None:
        try:
            delivered = self.call.reply(encode(answer))
        except Exception as error:
            self.fail(error)
            return
        if not delivered:
            self.door.failures.undelivered(self.method, self.ctx)

    def fail(self, error: BaseException) -> None:
        reply_failure(self.door, self.call, self.method, error)


def reply_failure(door: NativeDoor, call: Any, method: Method, error: BaseException) -> None:
    """Answer a unary call with what went wrong."""
    failure = door.failures.failure(method, error)
    if isinstance(failure, RpcFailure):
        finish(call, failure)
    else:
        call.reply(encode(failure))


def serve_unary(
    door: NativeDoor, call: Any, method: Method, ctx: RequestContext, raw: bytes
) -> None:
    """One request: answered here and now, unless the service wants time."""
    try:
        answer = method.handler(read_request(method, raw), ctx)
        if type(answer) is bytes:
            if not call.reply(answer):
                door.failures.undelivered(method, ctx)
        elif type(answer) is ReplyFuture or isfuture(answer):
            UnaryAnswering(door, call, method, ctx).wait(answer)
        elif type(answer) is CoroutineType:
            UnaryAnswering(door, call, method, ctx).wait(door.loop.create_task(answer))
        else:
            UnaryAnswering(door, call, method, ctx).answer(answer)
    except Exception as error:
        reply_failure(door, call, method, error)


class StreamAnswering(Answering):
    """One request, many answers: a list goes out as one piece, others as they are made."""

    __slots__ = ()

    def answer(self, answer: Any) -> None:
        if type(answer) is not list:
            self.future = task = self.door.loop.create_task(self._generate(answer))
            self.door.enter(self)
            task.add_done_callback(self._generated)
            return
        try:
            sent = self.call.reply_all([encode(each) for each in answer])
        except Exception as error:
            self.fail(error)
            return
        if sent:
            self.door.enter(self)  # until the connection has taken the last of it
        else:
            self.door.failures.undelivered(self.method, self.ctx)

    def fail(self, error: BaseException) -> None:
        failure = self.door.failures.failure(self.method, error)
        if isinstance(failure, RpcFailure):
            finish(self.call, failure)
        else:
            answers = failure if type(failure) is list else [failure]
            for answer in answers:
                self.call.send(encode(answer))
            self.call.finish(_OK, "")

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

    def _generated(self, task: asyncio.Future[None]) -> None:
        self.future = None
        if self.left:
            if not task.cancelled() and task.exception() is not None:
                self.door.failures.internal(self.method.path, task.exception())
            return
        self.door.leave(self)
        if task.cancelled():
            finish(self.call, RpcFailure(UNAVAILABLE, "the request was given up"))
            return
        error = task.exception()
        if error is not None:
            self.fail(error)
        else:
            self.call.finish(_OK, "")


def serve_stream(
    door: NativeDoor, call: Any, method: Method, ctx: RequestContext, raw: bytes
) -> None:
    """One request, many answers."""
    answering = StreamAnswering(door, call, method, ctx)
    try:
        answer = method.handler(read_request(method, raw), ctx)
        if isfuture(answer):
            answering.wait(answer)
        else:
            answering.answer(answer)
    except Exception as error:
        answering.fail(error)


class NativeOutbound:
    """`service.Outbound` of the native door: the network thread holds what waits, within bounds."""

    __slots__ = ("_call", "_count", "_door", "finished")

    def __init__(self, door: NativeDoor, call: Any) -> None:
        self._door = door
        self._call = call
        self._count = 0  # messages since nothing waited
        self.finished = False

    def send(self, message: Any) -> None:
        """Queue one message; after the end it is dropped. Raises OutboundFull at the bound."""
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
            raise OutboundFull(f"{self._count} messages, {waiting} bytes wait already")
        self._count += 1
        self._call.send(data)

    def finish(self, error: RpcFailure | None = None) -> None:
        """End the stream after what is queued. Only the first call counts."""
        if not self.finished:
            self.finished = True
            if error is None:
                self._call.finish(_OK, "")
            else:
                finish(self._call, error)

    def drained(self) -> asyncio.Future[None]:
        """Done when all that was queued has been written, or the stream has ended."""
        return self._door.drained(self._call)


class BidiCall:
    """A bidirectional stream: its session, and what is sent on it."""

    __slots__ = ("call", "ctx", "door", "method", "outbound", "rest", "session")

    def __init__(self, door: NativeDoor, call: Any, method: Method, ctx: RequestContext) -> None:
        self.door = door
        self.call = call
        self.method = method
        self.ctx = ctx
        self.outbound = NativeOutbound(door, call)
        self.session: Session | None = None
        self.rest: asyncio.Future[Any] | None = None

    def open(self) -> None:
        """Make the session."""
        self.call.watch()  # an end that was delivered closes the session
        self.door.enter(self)
        try:
            self.session = self.method.handler(self.ctx, self.outbound)
        except Exception as error:
            self._end_with(error)

    def receive(self, raw: bytes) -> None:
        """The client said something."""
        if self.session is None or self.outbound.finished:
            return
        try:
            pause = self.session.receive(read_request(self.method, raw))
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
        """The client has said all."""
        rest = self._close(HALF_CLOSED)
        if rest is None:
            self.outbound.finish()
        else:
            self.rest = rest
            rest.add_done_callback(self._rested)

    def _rested(self, rest: asyncio.Future[Any]) -> None:
        self.rest = None
        if not rest.cancelled() and rest.exception() is not None:
            self._end_with(rest.exception())
        else:
            self.outbound.finish()

    def give_up(self) -> None:
        """The server closes."""
        self.outbound.finish(CLOSING)

    def broken(self, failure: RpcFailure) -> None:
        """What the client sends cannot be read."""
        self.outbound.finish(failure)

    def gone(self) -> None:
        """The stream has ended, from whichever side."""
        self.outbound.finished = True
        if self.rest is not None:
            self.rest.cancel()
        self._close("the stream has ended")

    def _end_with(self, error: BaseException | None) -> None:
        assert error is not None
        failure = self.door.failures.failure(self.method, error)
        if isinstance(failure, RpcFailure):
            self.outbound.finish(failure)
            return
        try:
            self.outbound.send(failure)
            self.outbound.finish()
        except OutboundFull:
            self.outbound.finish(RpcFailure(RESOURCE_EXHAUSTED, str(error)))
        except Exception as broken:
            self.outbound.finish(self.door.failures.internal(self.method.path, broken))

    def _close(self, reason: str) -> asyncio.Future[Any] | None:
        """Once: whoever comes first says why."""
        session, self.session = self.session, None
        if session is None:
            return None
        try:
            return session.close(reason)
        except Exception as error:
            self.door.failures.internal(self.method.path, error)
            return None


def serve_bidi(
    door: NativeDoor, call: Any, method: Method, ctx: RequestContext, _raw: bytes
) -> None:
    """Messages both ways."""
    BidiCall(door, call, method, ctx).open()
