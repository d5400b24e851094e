"""Follower: the state machine of the receiving side of one replication stream (pure).

States and their moves (`MOVES`):

    IDLE      no leader is known, or the stream broke and the next attempt is scheduled
    HELLO     a stream is open and the hello is sent
    CHECK     accepted; the end of the log is compared with the leader's checksum
    CATCHUP   chunks arrive
    IN_SYNC   the leader counts this follower as in sync
    CUTTING   the diverged tail is cut before the next start, never by a running replica
    REFUSED   the leader refused, for example WRONG_GROUP; retried slowly
    DIVERGED  the log is not a prefix of the leader's, and the point of divergence is unknown.
              Nothing is cut; retried slowly
    HOLD      the cut would remove confirmed bytes: an operator decides (I7)

Guarantees: a chunk is appended only at the received end, with a matching checksum, from a leader
not below the promised epoch, and labelled so that the history continues. Nothing is acknowledged
before the end of the log was compared and the promise is durable. The confirm offset never
decreases and never exceeds the own log end. The suspect mark is cleared only when the log holds
everything that a leader with a verified log has confirmed (I11).

Without a `history` (an older protocol) chunks carry the leader's epoch and nothing is ever cut.
"""

from msgspec import Struct

from .epochs import EpochHistory, EpochStart
from .follower_events import (
    MOVES,
    Accepted,
    Append,
    Appended,
    AppendFailed,
    AssignEpoch,
    ChunkArrived,
    CompareTail,
    ConfirmMoved,
    Connecting,
    Cut,
    CutOrdered,
    Drop,
    Effect,
    Event,
    Flushed,
    HeartbeatArrived,
    LeaderAlive,
    NackReason,
    OtherFrame,
    Promised,
    Reconnect,
    Refused,
    Reseed,
    SavePromise,
    SendAck,
    SendNack,
    State,
    StateMoved,
    Stopped,
    StreamEnded,
    SuspectCleared,
    TailCompared,
    Tick,
)

_STREAMING = (State.CATCHUP, State.IN_SYNC)
_OPEN = (State.HELLO, State.CHECK, State.CATCHUP, State.IN_SYNC)
_STOPPED = (State.REFUSED, State.DIVERGED, State.HOLD)
#: Refusal by a replica that does not lead, or not yet: the follower reconnects as after a broken
#: stream, not after `refused_reconnect_ms`.
NOT_LEADER = "NOT_LEADER"
#: States by refusal code; any other code leads to REFUSED.
_REFUSED_AS = {"DIVERGED": State.DIVERGED, "CUT_BELOW_CONFIRM": State.HOLD}


class Limits(Struct, frozen=True):
    dead_after_ns: int  #: no frame for this long: the stream is dropped
    ack_quiet_ns: int  #: a heartbeat is acknowledged if no acknowledgement was sent for this long
    reconnect_min_ms: int
    reconnect_max_ms: int
    refused_reconnect_ms: int


_APPEND = Append()
_SEND_ACK = SendAck()
#: Ticks further apart than this mean that this process was suspended: the silence does not count.
TICK_GAP_MAX_NS = 500_000_000


class Follower(Struct):
    limits: Limits
    log_end: int
    received_end: int
    flushed_end: int  #: <= log_end
    confirm: int = 0  #: start value: the confirm offset of an earlier incarnation
    epoch: int = 1  #: newest epoch of a leader that was followed
    history: EpochHistory | None = None  #: of the own log
    promised: int = 0  #: durable: frames of lower epochs are refused
    suspect: bool = False  #: durable: acknowledged bytes may be lost
    is_sync: bool = True  #: False: the confirm offset limits reads and does not forbid cuts
    state: State = State.IDLE
    refusal: str = ""  #: reason of REFUSED or DIVERGED
    refusal_code: str = ""
    leader_alive: bool = False
    leader_end: int = 0
    leader_confirm: int = 0
    failures: int = 0  #: consecutive attempts without progress
    append_failed: bool = False  #: the store refused the last chunk: retried slowly
    heard_ns: int = 0  #: time of the leader's last frame
    acked_ns: int = 0  #: time of the last acknowledgement
    tick_ns: int = 0  #: time of the last tick; 0: none yet
    cut: Cut | None = None  #: CHECK, CUTTING: the cut that the leader ordered
    label: int = 0  #: epoch of the last byte

    def __post_init__(self) -> None:
        self.flushed_end = min(self.flushed_end, self.log_end)
        self.confirm = min(self.confirm, self.log_end)
        self.label = 0 if self.history is None else self.history.last_epoch

    def on_event(self, event: Event, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case ChunkArrived():
                self._on_chunk(event, now_ns, effects)
            case Appended():
                self._on_appended(event, effects)
            case Flushed():
                self._on_flushed(event, effects)
            case HeartbeatArrived():
                self._on_heartbeat(event, now_ns, effects)
            case OtherFrame():
                self._leader_age(now_ns, effects)
            case Connecting():
                self._on_connecting(event, now_ns, effects)
            case Accepted():
                self._on_accepted(event, now_ns, effects)
            case CutOrdered():
                self._on_cut(event, now_ns, effects)
            case Promised():
                self._on_promised(event, effects)
            case Refused():
                self._on_refused(event, now_ns, effects)
            case TailCompared():
                self._on_compared(event, effects)
            case AppendFailed():
                self.append_failed = True
                self._send_nack(event.reason, event.detail, effects)
            case StreamEnded():
                self._on_ended(event, effects)
            case Tick():
                self._on_tick(now_ns, effects)
        return effects

    def _on_connecting(self, event: Connecting, now_ns: int, effects: list[Effect]) -> None:
        assert event.log_end >= self.log_end, (event.log_end, self.log_end)
        self.log_end = event.log_end
        self.received_end = max(self.received_end, event.log_end)
        self.flushed_end = max(self.flushed_end, min(event.flushed_end, event.log_end))
        self.heard_ns = now_ns  # the timeout for the answer to the hello starts here
        self.history = event.history or self.history
        if self.history is not None:  # an own epoch without data labels nothing
            self.label = self.history.last_written(self.log_end)
        self._move(State.HELLO, effects)

    def _on_accepted(self, event: Accepted, now_ns: int, effects: list[Effect]) -> None:
        if not self._is_answer(event, max(self.log_end, event.start_offset), effects):
            return
        # Only an empty follower may start elsewhere: at the oldest byte of the leader.
        if self.log_end not in (0, event.start_offset):
            effects.append(
                Drop(
                    f"the leader's start offset {event.start_offset} is not the log end "
                    f"{self.log_end}"
                )
            )
            return
        # The leader resends a partly received record.
        self.received_end = event.start_offset
        self.cut = None
        self._check(event, now_ns, effects)

    def _on_cut(self, event: CutOrdered, now_ns: int, effects: list[Effect]) -> None:
        if not self._is_answer(event, event.cut, effects):
            return
        if self.history is None or not 0 <= event.cut < self.log_end:
            effects.append(
                Drop(f"the leader's cut {event.cut} is outside the log that ends at {self.log_end}")
            )
        elif event.cut < self.confirm and self.is_sync and not event.accept_loss:
            detail = f"the leader's cut {event.cut} is below the confirm offset {self.confirm}"
            self._stop(State.HOLD, "CUT_BELOW_CONFIRM", detail, effects)
        else:
            self.cut = Cut(event.cut, event.epoch, event.accept_loss)
            self._check(event, now_ns, effects)

    def _is_answer(
        self, event: Accepted | CutOrdered, verify_max: int, effects: list[Effect]
    ) -> bool:
        oldest = max(self.epoch, self.promised)
        if self.state is not State.HELLO:
            effects.append(Drop("an answer without a hello"))
        elif event.epoch < oldest:
            effects.append(Drop(f"the leader's epoch {event.epoch} is older than {oldest}"))
        elif not 0 <= event.verify_from <= event.verify_to <= verify_max:
            effects.append(Drop("the range to compare is outside the log"))
        else:
            return True
        return False

    def _check(self, event: Accepted | CutOrdered, now_ns: int, effects: list[Effect]) -> None:
        self.epoch = event.epoch
        if self.history is not None and event.epoch > self.promised:
            self.promised = event.epoch
            effects.append(SavePromise(event.epoch))
        self.leader_confirm = event.confirm
        self._move(State.CHECK, effects)
        self._leader_age(now_ns, effects)
        effects.append(CompareTail(event.verify_from, event.verify_to))

    def _on_promised(self, event: Promised, effects: list[Effect]) -> None:
        self.promised = max(self.promised, event.epoch)
        if self.state in _OPEN and self.epoch < self.promised and self.state is not State.HELLO:
            effects.append(
                Drop(f"epoch {self.promised} was promised, this leader's is {self.epoch}")
            )

    def _on_compared(self, event: TailCompared, effects: list[Effect]) -> None:
        if self.state is not State.CHECK:
            return
        if event.equal and self.cut is not None:
            self._move(State.CUTTING, effects)
            effects += (
                self.cut,
                Drop(f"the diverged tail from {self.cut.to} on must be cut first"),
            )
        elif event.equal:
            self._move(State.CATCHUP, effects)
            effects.append(_SEND_ACK)
            self._advance_confirm(effects)
        else:
            detail = f"the bytes before {self.log_end} differ from the leader's"
            effects.append(SendNack(NackReason.DIVERGED, self.log_end, detail))
            self._stop(State.DIVERGED, "DIVERGED", detail, effects)

    def _on_refused(self, event: Refused, now_ns: int, effects: list[Effect]) -> None:
        if event.code != NOT_LEADER:
            self._leader_age(now_ns, effects)
        self._stop(_REFUSED_AS.get(event.code, State.REFUSED), event.code, event.detail, effects)
        if event.code == "BELOW_LOG_START" and event.may_reseed:
            effects.append(Reseed(event.detail))

    def _stop(self, state: State, code: str, detail: str, effects: list[Effect]) -> None:
        if code != self.refusal_code:
            effects.append(Stopped(code, detail))
        self.refusal, self.refusal_code = detail, code
        self._move(state, effects)
        effects.append(Drop(code))

    # --- the stream -------------------------------------------------------------------------------

    def _on_chunk(self, event: ChunkArrived, now_ns: int, effects: list[Effect]) -> None:
        if self.state not in _STREAMING:
            effects.append(Drop(f"a chunk in state {self.state.value}"))
            return
        self._leader_age(now_ns, effects)
        if self._is_stale(event.epoch, "chunk", effects):
            pass
        elif event.offset != self.received_end:
            self._send_nack(
                NackReason.GAP, f"a chunk at {event.offset}, expected {self.received_end}", effects
            )
        elif not event.crc_ok:
            self._send_nack(NackReason.CRC, f"the chunk at {event.offset} is damaged", effects)
        elif self._accept_label(event, effects):
            self.leader_confirm = event.confirm
            effects.append(_APPEND)

    def _is_stale(self, epoch: int, what: str, effects: list[Effect]) -> bool:
        """Return whether the frame comes from an outdated leader; appends the drop of the
        stream."""
        if self.epoch < self.promised:
            effects.append(Drop(f"a {what} of epoch {self.epoch}, promised is {self.promised}"))
        elif epoch < self.epoch and (self.history is None or what == "heartbeat"):
            effects.append(Drop(f"a {what} of epoch {epoch}, the leader's is {self.epoch}"))
        else:
            return False
        return True

    def _accept_label(self, event: ChunkArrived, effects: list[Effect]) -> bool:
        """Label the chunk, or refuse it when the history would have a gap.

        It continues with the same epoch, or with a newer one that starts at the chunk. Own epochs
        without data leave the history first: they must not label these bytes.
        """
        history, epoch, start = self.history, event.epoch, event.epoch_start
        if history is None or (epoch == self.label and history.ends_with(epoch, start)):
            return True
        starts_here = start == event.offset or (not self.log_end and start < event.offset)
        is_next = self.label < epoch <= self.epoch and starts_here
        if not is_next and (epoch != self.label or EpochStart(epoch, start) not in history.entries):
            detail = f"a chunk of epoch {epoch}@{start} at {event.offset}"
            self._send_nack(NackReason.GAP, f"{detail} does not continue {history}", effects)
            return False
        history.assign(epoch, start)
        self.label = epoch
        effects.append(AssignEpoch(epoch, start))
        return True

    def _on_appended(self, event: Appended, effects: list[Effect]) -> None:
        assert event.log_end >= self.log_end, (event.log_end, self.log_end)
        self.log_end = event.log_end
        self.received_end = event.received_end
        self.failures = 0
        self.append_failed = False
        self.acked_ns = self.heard_ns  # its chunk arrived just now
        effects.append(_SEND_ACK)
        self._advance_confirm(effects)

    def _on_flushed(self, event: Flushed, effects: list[Effect]) -> None:
        flushed_end = min(event.flushed_end, self.log_end)
        if flushed_end > self.flushed_end:
            self.flushed_end = flushed_end
            if self.state in _STREAMING:
                effects.append(_SEND_ACK)

    def _on_heartbeat(self, event: HeartbeatArrived, now_ns: int, effects: list[Effect]) -> None:
        if self.state not in _STREAMING:
            effects.append(Drop(f"a heartbeat in state {self.state.value}"))
            return
        self._leader_age(now_ns, effects)
        if self._is_stale(event.epoch, "heartbeat", effects):
            return
        self.failures = 0
        self.leader_end = event.leader_end
        self.leader_confirm = event.confirm
        self._move(State.IN_SYNC if event.in_sync else State.CATCHUP, effects)
        if now_ns - self.acked_ns >= self.limits.ack_quiet_ns:
            # Heartbeats also carry the confirm offset right after an acknowledgement moved it: to
            # acknowledge those would double the traffic of every message.
            self.acked_ns = now_ns
            effects.append(_SEND_ACK)
        self._advance_confirm(effects)

    def _send_nack(self, reason: NackReason, detail: str, effects: list[Effect]) -> None:
        effects.append(SendNack(reason, self.received_end, detail))
        effects.append(Drop(detail))

    def _advance_confirm(self, effects: list[Effect]) -> None:
        confirm = min(self.log_end, self.leader_confirm)
        if confirm > self.confirm:
            self.confirm = confirm
            effects.append(ConfirmMoved(confirm))
        if self.suspect and self.log_end >= self.leader_confirm and self.label == self.epoch:
            self.suspect = False
            effects.append(SuspectCleared())

    def _leader_age(self, now_ns: int, effects: list[Effect]) -> None:
        self.heard_ns = now_ns
        self._set_alive(True, effects)

    def _set_alive(self, alive: bool, effects: list[Effect]) -> None:
        if alive is not self.leader_alive:
            self.leader_alive = alive
            effects.append(LeaderAlive(alive))

    def _on_ended(self, event: StreamEnded, effects: list[Effect]) -> None:
        if self.state in _STOPPED and self.refusal_code != NOT_LEADER:
            effects.append(Reconnect(self.limits.refused_reconnect_ms))
            return
        if self.state in (State.IDLE, State.CUTTING):
            return
        if event.goodbye or self.state is State.HELLO:
            # Announced, or not even answered: no need to wait for missing heartbeats. A stream that
            # broke gets one more attempt first; a reset does not prove a failure.
            self._set_alive(False, effects)
        if self.state not in _STOPPED:
            self._move(State.IDLE, effects)
        after_ms = min(
            self.limits.reconnect_max_ms, self.limits.reconnect_min_ms << min(self.failures, 16)
        )
        if self.append_failed:
            after_ms = self.limits.refused_reconnect_ms
        self.failures += 1
        effects.append(Reconnect(after_ms))

    def _on_tick(self, now_ns: int, effects: list[Effect]) -> None:
        slept_ns = now_ns - self.tick_ns if self.tick_ns else 0
        self.tick_ns = now_ns
        if slept_ns > TICK_GAP_MAX_NS:
            self.heard_ns = min(now_ns, self.heard_ns + slept_ns)
        if self.state in _STOPPED or now_ns - self.heard_ns < self.limits.dead_after_ns:
            return
        self._set_alive(False, effects)
        if self.state in _OPEN:
            effects.append(Drop("no frame from the leader for too long"))

    def _move(self, state: State, effects: list[Effect]) -> None:
        if self.state is state:
            return
        assert state in MOVES[self.state], (self.state, state)
        self.state = state
        if state in _STREAMING:
            self.refusal = self.refusal_code = ""
        effects.append(StateMoved(state))

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        assert 0 <= self.flushed_end <= self.log_end <= self.received_end
        assert 0 <= self.confirm <= self.log_end, (self.confirm, self.log_end)
        assert bool(self.refusal_code) or self.state not in _STOPPED
        assert self.state not in _STREAMING or self.cut is None
        if self.history is not None:
            self.history.validate()
            assert self.label <= self.history.last_epoch, (self.label, self.history)
            assert self.state in (State.IDLE, State.HELLO, *_STOPPED) or self.epoch <= self.promised
