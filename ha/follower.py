"""The follower's side: one stream to the leader, opened again whenever it ends.

The only driver of `core/follower.py`: it dials, turns frames into events and executes the effects.
Chunks are appended on the loop as they arrive; one acknowledgement answers all that arrived in the
meantime. What the store refuses (a full disk, an I/O error) ends the stream and is tried again: the
leader keeps the bytes. Nothing here ever removes a byte of the log.
"""

import asyncio
import logging
import random
import zlib
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from ..proto import paths, v1
from ..store.errors import DiskFullError, OffsetOutOfRangeError, StoreError
from . import frames
from .channel import channel_options, is_stream_end
from .core import follower as core_module
from .core import follower_events as events
from .hooks import Hooks
from .members import ADVICE, ADVICE_OTHERWISE
from .replica import Replica
from .token import token_metadata

_logger = logging.getLogger(__name__)

#: A complaint is our last frame; the leader has this long to read it and close the stream.
_COMPLAINT_TIMEOUT_S = 1.0


class FollowerSide:
    def __init__(self, replica: Replica, core: core_module.Follower, hooks: Hooks) -> None:
        self.replica = replica
        self.core = core
        self.hooks = hooks
        self.address = replica.config.ha_master_address
        self._random = random.Random(replica.meta.replica_uuid)  # spreads reconnects of replicas
        self._task: asyncio.Task[None] | None = None
        self._attempt_task: asyncio.Task[bool] | None = None
        self._hurry = asyncio.Event()  #: the address changed: do not wait any longer
        self._ack_wanted = asyncio.Event()
        self._data = b""  #: of the chunk that is being decided on
        self._offset = 0
        self._echo_ts = 0
        self._pause_ms = 0
        self._drop: str | None = None
        self._nack: bytes | None = None
        self._joiner = frames.MetaJoiner()
        self._append_error = ""

    # --- told by the engine -----------------------------------------------------------------------

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def set_leader(self, address: str) -> None:
        """Follow the leader at `host:port`; empty: none is known."""
        if address == self.address:
            return
        _logger.info("ha.leader.address address=%s", address or "unknown")
        self.address = address
        self._end_attempt("the leader's address changed")
        self._hurry.set()

    def flushed(self) -> None:
        self._run(self.core.on_event(events.Flushed(self.replica.log.flushed_offset), 0))

    def tick(self, now_ns: int) -> None:
        self._run(self.core.on_event(events.Tick(), now_ns))
        if self._drop is not None:
            self._end_attempt(self._drop)

    # --- connecting -------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            if self.address:
                await self._attempt_once()
                pause_s: float | None = self._pause_ms / 1000 * (0.75 + self._random.random() / 2)
            else:
                pause_s = None
            try:
                async with asyncio.timeout(pause_s):
                    await self._hurry.wait()
            except TimeoutError:
                continue
            self._hurry.clear()

    async def _attempt_once(self) -> None:
        """One stream from dialling to its end. An attempt is a task of its own, so that ending it and
        stopping the follower stay apart."""
        self._drop = self._nack = None
        log = self.replica.log
        connecting = events.Connecting(log.log_end, log.flushed_offset)
        self._run(self.core.on_event(connecting, self.replica.steady_ns()))
        self._attempt_task = asyncio.get_running_loop().create_task(self._attempt())
        goodbye = False
        try:
            await asyncio.wait([self._attempt_task])
        finally:
            self._attempt_task.cancel()
            outcome = (await asyncio.gather(self._attempt_task, return_exceptions=True))[0]
            self._attempt_task = None
        if isinstance(outcome, bool):
            goodbye = outcome
        elif isinstance(outcome, Exception):
            self._on_failure(outcome)
        if self._drop is not None:
            _logger.info("ha.stream.dropped address=%s reason=%s", self.address, self._drop)
        self._run(self.core.on_event(events.StreamEnded(goodbye), self.replica.steady_ns()))

    def _on_failure(self, error: Exception) -> None:
        denied = grpc.StatusCode.PERMISSION_DENIED
        if isinstance(error, grpc.RpcError) and error.code() is denied:
            event = events.Refused("TOKEN", error.details() or "")
            self._run(self.core.on_event(event, self.replica.steady_ns()))
        elif not is_stream_end(error):
            _logger.error("ha.stream.failed address=%s", self.address, exc_info=error)

    def _end_attempt(self, reason: str) -> None:
        if self._attempt_task is not None:
            self._drop = self._drop or reason
            self._attempt_task.cancel()

    async def _attempt(self) -> bool:
        """Returns whether the leader said goodbye."""
        config = self.replica.config
        options = channel_options(config.ha_window_size)
        async with grpc.aio.insecure_channel(self.address, options=options) as channel:
            call = channel.stream_stream(paths.HA_REPLICATE)(
                metadata=token_metadata(config.cluster_token)
            )
            try:
                return await self._converse(call)
            finally:
                call.cancel()

    async def _converse(self, call: Any) -> bool:
        await call.write(self._hello())
        self._ack_wanted.clear()
        writer = asyncio.get_running_loop().create_task(self._write_acks(call))
        try:
            while self._drop is None:
                raw = await call.read()
                if raw is grpc.aio.EOF:
                    await self._raise_status(call)
                    return False
                if self._on_frame(raw):
                    return True
            if self._nack is not None:
                await self._finish_complaint(call, writer)
        finally:
            # Cancelling a write cancels the whole call: nothing more can be said after this.
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
        return False

    async def _raise_status(self, call: Any) -> None:
        code = await call.code()
        if code is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(
                code,
                await call.initial_metadata(),
                await call.trailing_metadata(),
                details=await call.details(),
            )

    async def _write_acks(self, call: Any) -> None:
        await self._ack_wanted.wait()
        if self._nack is None and self.hooks.offsets_snapshot is not None:
            # Before the first acknowledgement: who counts us in sync has what we consumed alone.
            for frame in self._offset_frames(self.hooks.offsets_snapshot()):
                await call.write(frame)
        while True:
            await self._ack_wanted.wait()
            self._ack_wanted.clear()
            if self._nack is not None:
                await call.write(self._nack)
                await call.done_writing()
                return
            core = self.core
            await call.write(
                frames.ack(
                    core.epoch, core.log_end, core.flushed_end, core.received_end, self._echo_ts
                )
            )

    def _offset_frames(self, payload: bytes) -> list[bytes]:
        config = self.replica.config
        pieces = frames.meta_pieces(self.core.epoch, 1, payload, config.ha_transfer_batch_size)
        return [v1.FollowerFrame(meta=piece).SerializeToString() for piece in pieces]

    async def _finish_complaint(self, call: Any, writer: "asyncio.Task[None]") -> None:
        """The writer sends the complaint as its last frame; the leader then closes the stream."""
        try:
            async with asyncio.timeout(_COMPLAINT_TIMEOUT_S):
                await asyncio.wait([writer])
                while await call.read() is not grpc.aio.EOF:
                    pass
        except TimeoutError:
            return  # the leader will notice the reset

    def _hello(self) -> bytes:
        replica, core = self.replica, self.core
        frame = v1.Hello(
            cluster_id=replica.identity.cluster,
            group=replica.identity.group,
            broker_id=replica.identity.broker_id,
            replica_uuid=replica.meta.replica_uuid,
            incarnation=replica.meta.incarnation,
            promised_epoch=replica.meta.promised_epoch,
            epochs=[v1.EpochStartPoint(epoch=core.epoch, start=0)],
            log_start=replica.log.log_start,
            log_end=core.log_end,
            flushed_end=core.flushed_end,
            confirm=core.confirm,
            segment_size=replica.segment_size,
            want_from=v1.OLDEST if core.log_end == 0 else v1.CONTINUE,
            max_chunk=replica.config.ha_transfer_batch_size,
        )
        return v1.FollowerFrame(hello=frame).SerializeToString()

    # --- frames -----------------------------------------------------------------------------------

    def _on_frame(self, raw: bytes) -> bool:
        """Returns whether it was a goodbye."""
        now_ns = self.replica.steady_ns()
        try:
            frame = v1.LeaderFrame.FromString(raw)
        except DecodeError:
            self._drop = "bytes that are no frame"
            return False
        kind = frame.WhichOneof("frame")
        if kind == "chunk":
            chunk = frame.chunk
            self._data = data = chunk.data
            self._offset = chunk.offset
            self._echo_ts = chunk.ts
            crc_ok = zlib.crc32(data) == chunk.crc32
            event = events.ChunkArrived(chunk.epoch, chunk.offset, crc_ok, chunk.confirm)
            self._run(self.core.on_event(event, now_ns))
            self._data = b""
        elif kind == "beat":
            beat = frame.beat
            self._echo_ts = beat.ts
            arrived = events.BeatArrived(beat.epoch, beat.leader_end, beat.confirm, beat.in_sync)
            self._run(self.core.on_event(arrived, now_ns))
        elif kind == "meta":
            self._run(self.core.on_event(events.OtherFrame(), now_ns))
            self._on_meta(frame.meta)
        elif kind == "hello_reply":
            self._on_reply(frame.hello_reply, now_ns)
        elif kind == "bye":
            _logger.info("ha.leader.goodbye reason=%s", v1.ByeReason.Name(frame.bye.reason))
            return True
        else:
            self._drop = f"a frame of kind {kind} is not expected here"
        return False

    def _on_meta(self, meta: v1.Meta) -> None:
        if meta.kind != v1.OFFSETS:
            return  # of a later form of the protocol; the log alone is complete
        payload = self._joiner.add(meta)
        if payload is not None:
            self.hooks.offsets_apply(payload)

    def _on_reply(self, reply: v1.HelloReply, now_ns: int) -> None:
        if not reply.accept:
            refused = events.Refused(v1.RejectCode.Name(reply.reject_code), reply.detail)
            self._run(self.core.on_event(refused, now_ns))
            return
        verify = reply.verify
        accepted = events.Accepted(
            reply.epoch, reply.start_offset, verify.start, verify.end, reply.confirm
        )
        effects = self.core.on_event(accepted, now_ns)
        self._run(effects)
        if any(isinstance(effect, events.CompareTail) for effect in effects):
            self._compare(verify, now_ns)

    def _compare(self, verify: v1.RangeCheck, now_ns: int) -> None:
        """Nothing to compare is equal: an empty log begins where the leader's does."""
        log = self.replica.log
        try:
            equal = (
                verify.start == verify.end or log.log_crc(verify.start, verify.end) == verify.crc32
            )
        except OffsetOutOfRangeError:
            # Retention moved the log's start since the hello, which the next one will say.
            self._drop = "the bytes to compare have expired here"
            return
        self._run(self.core.on_event(events.TailCompared(equal), now_ns))

    # --- effects ----------------------------------------------------------------------------------

    def _run(self, effects: list[events.Effect]) -> None:
        for effect in effects:
            match effect:
                case events.Append():
                    self._append()
                case events.SendAck():
                    self._ack_wanted.set()
                case events.ConfirmMoved():
                    self.hooks.on_confirm()
                case events.SendNack():
                    self._nack = frames.nack(
                        self.core.epoch, effect.complaint.value, effect.offset, effect.detail
                    )
                    self._ack_wanted.set()
                case events.Drop():
                    self._drop = effect.reason
                case events.Retry():
                    self._pause_ms = effect.after_ms
                case events.StateMoved():
                    _logger.info(
                        "ha.follower.state state=%s end=%d", effect.state.value, self.core.log_end
                    )
                case events.Stopped():
                    advice = ADVICE.get(effect.code, ADVICE_OTHERWISE).format(where=self.address)
                    _logger.error(
                        "ha.follower.stopped code=%s detail=%s. %s",
                        effect.code,
                        effect.detail,
                        advice,
                    )
                case events.LeaderAlive():
                    _logger.info(
                        "ha.leader.%s address=%s", "alive" if effect.alive else "lost", self.address
                    )
                    self.hooks.on_leader_change(effect.alive)
                case events.CompareTail():
                    pass  # answered by `_on_reply`, which has the leader's checksum

    def _append(self) -> None:
        log = self.replica.log
        try:
            log_end = log.append_raw(self._offset, self._data)
        except (StoreError, OSError) as error:
            full = isinstance(error, DiskFullError)
            complaint = events.Complaint.DISK_FULL if full else events.Complaint.DISK_ERROR
            if str(error) != self._append_error:  # it comes back with every attempt
                self._append_error = str(error)
                _logger.warning("ha.append.failed offset=%d error=%s", self._offset, error)
            self._run(self.core.on_event(events.AppendFailed(complaint, str(error)), 0))
            return
        self._run(self.core.on_event(events.Appended(log_end, log.received_end), 0))
        self.hooks.on_data()
