"""One follower's stream at the port of a leader: its hello, then the frames of its session.

The door calls `receive` and `close`; everything else runs in one task for each stream, from the
hello on. Frames that arrive before the answer to the hello wait for it.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from ...front.service import Outbound
from ...proto import v1
from ...proto.errors import DEADLINE_EXCEEDED, INTERNAL, INVALID_ARGUMENT, RpcFailure

logger = logging.getLogger(__name__)

#: Time for the hello of a new stream, before its slot is released.
HELLO_TIMEOUT_S: Final = 5.0


class SessionEndedError(Exception):
    """The stream must end; the text is the reason."""


class Receiver(Protocol):
    """What takes the frames after the hello."""

    def receive(self, raw: bytes) -> None: ...


class IncomingStream:
    """`front.service.Session` of a stream."""

    def __init__(
        self,
        serve: Callable[["IncomingStream", v1.Hello], asyncio.Task[None]],
        peer: str,
        outbound: Outbound,
    ) -> None:
        """`serve` starts the task that answers the hello. The stream ends with it: with OK, or the
        status of the RpcFailure that it raises."""
        loop = asyncio.get_running_loop()
        self.peer = peer
        #: Set before the answer to the hello; None: further frames are dropped.
        self.receiver: Receiver | None = None
        self._serve = serve
        self._outbound = outbound
        self._last = b""
        self._answered: asyncio.Future[None] = loop.create_future()
        self._task: asyncio.Task[None] | None = None
        late = RpcFailure(DEADLINE_EXCEEDED, "no hello")
        self._timer = loop.call_later(HELLO_TIMEOUT_S, outbound.finish, late)

    async def write(self, frame: bytes) -> None:
        """Send a frame; returns when the connection has taken it. Raises SessionEndedError.

        What is appended meanwhile goes into the next frame.
        """
        if self._outbound.finished:
            raise SessionEndedError("the follower closed the stream")
        self._outbound.send(frame)
        # Until the next one is made: the C library would return the memory of both to the system,
        # and get it back page by page for the next one, at twice the cost of a frame.
        self._last = frame
        if not self._answered.done():
            self._answered.set_result(None)
        await self._outbound.drained()

    def receive(self, raw: bytes) -> "asyncio.Future[None] | None":
        """Process a frame. Raises RpcFailure for a first frame that is no hello."""
        if self._task is not None:
            if self.receiver is not None:
                self.receiver.receive(raw)
            return None
        greeting = _hello(raw)
        self._timer.cancel()
        self._task = self._serve(self, greeting)
        self._task.add_done_callback(self._ended)
        return self._answered

    def close(self, reason: str) -> None:
        """End the task: the follower has left, or sends no more."""
        self._timer.cancel()
        self._answered.cancel()
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None or isinstance(error, RpcFailure | SessionEndedError):
            self._outbound.finish(error if isinstance(error, RpcFailure) else None)
            return
        logger.error("ha.stream.failed peer=%s", self.peer, exc_info=error)
        self._outbound.finish(RpcFailure(INTERNAL, "replication failed: see the leader's log"))


def _hello(raw: bytes) -> v1.Hello:
    try:
        frame = v1.FollowerFrame.FromString(raw)
    except DecodeError:
        frame = v1.FollowerFrame()
    if frame.WhichOneof("frame") != "hello":
        raise RpcFailure(INVALID_ARGUMENT, "the first frame is not a hello")
    return frame.hello
