"""Sender of one stream from the leader to a follower, and the receiver of its acknowledgements.

The sender sleeps until `wake`: the log grew, an acknowledgement opened the window, or a heartbeat
is due. Appends of one loop turn travel together, and while a frame is in transmission the next ones
form one chunk; nothing is delayed on purpose. At most `haWindowSize` bytes that the follower has
not received are in flight, so that one large message cannot block it.
"""

import asyncio
import zlib
from collections import deque
from typing import Protocol

from google.protobuf.message import DecodeError

from ...proto import v1
from ..core.epochs import EpochStart
from ..core.replicated_log import ReplicatedLog
from ..state.replica import Replica
from . import frames
from .incoming import IncomingStream, SessionEndedError

#: Larger than any offset.
_NO_BORDER = 1 << 62


class SenderContext(Protocol):
    """The part of the leader side that sessions call."""

    replica: Replica

    @property
    def confirm(self) -> int: ...
    def is_in_sync(self, broker_id: int) -> bool: ...
    def on_ack(
        self,
        session: "Session",
        written_end: int,
        flushed_end: int,
        echo_ns: int,
        *,
        leaving: bool,
    ) -> None: ...
    def on_nack(self, session: "Session", nack: v1.Nack) -> None: ...
    def on_cut_done(self, session: "Session", done: v1.CutDone) -> None: ...
    def on_meta(self, kind: int, payload: bytes) -> None: ...


class Session:
    __slots__ = (
        "_goodbye",
        "_heartbeat_due",
        "_joiner",
        "_label",
        "_label_end",
        "_meta_next",
        "_owner",
        "_queue",
        "_replica",
        "_stream",
        "_task",
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
        self,
        owner: SenderContext,
        stream: IncomingStream,
        number: int,
        broker_id: int,
        start: int,
    ) -> None:
        """Made in the task that calls `run`."""
        self.number = number
        self.broker_id = broker_id
        self.sent_end = start  #: start of the next chunk
        #: end of the bytes that the follower received, including partial records
        self.received_end = start
        self.confirm_sent = -1
        self.written_ns = owner.replica.steady_ns()
        self.reason = "the follower closed the stream"
        self._owner = owner
        self._replica = owner.replica
        self._stream = stream
        self._queue: deque[bytes] = deque()  #: pieces of at most one payload, and one goodbye
        self._meta_next: dict[str, tuple[int, bytes]] = {}
        self._heartbeat_due = True
        self._goodbye: tuple[bytes, bool] | None = None
        self._label = EpochStart(0, 0)
        self._label_end = -1  #: chunks below it have the epoch `_label`
        self._joiner = frames.MetaJoiner()
        self._wake = asyncio.Event()
        self._task = asyncio.current_task()

    # --- calls of the leader's side ---------------------------------------------------------------

    def wake(self) -> None:
        self._wake.set()

    def request_heartbeat(self) -> None:
        self._heartbeat_due = True
        self._wake.set()

    def send_meta(self, kind: str, version: int, payload: bytes) -> None:
        """Queue the payload to send next; unsent pieces of the same kind are replaced."""
        self._meta_next[kind] = (version, payload)
        self._wake.set()

    def send_goodbye(self, frame: bytes, *, at_once: bool = False) -> None:
        """Queue a goodbye. `at_once`: no more of the log is sent before it."""
        self._goodbye = (frame, at_once)
        self._wake.set()

    def close(self, reason: str) -> None:
        self.reason = reason
        if self._task is not None:
            self._task.cancel()

    # --- the stream -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send until one side ends the stream; `reason` has the cause. Other errors are raised."""
        try:
            await self._send()
        except SessionEndedError as end:
            self.reason = str(end)

    async def _send(self) -> None:
        write = self._stream.write
        while True:
            goodbye = self._goodbye
            frame = None if goodbye is not None and goodbye[1] else self._next_frame()
            if frame is None:
                if goodbye is not None:
                    await write(goodbye[0])
                    raise SessionEndedError("this replica sent a goodbye")
                self._wake.clear()
                await self._wake.wait()
                continue
            await write(frame)

    def _next_frame(self) -> bytes | None:
        if self._queue:
            return self._queue.popleft()
        if self._meta_next:
            self._queue_meta()
            return self._queue.popleft()
        if self._heartbeat_due:
            return self._heartbeat()
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
        if offset >= self._label_end:
            self._find_label(offset)
        data = log.read_log(offset, min(chunk_bytes, self._label_end - offset))
        assert data, (offset, log_end)
        self.written_ns = self._replica.steady_ns()
        self.confirm_sent = self._owner.confirm
        self.sent_end = offset + len(data)
        return frames.chunk(
            epoch=self._label.epoch,
            epoch_start=self._label.start,
            offset=offset,
            data=data,
            crc=zlib.crc32(data),
            confirm=self.confirm_sent,
            flushed=log.flushed_offset,
            ts=self.written_ns,
            # Only the end of the log is known to be a record's end without parsing.
            ends_on_boundary=self.sent_end == log_end,
        )

    def _find_label(self, offset: int) -> None:
        """Return the next chunk, which never crosses the start of an epoch and carries its
        label."""
        border = self._replica.history.next_start(offset)
        self._label = self._replica.label_of(offset)
        self._label_end = _NO_BORDER if border is None else border

    def _heartbeat(self) -> bytes:
        replica = self._replica
        self._heartbeat_due = False
        self.written_ns = replica.steady_ns()
        self.confirm_sent = self._owner.confirm
        return frames.heartbeat(
            epoch=replica.epoch,
            leader_end=replica.log.log_end,
            confirm=self.confirm_sent,
            ts=self.written_ns,
            in_sync=self._owner.is_in_sync(self.broker_id),
        )

    def _queue_meta(self) -> None:
        kind = next(iter(self._meta_next))
        version, payload = self._meta_next.pop(kind)
        piece_bytes = self._replica.config.ha_transfer_batch_size
        epoch = self._replica.epoch
        for piece in frames.meta_pieces(kind, epoch, version, payload, piece_bytes):
            self._queue.append(v1.LeaderFrame(meta=piece).SerializeToString())

    def receive(self, raw: bytes) -> None:
        """Process a frame of the follower; an invalid one ends the stream."""
        try:
            self._on_frame(v1.FollowerFrame.FromString(raw))
        except DecodeError:
            self.close("the follower sent an invalid frame")
        except SessionEndedError as end:
            self.close(str(end))

    def _on_frame(self, frame: v1.FollowerFrame) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "ack":
            ack = frame.ack
            if not self.received_end <= ack.received_end <= self.sent_end:
                raise SessionEndedError(f"the follower claims to have received {ack.received_end}")
            self.received_end = ack.received_end
            self._owner.on_ack(
                self, ack.written_end, ack.flushed_end, ack.echo_ts, leaving=ack.leaving
            )
            if self.sent_end < self._replica.log.log_end:
                self._wake.set()  # the window may have been full
        elif kind == "meta":
            payload = self._joiner.add(frame.meta)
            if payload is not None:
                self._owner.on_meta(frame.meta.kind, payload)
        elif kind == "cut_done":
            self._owner.on_cut_done(self, frame.cut_done)
        elif kind == "nack":
            self._owner.on_nack(self, frame.nack)
            raise SessionEndedError(f"refused by the follower: {frame.nack.detail}")
        else:
            raise SessionEndedError(f"a frame of kind {kind} is not expected here")
