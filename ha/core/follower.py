"""The follower's side of one replication stream, and what it makes of its leader.

States and their moves (`_MOVES`):

    IDLE      no leader is known, or the stream broke and the next attempt is due later
    HELLO     a stream is open and the hello is sent
    CHECK     accepted; the tail of our log is being compared with the leader's checksum
    CATCHUP   chunks arrive
    IN_SYNC   the leader counts us
    REFUSED   the leader said no, for example WRONG_GROUP; asked again slowly
    DIVERGED  our log is not a prefix of the leader's. Nothing is cut or overwritten: the files stay
              as they are, the state says so, and the leader is asked again slowly in case it was the
              wrong one.

Promise: a chunk is appended only at the received end, whole (its checksum fits) and of an epoch that
is not older than the one we follow; nothing is acknowledged before the tail was compared; the confirm
offset never goes back and never passes our own end.
"""

from dataclasses import dataclass

from .follower_events import (
    Accepted,
    Append,
    Appended,
    AppendFailed,
    BeatArrived,
    ChunkArrived,
    CompareTail,
    Complaint,
    ConfirmMoved,
    Connecting,
    Drop,
    Effect,
    Event,
    Flushed,
    LeaderAlive,
    OtherFrame,
    Refused,
    Retry,
    SendAck,
    SendNack,
    State,
    StateMoved,
    Stopped,
    StreamEnded,
    TailCompared,
    Tick,
)

_STREAMING = (State.CATCHUP, State.IN_SYNC)
_OPEN = (State.HELLO, State.CHECK, State.CATCHUP, State.IN_SYNC)
_STOPPED = (State.REFUSED, State.DIVERGED)

_MOVES: dict[State, tuple[State, ...]] = {
    State.IDLE: (State.HELLO,),
    State.HELLO: (State.IDLE, State.CHECK, State.REFUSED, State.DIVERGED),
    State.CHECK: (State.IDLE, State.CATCHUP, State.DIVERGED),
    State.CATCHUP: (State.IDLE, State.IN_SYNC),
    State.IN_SYNC: (State.IDLE, State.CATCHUP),
    State.REFUSED: (State.HELLO,),
    State.DIVERGED: (State.HELLO,),
}


@dataclass(frozen=True, slots=True)
class Limits:
    dead_after_ns: int  #: no frame for this long: the stream is dropped
    ack_quiet_ns: int  #: a beat is answered if nothing was acknowledged for this long
    retry_min_ms: int
    retry_max_ms: int
    refused_retry_ms: int


# Both carry nothing, and every chunk needs them.
_APPEND = Append()
_SEND_ACK = SendAck()
#: Ticks further apart than this mean that this process itself slept: the leader is not blamed.
TICK_GAP_MAX_NS = 500_000_000


@dataclass(slots=True)
class Follower:
    limits: Limits
    log_end: int
    received_end: int
    flushed_end: int  #: <= log_end
    confirm: int = 0  #: start value: the confirm offset of an earlier life of this follower
    epoch: int = 1  #: the leader's, as far as we have followed
    state: State = State.IDLE
    refusal: str = ""  #: why REFUSED or DIVERGED, for people
    refusal_code: str = ""
    leader_alive: bool = False
    leader_end: int = 0
    leader_confirm: int = 0
    failures: int = 0  #: attempts in a row that brought nothing new
    append_failed: bool = False  #: our store refused the last chunk: a disk heals slowly
    heard_ns: int = 0  #: last frame of the leader
    acked_ns: int = 0  #: last acknowledgement that was asked for
    tick_ns: int = 0  #: time of the last tick; 0 = none yet

    def __post_init__(self) -> None:
        self.flushed_end = min(self.flushed_end, self.log_end)
        self.confirm = min(self.confirm, self.log_end)

    def on_event(self, event: Event, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case ChunkArrived():
                self._on_chunk(event, now_ns, effects)
            case Appended():
                self._on_appended(event, effects)
            case Flushed():
                self._on_flushed(event, effects)
            case BeatArrived():
                self._on_beat(event, now_ns, effects)
            case OtherFrame():
                self._heard(now_ns, effects)
            case Connecting():
                self._on_connecting(event, now_ns, effects)
            case Accepted():
                self._on_accepted(event, now_ns, effects)
            case Refused():
                self._on_refused(event, now_ns, effects)
            case TailCompared():
                self._on_compared(event, effects)
            case AppendFailed():
                self.append_failed = True
                self._complain(event.complaint, event.detail, effects)
            case StreamEnded():
                self._on_ended(event, effects)
            case Tick():
                self._on_tick(now_ns, effects)
        return effects

    # --- the hello --------------------------------------------------------------------------------

    def _on_connecting(self, event: Connecting, now_ns: int, effects: list[Effect]) -> None:
        assert event.log_end >= self.log_end, (event.log_end, self.log_end)
        self.log_end = event.log_end
        self.received_end = max(self.received_end, event.log_end)
        self.flushed_end = max(self.flushed_end, min(event.flushed_end, event.log_end))
        self.heard_ns = now_ns  # the time to answer the hello starts now
        self._move(State.HELLO, effects)

    def _on_accepted(self, event: Accepted, now_ns: int, effects: list[Effect]) -> None:
        if self.state is not State.HELLO:
            effects.append(Drop("an answer without a hello"))
            return
        if event.epoch < self.epoch:
            effects.append(Drop(f"the leader's epoch {event.epoch} is older than {self.epoch}"))
            return
        # Only an empty follower may begin elsewhere: at the oldest byte that the leader still has.
        if self.log_end not in (0, event.start_offset):
            effects.append(Drop(f"told to start at {event.start_offset}, not at {self.log_end}"))
            return
        if not 0 <= event.verify_from <= event.verify_to <= max(self.log_end, event.start_offset):
            effects.append(Drop("told to compare bytes that we do not have"))
            return
        self.epoch = event.epoch
        # What had arrived of an unfinished record comes again.
        self.received_end = event.start_offset
        self.leader_confirm = event.confirm
        self._move(State.CHECK, effects)
        self._heard(now_ns, effects)
        effects.append(CompareTail(event.verify_from, event.verify_to))

    def _on_compared(self, event: TailCompared, effects: list[Effect]) -> None:
        if event.equal:
            self._move(State.CATCHUP, effects)
            effects.append(_SEND_ACK)
            self._advance_confirm(effects)
            return
        detail = f"the bytes before {self.log_end} differ from the leader's"
        effects.append(SendNack(Complaint.DIVERGED, self.log_end, detail))
        self._stop(State.DIVERGED, "DIVERGED", detail, effects)

    def _on_refused(self, event: Refused, now_ns: int, effects: list[Effect]) -> None:
        self._heard(now_ns, effects)
        state = State.DIVERGED if event.code == "DIVERGED" else State.REFUSED
        self._stop(state, event.code, event.detail, effects)

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
        self._heard(now_ns, effects)
        if event.epoch < self.epoch:
            effects.append(Drop(f"a chunk of epoch {event.epoch}, we follow {self.epoch}"))
        elif event.offset != self.received_end:
            self._complain(
                Complaint.GAP, f"a chunk at {event.offset}, expected {self.received_end}", effects
            )
        elif not event.crc_ok:
            self._complain(Complaint.CRC, f"the chunk at {event.offset} is damaged", effects)
        else:
            self.leader_confirm = event.confirm
            effects.append(_APPEND)

    def _on_appended(self, event: Appended, effects: list[Effect]) -> None:
        assert event.log_end >= self.log_end, (event.log_end, self.log_end)
        self.log_end = event.log_end
        self.received_end = event.received_end
        self.failures = 0
        self.append_failed = False
        self.acked_ns = self.heard_ns  # its chunk was heard just now
        effects.append(_SEND_ACK)
        self._advance_confirm(effects)

    def _on_flushed(self, event: Flushed, effects: list[Effect]) -> None:
        flushed_end = min(event.flushed_end, self.log_end)
        if flushed_end > self.flushed_end:
            self.flushed_end = flushed_end
            if self.state in _STREAMING:
                effects.append(_SEND_ACK)

    def _on_beat(self, event: BeatArrived, now_ns: int, effects: list[Effect]) -> None:
        if self.state not in _STREAMING:
            effects.append(Drop(f"a beat in state {self.state.value}"))
            return
        self._heard(now_ns, effects)
        if event.epoch < self.epoch:
            effects.append(Drop(f"a beat of epoch {event.epoch}, we follow {self.epoch}"))
            return
        self.failures = 0
        self.leader_end = event.leader_end
        self.leader_confirm = event.confirm
        self._move(State.IN_SYNC if event.in_sync else State.CATCHUP, effects)
        if now_ns - self.acked_ns >= self.limits.ack_quiet_ns:
            # Beats also carry the confirm offset, right after an acknowledgement moved it: answering
            # those would double the traffic of every message.
            self.acked_ns = now_ns
            effects.append(_SEND_ACK)
        self._advance_confirm(effects)

    def _complain(self, complaint: Complaint, detail: str, effects: list[Effect]) -> None:
        effects.append(SendNack(complaint, self.received_end, detail))
        effects.append(Drop(detail))

    def _advance_confirm(self, effects: list[Effect]) -> None:
        confirm = min(self.log_end, self.leader_confirm)
        if confirm > self.confirm:
            self.confirm = confirm
            effects.append(ConfirmMoved(confirm))

    # --- the leader's life ------------------------------------------------------------------------

    def _heard(self, now_ns: int, effects: list[Effect]) -> None:
        self.heard_ns = now_ns
        self._set_alive(True, effects)

    def _set_alive(self, alive: bool, effects: list[Effect]) -> None:
        if alive is not self.leader_alive:
            self.leader_alive = alive
            effects.append(LeaderAlive(alive))

    def _on_ended(self, event: StreamEnded, effects: list[Effect]) -> None:
        if self.state in _STOPPED:
            effects.append(Retry(self.limits.refused_retry_ms))
            return
        if self.state is State.IDLE:
            return
        if event.goodbye or self.state is State.HELLO:
            # It said so, or did not even answer: no need to wait for missing beats. A stream that
            # broke under way gets one attempt first; a reset is not a death.
            self._set_alive(False, effects)
        self._move(State.IDLE, effects)
        pause_ms = min(self.limits.retry_max_ms, self.limits.retry_min_ms << min(self.failures, 16))
        if self.append_failed:
            pause_ms = self.limits.refused_retry_ms
        self.failures += 1
        effects.append(Retry(pause_ms))

    def _on_tick(self, now_ns: int, effects: list[Effect]) -> None:
        slept_ns = now_ns - self.tick_ns if self.tick_ns else 0
        self.tick_ns = now_ns
        if slept_ns > TICK_GAP_MAX_NS:
            self.heard_ns = min(now_ns, self.heard_ns + slept_ns)
        if self.state in _STOPPED or now_ns - self.heard_ns < self.limits.dead_after_ns:
            return
        self._set_alive(False, effects)
        if self.state in _OPEN:
            effects.append(Drop("no frame of the leader for too long"))

    def _move(self, state: State, effects: list[Effect]) -> None:
        if self.state is state:
            return
        assert state in _MOVES[self.state], (self.state, state)
        self.state = state
        if state in _STREAMING:
            self.refusal = self.refusal_code = ""
        effects.append(StateMoved(state))

    def validate(self) -> None:
        """Assert every invariant; tests call it after each event."""
        assert 0 <= self.flushed_end <= self.log_end <= self.received_end
        assert 0 <= self.confirm <= self.log_end, (self.confirm, self.log_end)
        assert bool(self.refusal_code) or self.state not in _STOPPED
