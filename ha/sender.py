"""One stream of the leader to one follower: what is sent next, and what comes back.

The sender sleeps until `wake`: the log grew, an acknowledgement opened the window, or a beat is due.
Appends of one loop turn therefore travel together, and while a frame is on its way to the transport the
next ones gather into one chunk; nothing is delayed on purpose. At most `haWindowSize` bytes are
under way to a follower, counted by what it has received, so that one large message cannot block it.
"""

import asyncio
import zlib
from collections import deque
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from ..proto import v1
from . import frames
from .channel import is_stream_end
from .hooks import Hooks
from .log import ReplicatedLog
from .replica import Replica


class SessionOwner(Protocol):
    """What a session needs of the leader's side."""

    replica: Replica
    hooks: Hooks

    @property
    def confirm(self) -> int: ...
    def is_in_sync(self, broker_id: int) -> bool: ...
    def on_ack(self, session: "Session", written_end: int, flushed_end: int) -> None: ...
    def on_nack(self, session: "Session", nack: v1.Nack) -> None: ...


class SessionEndedError(Exception):
    """The stream must end; the text says why."""


class Session:
    __slots__ = (
        "_beat_wanted",
        "_closing",
        "_context",
        "_joiner",
        "_meta_next",
        "_owner",
        "_queue",
        "_replica",
        "_tasks",
        "_wake",
        "broker_id",
        "confirm_sent",
        "number",
        "reason",
        "received_end",
        "sent_end",
        "written_ns",
    )

    def __init__(
        self, owner: SessionOwner, context: Any, number: int, broker_id: int, start: int
    ) -> None:
        self.number = number
        self.broker_id = broker_id
        self.sent_end = start  #: the next chunk starts here
        self.received_end = start  #: what the follower has taken, parts of records included
        self.confirm_sent = -1
        self.written_ns = owner.replica.steady_ns()
        self.reason = "the follower closed the stream"
        self._owner = owner
        self._replica = owner.replica
        self._context = context
        self._queue: deque[bytes] = deque()  #: pieces of one payload at most, and one goodbye
        self._meta_next: tuple[int, bytes] | None = None
        self._beat_wanted = True
        self._closing = False
        self._joiner = frames.MetaJoiner()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # --- told by the leader's side ----------------------------------------------------------------

    def wake(self) -> None:
        self._wake.set()

    def want_beat(self) -> None:
        self._beat_wanted = True
        self._wake.set()

    def send_offsets(self, version: int, payload: bytes) -> None:
        """Send these next; what is not under way yet is replaced."""
        self._meta_next = (version, payload)
        self._wake.set()

    def say_goodbye(self) -> None:
        self._closing = True
        self._wake.set()

    def close(self, reason: str) -> None:
        self.reason = reason
        for task in self._tasks:
            task.cancel()

    # --- the stream -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until one side ends it; `reason` says why. Errors that are no end of a stream are raised."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._send()), loop.create_task(self._receive())]
        try:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in self._tasks:
                task.cancel()
            outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, SessionEndedError):
                self.reason = str(outcome)
            elif isinstance(outcome, Exception) and not is_stream_end(outcome):
                raise outcome

    async def _send(self) -> None:
        write = self._context.write
        while True:
            frame = self._next_frame()
            if frame is None:
                if self._closing:
                    await write(frames.bye_shutdown())
                    raise SessionEndedError("shutdown")
                self._wake.clear()
                await self._wake.wait()
                continue
            await write(frame)

    def _next_frame(self) -> bytes | None:
        if self._queue:
            return self._queue.popleft()
        if self._meta_next is not None:
            self._queue_offsets()
            return self._queue.popleft()
        if self._beat_wanted:
            return self._beat()
        log, config = self._replica.log, self._replica.config
        log_end = log.log_end
        under_way = self.sent_end - self.received_end
        chunk_bytes = config.ha_transfer_batch_size
        if self.sent_end < log_end and under_way + chunk_bytes <= config.ha_window_size:
            return self._chunk(log, log_end, chunk_bytes)
        return None

    def _chunk(self, log: ReplicatedLog, log_end: int, chunk_bytes: int) -> bytes:
        offset = self.sent_end
        if offset < log.log_start:
            raise SessionEndedError(f"retention has deleted the bytes at {offset}")
        data = log.read_log(offset, chunk_bytes)
        assert data, (offset, log_end)
        self.written_ns = self._replica.steady_ns()
        self.confirm_sent = self._owner.confirm
        self.sent_end = offset + len(data)
        return frames.chunk(
            epoch=self._replica.epoch,
            offset=offset,
            data=data,
            crc=zlib.crc32(data),
            confirm=self.confirm_sent,
            flushed=log.flushed_offset,
            ts=self.written_ns,
            # Only the end of the log is known to end a record without parsing.
            ends_on_boundary=self.sent_end == log_end,
        )

    def _beat(self) -> bytes:
        replica = self._replica
        self._beat_wanted = False
        self.written_ns = replica.steady_ns()
        self.confirm_sent = self._owner.confirm
        return frames.beat(
            epoch=replica.epoch,
            leader_end=replica.log.log_end,
            confirm=self.confirm_sent,
            ts=self.written_ns,
            in_sync=self._owner.is_in_sync(self.broker_id),
        )

    def _queue_offsets(self) -> None:
        assert self._meta_next is not None
        version, payload = self._meta_next
        self._meta_next = None
        piece_bytes = self._replica.config.ha_transfer_batch_size
        for piece in frames.meta_pieces(self._replica.epoch, version, payload, piece_bytes):
            self._queue.append(v1.LeaderFrame(meta=piece).SerializeToString())

    async def _receive(self) -> None:
        read = self._context.read
        while True:
            raw = await read()
            if raw is grpc.aio.EOF:
                raise SessionEndedError("the follower closed the stream")
            try:
                frame = v1.FollowerFrame.FromString(raw)
            except DecodeError:
                raise SessionEndedError("the follower sent bytes that are no frame") from None
            self._on_frame(frame)

    def _on_frame(self, frame: v1.FollowerFrame) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "ack":
            ack = frame.ack
            if not self.received_end <= ack.received_end <= self.sent_end:
                raise SessionEndedError(f"the follower claims to have received {ack.received_end}")
            self.received_end = ack.received_end
            self._owner.on_ack(self, ack.written_end, ack.flushed_end)
            if self.sent_end < self._replica.log.log_end:
                self._wake.set()  # the window may have been full
        elif kind == "meta":
            payload = self._joiner.add(frame.meta)
            if payload is not None:
                self._owner.hooks.offsets_apply(payload)
        elif kind == "nack":
            self._owner.on_nack(self, frame.nack)
            raise SessionEndedError(f"refused by the follower: {frame.nack.detail}")
        else:
            raise SessionEndedError(f"a frame of kind {kind} is not expected here")
