"""Follower side: one stream to the leader, reopened whenever it ends.

It drives `core/follower.py`: it connects, turns frames into events and executes the effects. Chunks
are appended on the event loop as they arrive; one acknowledgement covers all that arrived
meanwhile. A failed append (a full disk, an I/O error) ends the stream and is retried: the leader
keeps the bytes. Nothing here removes a byte of the log.
"""

import asyncio
import logging
import random
import zlib
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from ...proto import paths, v1
from ...store.format.errors import DiskFullError, OffsetOutOfRangeError, StoreError
from ..core import follower as core_module
from ..core import follower_events as events
from ..core.epochs import EpochHistory
from ..events import ReplicationEvents
from ..state.replica import Replica
from . import frames
from .channel import channel_options, is_stream_end, raise_status, read_to_end
from .follower_api import PASSING, FollowerContext, first_frames, hello, log_follower_refusal
from .probe import refuses

logger = logging.getLogger(__name__)

_STREAMING = (events.State.CATCHUP, events.State.IN_SYNC)
#: A NACK is the last frame; the leader has this long to read it and close the stream.
_COMPLAINT_TIMEOUT_S = 1.0


class FollowerSide:
    def __init__(
        self,
        replica: Replica,
        core: core_module.Follower,
        events: ReplicationEvents,
        owner: FollowerContext,
    ) -> None:
        self.replica = replica
        self.core = core
        self.events = events
        self.owner = owner
        self.stopped = False
        self.frame_ns = 0  #: time of the leader's last frame; 0: none
        self.address = replica.config.ha_master_address
        self._random = random.Random(replica.meta.replica_uuid)  # spreads reconnects of replicas
        self._task: asyncio.Task[None] | None = None
        self._attempt_task: asyncio.Task[bool] | None = None
        self._reconnect = asyncio.Event()  #: reconnect now: without the rest of the pause
        self._ack_wanted = asyncio.Event()
        self._data = b""  #: of the chunk that is being processed
        self._offset = 0
        self._echo_ts = 0
        self._reconnect_ms = 0
        self._refusals = 0  #: consecutive temporary refusals
        self._drop: str | None = None
        self._nack: bytes | None = None
        self._joiner = frames.MetaJoiner()
        self._append_error = ""
        self._leaving = self._frozen = False
        self.leader_refused = False  #: the leader's port refused a connection after the last frame

    # --- events from the engine -------------------------------------------------------------------

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        self.stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def set_leader(self, address: str) -> None:
        """Follow the leader at `host:port`; empty: none is known."""
        if self.core.state is events.State.CUTTING:
            address = ""  # stopped
        if address == self.address:
            return
        logger.info("ha.leader.address address=%s", address or "unknown")
        self.address = address
        self.leader_refused = False
        self._end_attempt("the leader's address changed")
        self._reconnect.set()

    def reconnect_now(self) -> None:
        """Reconnect without the rest of the pause: a leader was elected or announced."""
        self._reconnect.set()

    def promised(self, epoch: int) -> None:
        """Handle a promise that was raised outside of this stream and is durable."""
        self._run(self.core.on_event(events.Promised(epoch), 0))
        if self._drop is not None:
            self._end_attempt(self._drop)

    def leave(self) -> None:
        """Announce to the leader that this replica stops."""
        self._leaving = True
        if self.core.state in _STREAMING:
            self._ack_wanted.set()

    def freeze(self) -> None:
        """Append and acknowledge nothing more; only the confirm offset of frames counts.

        The leader does not count this replica any more. It waits for the confirm offset to reach
        its log end, so that everything is dispatched when the store closes.
        """
        self._frozen = True

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
                reconnect_s: float | None = (
                    self._reconnect_ms / 1000 * (0.75 + self._random.random() / 2)
                )
            else:
                reconnect_s = None
            try:
                async with asyncio.timeout(reconnect_s):
                    await self._reconnect.wait()
            except TimeoutError:
                continue
            self._reconnect.clear()

    async def _attempt_once(self) -> None:
        """Run one stream from connecting to its end; its own task, so that ending it does not stop
        the side."""
        self._drop = self._nack = None
        self._echo_ts = 0  # per stream: a former leader had another clock
        self.events.stream_began()
        log = self.replica.log
        history = EpochHistory(self.replica.history.entries)
        connecting = events.Connecting(log.log_end, log.flushed_offset, history)
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
            logger.info("ha.stream.dropped address=%s reason=%s", self.address, self._drop)
        self._run(self.core.on_event(events.StreamEnded(goodbye), self.replica.steady_ns()))
        if self._drop is None and not goodbye:
            await self._probe()

    async def _probe(self) -> None:
        """Check whether the leader's process is gone, and report a change to the controller."""
        address = self.address
        if not address or not self.replica.config.enable_controller_mode:
            return
        is_refused = await refuses(address)
        if address == self.address and is_refused is not self.leader_refused:
            self.leader_refused = is_refused
            logger.info("ha.leader.probed address=%s refused=%s", address, is_refused)
            self.owner.leader_refused()

    def _on_failure(self, error: Exception) -> None:
        denied = grpc.StatusCode.PERMISSION_DENIED
        if isinstance(error, grpc.RpcError) and error.code() is denied:
            event = events.Refused("TOKEN", error.details() or "")
            self._run(self.core.on_event(event, self.replica.steady_ns()))
        elif not is_stream_end(error):
            logger.error("ha.stream.failed address=%s", self.address, exc_info=error)

    def _end_attempt(self, reason: str) -> None:
        if self._attempt_task is not None:
            self._drop = self._drop or reason
            self._attempt_task.cancel()

    async def _attempt(self) -> bool:
        """Run the stream; returns whether the leader sent a goodbye."""
        config = self.replica.config
        options = channel_options(config.ha_window_size)
        links = self.replica.links
        async with links.channel(self.address, options) as channel:
            call = channel.stream_stream(paths.HA_REPLICATE)(metadata=links.metadata(self.address))
            try:
                return await self._run_stream(call)
            finally:
                call.cancel()

    async def _run_stream(self, call: Any) -> bool:
        await call.write(hello(self.replica, self.core))
        self._ack_wanted.clear()
        writer = asyncio.get_running_loop().create_task(self._write_acks(call))
        try:
            while self._drop is None:
                raw = await call.read()
                if raw is grpc.aio.EOF:
                    await raise_status(call)
                    return False
                if self._on_frame(raw):
                    return True
            if self._nack is not None:
                # The writer sends the NACK as its last frame; the leader then closes the stream.
                await asyncio.wait([writer], timeout=_COMPLAINT_TIMEOUT_S)
                await read_to_end(call.read, _COMPLAINT_TIMEOUT_S)
        finally:
            # Cancelling a write cancels the whole call: nothing more can be sent after this.
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
        return False

    async def _write_acks(self, call: Any) -> None:
        await self._ack_wanted.wait()
        if self._nack is None:
            # Before the first acknowledgement: a leader that counts this follower has its consumer
            # offsets.
            cuts = self.owner.unreported_cuts()
            for frame in first_frames(self.replica, self.core, self.events, cuts):
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
                    core.epoch,
                    core.log_end,
                    core.flushed_end,
                    core.received_end,
                    self._echo_ts,
                    leaving=self._leaving,
                )
            )

    # --- frames -----------------------------------------------------------------------------------

    def _on_frame(self, raw: bytes) -> bool:
        """Handle a frame; returns whether it was a goodbye."""
        self.frame_ns = now_ns = self.replica.steady_ns()
        self.leader_refused = False
        try:
            frame = v1.LeaderFrame.FromString(raw)
        except DecodeError:
            self._drop = "invalid frame"
            return False
        kind = frame.WhichOneof("frame")
        if kind == "chunk":
            chunk = frame.chunk
            if self._frozen:
                self._on_confirm(chunk.epoch, chunk.offset + len(chunk.data), chunk.confirm)
                return False
            self._data = data = chunk.data
            self._offset, self._echo_ts = chunk.offset, chunk.ts
            crc_ok = zlib.crc32(data) == chunk.crc32
            event = events.ChunkArrived(
                chunk.epoch, chunk.offset, crc_ok, chunk.confirm, chunk.epoch_start
            )
            self._run(self.core.on_event(event, now_ns))
            self._data = b""
        elif kind == "beat":
            heartbeat = frame.beat
            self._echo_ts = heartbeat.ts
            arrived = events.HeartbeatArrived(
                heartbeat.epoch, heartbeat.leader_end, heartbeat.confirm, heartbeat.in_sync
            )
            self._run(self.core.on_event(arrived, now_ns))
        elif kind == "meta":
            self._run(self.core.on_event(events.OtherFrame(), now_ns))
            self._on_meta(frame.meta)
        elif kind == "hello_reply":
            self._on_reply(frame.hello_reply, now_ns)
        elif kind == "bye":
            logger.info(
                "ha.leader.goodbye reason=%d hint=%s", frame.bye.reason, frame.bye.hint_leader
            )
            return True
        else:
            self._drop = f"a frame of kind {kind} is not expected here"
        return False

    def _on_confirm(self, epoch: int, leader_end: int, confirm: int) -> None:
        """Handle only the confirm offset of a frame."""
        arrived = events.HeartbeatArrived(epoch, leader_end, confirm, in_sync=False)
        self._run(self.core.on_event(arrived, self.frame_ns))

    def _on_meta(self, meta: v1.Meta) -> None:
        payload = self._joiner.add(meta)
        if payload is not None:
            self.owner.state_arrived(frames.kind_name(meta.kind), payload)

    def _on_reply(self, reply: v1.HelloReply, now_ns: int) -> None:
        core = self.core
        try:
            state = frames.state_of(reply.group_state)
        except DecodeError:
            self._drop = "invalid group state"
            return
        if state is not None:
            self.owner.state_seen(state)
        if not reply.accept:
            code, may_reseed = frames.reject_name(reply.reject_code), self.owner.may_reseed()
            self._run(core.on_event(events.Refused(code, reply.detail, may_reseed), now_ns))
            return
        verify = reply.verify
        answer: events.Event
        if reply.start_offset < core.log_end:
            answer = events.CutOrdered(
                reply.epoch,
                reply.start_offset,
                verify.start,
                verify.end,
                reply.confirm,
                reply.accept_loss,
            )
        else:
            answer = events.Accepted(
                reply.epoch, reply.start_offset, verify.start, verify.end, reply.confirm
            )
        effects = core.on_event(answer, now_ns)
        self._run(effects)
        if any(isinstance(effect, events.CompareTail) for effect in effects):
            self._compare(verify, now_ns)

    def _compare(self, verify: v1.RangeCheck, now_ns: int) -> None:
        """Compare the end of the log; an empty range is equal, because an empty log starts like the
        leader's."""
        log = self.replica.log
        try:
            equal = (
                verify.start == verify.end or log.log_crc(verify.start, verify.end) == verify.crc32
            )
        except OffsetOutOfRangeError:
            # Retention moved the log's start since the hello; the next hello has the new one.
            self._drop = "the bytes to compare were deleted by retention"
            return
        self._run(self.core.on_event(events.TailCompared(equal), now_ns))

    # --- effects ----------------------------------------------------------------------------------

    def _run(self, effects: list[events.Effect]) -> None:
        for effect in effects:
            match effect:
                case events.Append():
                    if self._drop is None:
                        self._append()
                case events.AssignEpoch():
                    self._assign(effect.epoch, effect.start)
                case events.SavePromise():
                    self.owner.promise(effect.epoch)
                case events.SuspectCleared():
                    self.owner.suspect_cleared()
                case events.Cut():
                    self._cut(effect)
                case events.Reseed():
                    self.owner.reseed(effect.reason)
                case events.SendAck():
                    if not self._frozen:
                        self._ack_wanted.set()
                case events.ConfirmMoved():
                    self.events.confirm_moved()
                case events.SendNack():
                    self.replica.counts[effect.reason.value.lower()] += 1
                    self._nack = frames.nack(
                        self.core.epoch, effect.reason.value, effect.offset, effect.detail
                    )
                    self._ack_wanted.set()
                case events.Drop():
                    self._drop = effect.reason
                    self.replica.counts["streams_dropped"] += 1
                case events.Reconnect():
                    self._reconnect_ms = self._reconnect_after(effect.after_ms)
                case events.StateMoved():
                    logger.info(
                        "ha.follower.state state=%s end=%d", effect.state.value, self.core.log_end
                    )
                case events.Stopped():
                    log_follower_refusal(effect.code, effect.detail, self.address)
                    if effect.code == "CUT_BELOW_CONFIRM":
                        self.owner.hold(effect.detail)
                case events.LeaderAlive():
                    logger.info(
                        "ha.leader.%s address=%s", "alive" if effect.alive else "lost", self.address
                    )
                    self.events.leader_changed(effect.alive)
                case events.CompareTail():
                    pass  # answered by `_on_reply`, which has the leader's checksum

    def _reconnect_after(self, after_ms: int) -> int:
        """Return the pause before the next attempt; short after one of the PASSING refusals."""
        if self.core.refusal_code not in PASSING:
            self._refusals = 0
            return after_ms
        config = self.replica.config
        reconnect_ms = min(config.ha_reconnect_max_ms, config.ha_reconnect_min_ms << self._refusals)
        self._refusals = min(self._refusals + 1, 16)
        return min(after_ms, reconnect_ms)

    def _cut(self, effect: events.Cut) -> None:
        self.owner.cut(
            effect.to,
            effect.epoch,
            f"the log diverges from the leader's at {effect.to}",
            f"the leader at {self.address}",
            accept_loss=effect.accept_loss,
        )

    def _assign(self, epoch: int, start: int) -> None:
        """Save the epoch before the first byte of it is acknowledged; after a failure no byte is
        appended."""
        try:
            self.replica.assign_epoch(epoch, start)
        except OSError as error:
            logger.error("ha.epoch.not_saved epoch=%d error=%s", epoch, error)
            self._drop = f"epoch {epoch} could not be saved: {error}"

    def _append(self) -> None:
        log = self.replica.log
        try:
            log_end = log.append_raw(self._offset, self._data)
        except (StoreError, OSError) as error:
            full = isinstance(error, DiskFullError)
            reason = events.NackReason.DISK_FULL if full else events.NackReason.DISK_ERROR
            if str(error) != self._append_error:  # it repeats with every attempt
                self._append_error = str(error)
                logger.warning("ha.append.failed offset=%d error=%s", self._offset, error)
            self._run(self.core.on_event(events.AppendFailed(reason, str(error)), 0))
            return
        self._run(self.core.on_event(events.Appended(log_end, log.received_end), 0))
        self.events.data_arrived()
