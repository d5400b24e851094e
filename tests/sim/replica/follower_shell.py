"""The follower's side of a simulated replica: drives `Follower`, as `ha/stream/follower.py`
does."""

import zlib
from typing import TYPE_CHECKING, Any

from cometmq.ha.core import (
    follower,
    hello,
    role_machine,
)
from cometmq.ha.core import follower_events as events
from cometmq.ha.core.group_state import GroupState, Ref
from cometmq.tests.sim.replica.stream import Stream
from cometmq.tests.sim.scheduler import MS
from cometmq.tests.sim.settings import DEAD_AFTER_NS, HA_BEAT_NS, SEGMENT_BYTES

if TYPE_CHECKING:
    from cometmq.tests.sim.replica.node import Node


class FollowerShell:
    def __init__(self, node: "Node", confirm: int) -> None:
        self.node = node
        limits = follower.Limits(
            dead_after_ns=DEAD_AFTER_NS,
            ack_quiet_ns=HA_BEAT_NS // 2,
            reconnect_min_ms=20,
            reconnect_max_ms=200,
            refused_reconnect_ms=400,
        )
        self.core = node.world.parts.follower(
            limits,
            node.log_end,
            node.received_end,
            node.flushed_end,
            confirm,
            history=node.world.parts.history(node.history.entries),
            promised=node.promised,
            suspect=node.suspect,
            is_sync=node.settings.is_sync,
        )
        self.leader: Ref | None = None
        self.stream: Stream | None = None
        self.echo_ns = 0
        self.heard_ns = 0  #: last frame of a leader that accepted this follower
        self._attempt = 0
        self._chunk: tuple[int, bytes] = (0, b"")
        self._dropped = False
        self.refused = False  #: the leader's port refused the last connection

    # --- leader -----------------------------------------------------------------------------------

    def set_leader(self, leader: Ref | None) -> None:
        if leader == self.leader:
            return
        self.leader = leader
        self.refused = False
        self._end_stream(goodbye=False)
        self._attempt += 1
        if leader is not None:
            self.node.handover.over()
            self._dial(self._attempt)

    def _dial(self, attempt: int) -> None:
        node = self.node
        if attempt != self._attempt or self.leader is None or self.stream is not None:
            return
        if node.follower is not self or node.leader is not None:
            return
        self.echo_ns = 0
        history = node.world.parts.history(node.history.entries)
        self.feed(events.Connecting(node.log_end, node.flushed_end, history))
        self.stream = node.world.connect(node, self.leader.broker_id)
        core = self.core
        facts = hello.FollowerFacts(
            cluster="c",
            group="g",
            broker_id=node.broker_id,
            replica_uuid=node.uuid,
            incarnation=node.ref.incarnation,
            promised_epoch=node.promised,
            last_epoch=node.history.last_epoch,
            segment_size=SEGMENT_BYTES,
            log_start=0,
            log_end=core.log_end,
            confirm=core.confirm,
            epochs=node.world.parts.history(node.history.entries),
            suspect=node.suspect,
        )
        if (node.name, self.stream.leader.name) in node.world.network.rejects:
            node.later(MS, self.frame, self.stream, "reset", ())
            return
        self.stream.to_leader("hello", facts, core.flushed_end)

    def _end_stream(self, *, goodbye: bool) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.end_by_follower()
            if stream in self.node.streams:
                self.node.streams.remove(stream)
            self.feed(events.StreamEnded(goodbye))

    # --- events -----------------------------------------------------------------------------------

    def tick(self) -> None:
        self.feed(events.Tick())

    def flushed(self) -> None:
        self.feed(events.Flushed(self.node.flushed_end))

    def frame(self, stream: Stream, kind: str, content: tuple[Any, ...]) -> None:
        if stream is not self.stream:
            return
        if kind != "reset":
            self.refused = False
        if kind == "ended":
            self._end_stream(goodbye=content[0])
        elif kind == "reset":
            self._reset()
        elif kind == "refused":
            code, detail, state = content
            self._adopt_state(state)
            self.feed(events.Refused(code, detail, self._may_reseed()))
        elif kind == "accepted":
            self._accepted(*content)
        elif kind == "cut":
            self._cut_ordered(*content)
        elif kind == "beat":
            epoch, leader_end, confirm, counted, stamp = content
            self.echo_ns = stamp
            self._leader_age()
            self.feed(events.HeartbeatArrived(epoch, leader_end, confirm, counted))
        elif kind == "chunk":
            epoch, start, offset, data, crc, confirm, stamp = content
            self.echo_ns = stamp
            self._leader_age()
            self._chunk = (offset, data)
            self.feed(events.ChunkArrived(epoch, offset, zlib.crc32(data) == crc, confirm, start))

    def _reset(self) -> None:
        """Handle a reset by the leader's host; that of a new connection is a refusal."""
        if self.core.state is events.State.HELLO and not self.refused:
            self.refused = True
            self.node.link.reconnect_now()
        self._end_stream(goodbye=False)

    def _adopt_state(self, state: GroupState | None) -> None:
        if state is not None:
            self.node.feed(role_machine.StateSeen(state))

    def _leader_age(self) -> None:
        if self.stream is not None:
            self.heard_ns = self.node.now()
            self.node.feed(role_machine.LeaderHeard(self.core.epoch, self.heard_ns))

    def _may_reseed(self) -> bool:
        state, mine = self.node.machine.state, self.node.broker_id
        if state is None:
            return False
        return state.in_sync_ref(mine) is None and state.eligible_ref(mine) is None

    def _accepted(
        self,
        epoch: int,
        start: int,
        verify: tuple[int, int, int],
        confirm: int,
        state: GroupState | None,
    ) -> None:
        self._adopt_state(state)
        if self.stream is None:
            return
        self._answered(events.Accepted(epoch, start, verify[0], verify[1], confirm), verify)

    def _cut_ordered(
        self,
        epoch: int,
        cut: int,
        verify: tuple[int, int, int],
        confirm: int,
        state: GroupState | None,
    ) -> None:
        self._adopt_state(state)
        if self.stream is None:
            return
        accept_loss = state is not None and state.accept_loss
        self._answered(
            events.CutOrdered(epoch, cut, verify[0], verify[1], confirm, accept_loss), verify
        )

    def _answered(self, event: events.Event, verify: tuple[int, int, int]) -> None:
        effects = self.feed(event)
        if any(isinstance(effect, events.CompareTail) for effect in effects):
            self._leader_age()
            crc = zlib.crc32(self.node.disk.live[verify[0] : verify[1]])
            self.feed(events.TailCompared(crc == verify[2]))

    def feed(self, event: events.Event) -> list[events.Effect]:
        node = self.node
        if node.follower is not self:
            return []
        effects = self.core.on_event(event, node.now())
        self._dropped = False
        dropped = False
        for effect in effects:
            node.step()
            match effect:
                case events.Append():
                    self._append()
                case events.SendAck():
                    self._ack()
                case events.AssignEpoch():
                    node.assign(effect.epoch, effect.start)
                case events.SavePromise():
                    node.save_promise(effect.epoch)
                    node.feed(role_machine.HigherEpochSeen(effect.epoch))
                case events.SuspectCleared():
                    node.world.oracle.clears_suspect(node)
                    node.set_suspect(False)
                    node.link.reconnect_now()
                case events.Cut():
                    node.cut(effect.to, effect.epoch, effect.accept_loss)
                    return effects
                case events.Reseed():
                    node.reseed(effect.reason)
                    return effects
                case events.SendNack():
                    if self.stream is not None:
                        self.stream.to_leader("nack")
                case events.Drop():
                    node.say("drops the stream: %s", effect.reason)
                    dropped = True
                case events.Reconnect():
                    self._attempt += 1
                    node.later(effect.after_ms * 1_000_000, self._dial, self._attempt)
                case events.ConfirmMoved():
                    node.world.oracle.follower_confirm_moved(node, effect.confirm)
                case events.Stopped():
                    node.say("is stopped: %s %s", effect.code, effect.detail)
                    if effect.code == "CUT_BELOW_CONFIRM":
                        node.feed(role_machine.HoldNeeded(effect.detail))
                case _:
                    pass
        if dropped:
            self._end_stream(goodbye=False)
        return effects

    def _append(self) -> None:
        node = self.node
        offset, data = self._chunk
        node.world.oracle.appends(node, self, offset)
        node.append_raw(offset, data)
        node.flush_soon()
        self.feed(events.Appended(node.log_end, node.received_end))

    def _ack(self) -> None:
        core = self.core
        if self.stream is not None:
            self.node.world.oracle.acks(self.node, self)
            self.stream.to_leader(
                "ack",
                (core.log_end, core.flushed_end, core.received_end),
                self.echo_ns,
                self.node.departure.leaving,
            )
