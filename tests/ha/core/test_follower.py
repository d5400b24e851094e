"""The follower's state machine: what it accepts, what it refuses, and how it judges its leader."""

import pytest

from cometmq.ha.core.follower import Follower, Limits
from cometmq.ha.core.follower_events import (
    Accepted,
    Append,
    Appended,
    AppendFailed,
    ChunkArrived,
    CompareTail,
    ConfirmMoved,
    Connecting,
    Drop,
    Effect,
    Event,
    Flushed,
    HeartbeatArrived,
    LeaderAlive,
    NackReason,
    OtherFrame,
    Reconnect,
    Refused,
    SendAck,
    SendNack,
    State,
    StateMoved,
    Stopped,
    StreamEnded,
    TailCompared,
    Tick,
)

MS = 1_000_000


class Stream:
    """A follower's core with a clock of its own; every event validates."""

    def __init__(self, log_end: int = 100, confirm: int = 0) -> None:
        limits = Limits(
            1500 * MS,
            250 * MS,
            reconnect_min_ms=100,
            reconnect_max_ms=2000,
            refused_reconnect_ms=10_000,
        )
        self.core = Follower(limits, log_end, log_end, log_end, confirm)
        self.now_ns = 1_000_000 * MS
        self.send(Tick())

    def send(self, event: Event) -> list[Effect]:
        effects = self.core.on_event(event, self.now_ns)
        self.core.validate()
        return effects

    def connect(self) -> list[Effect]:
        return self.send(Connecting(self.core.log_end, self.core.flushed_end))

    def accept(self, start: int | None = None, confirm: int = 0) -> list[Effect]:
        start = self.core.log_end if start is None else start
        return self.send(Accepted(1, start, 0, min(start, self.core.log_end), confirm))

    def chunk(self, offset: int, size: int = 10, confirm: int = 0) -> list[Effect]:
        effects = self.send(ChunkArrived(1, offset, True, confirm))
        if Append() in effects:
            effects += self.send(Appended(offset + size, offset + size))
        return effects

    def wait(self, milliseconds: int) -> list[Effect]:
        effects = []
        for _ in range(milliseconds // 100):
            self.now_ns += 100 * MS
            effects += self.send(Tick())
        return effects


def following(log_end: int = 100, confirm: int = 0) -> Stream:
    stream = Stream(log_end, confirm)
    stream.connect()
    stream.accept()
    stream.send(TailCompared(True))
    return stream


def test_a_hello_is_answered_by_a_comparison_and_then_an_acknowledgement() -> None:
    stream = Stream()
    assert stream.connect() == [StateMoved(State.HELLO)]
    assert stream.accept(confirm=80) == [
        StateMoved(State.CHECK),
        LeaderAlive(True),
        CompareTail(0, 100),
    ]
    assert stream.send(TailCompared(True)) == [
        StateMoved(State.CATCHUP),
        SendAck(),
        ConfirmMoved(80),
    ]


def test_a_different_tail_stops_the_follower_and_changes_nothing() -> None:
    stream = Stream()
    stream.connect()
    stream.accept()
    effects = stream.send(TailCompared(False))
    assert [type(effect) for effect in effects] == [SendNack, Stopped, StateMoved, Drop]
    assert effects[2] == StateMoved(State.DIVERGED)
    assert stream.core.log_end == 100
    assert stream.send(StreamEnded(False)) == [Reconnect(10_000)]
    assert stream.core.refusal_code == "DIVERGED"


def test_a_refusal_is_reported_once_and_retried_slowly() -> None:
    stream = Stream()
    stream.connect()
    effects = stream.send(Refused("WRONG_GROUP", "no"))
    assert Stopped("WRONG_GROUP", "no") in effects
    assert stream.core.state is State.REFUSED
    assert stream.send(StreamEnded(False)) == [Reconnect(10_000)]
    stream.connect()
    assert Stopped("WRONG_GROUP", "no") not in stream.send(Refused("WRONG_GROUP", "no"))
    stream.send(StreamEnded(False))
    stream.connect()
    stream.accept()
    stream.send(TailCompared(True))
    assert stream.core.refusal_code == ""


def test_a_diverged_follower_stays_diverged_while_its_leader_is_unreachable() -> None:
    stream = Stream()
    stream.connect()
    stream.send(Refused("DIVERGED", "longer"))
    stream.send(StreamEnded(False))
    stream.connect()
    stream.send(StreamEnded(False))
    assert stream.core.refusal_code == "DIVERGED"
    assert not stream.core.leader_alive


def test_chunks_are_appended_in_order_and_acknowledged() -> None:
    stream = following()
    assert stream.chunk(100) == [Append(), SendAck()]
    assert stream.chunk(110, confirm=105) == [Append(), SendAck(), ConfirmMoved(105)]


def test_confirm_never_exceeds_the_own_end() -> None:
    stream = following()
    stream.chunk(100, 10, confirm=1000)
    assert stream.core.confirm == 110


def test_confirm_never_decreases() -> None:
    stream = following(confirm=90)
    stream.send(HeartbeatArrived(1, 100, 50, False))
    assert stream.core.confirm == 90


def test_a_part_of_a_record_is_received_but_not_written() -> None:
    stream = following()
    stream.send(ChunkArrived(1, 100, True, 0))
    stream.send(Appended(100, 150))
    assert (stream.core.log_end, stream.core.received_end) == (100, 150)
    assert Append() in stream.send(ChunkArrived(1, 150, True, 0))


def test_after_a_broken_stream_a_partial_record_is_received_again() -> None:
    stream = following()
    stream.send(ChunkArrived(1, 100, True, 0))
    stream.send(Appended(100, 150))
    stream.send(StreamEnded(False))
    stream.connect()
    stream.accept(start=100)
    stream.send(TailCompared(True))
    assert stream.core.received_end == 100


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (ChunkArrived(1, 90, True, 0), NackReason.GAP),
        (ChunkArrived(1, 120, True, 0), NackReason.GAP),
        (ChunkArrived(1, 100, False, 0), NackReason.CRC),
    ],
)
def test_an_invalid_chunk_is_refused_and_the_stream_dropped(
    event: ChunkArrived, reason: NackReason
) -> None:
    stream = following()
    nack, drop = stream.send(event)
    assert isinstance(nack, SendNack)
    assert (nack.reason, nack.offset) == (reason, 100)
    assert isinstance(drop, Drop)
    assert stream.core.received_end == 100


def test_a_failed_append_ends_the_stream() -> None:
    stream = following()
    stream.send(ChunkArrived(1, 100, True, 0))
    effects = stream.send(AppendFailed(NackReason.DISK_FULL, "no room"))
    assert [type(effect) for effect in effects] == [SendNack, Drop]
    assert Reconnect(10_000) in stream.send(StreamEnded(False))
    # Some records of the chunk were taken before the disk was full.
    assert stream.send(Connecting(104, 100)) == [StateMoved(State.HELLO)]
    assert stream.core.log_end == 104


def test_frames_of_an_older_epoch_are_dropped() -> None:
    stream = following()
    stream.core.epoch = 2
    assert isinstance(stream.send(ChunkArrived(1, 100, True, 0))[0], Drop)
    assert isinstance(stream.send(HeartbeatArrived(1, 100, 0, True))[0], Drop)


@pytest.mark.parametrize("start", [0, 99, 101])
def test_only_an_empty_log_may_start_at_another_offset(start: int) -> None:
    stream = Stream()
    stream.connect()
    assert isinstance(stream.accept(start=start)[0], Drop)
    empty = Stream(log_end=0)
    empty.connect()
    empty.accept(start=start)
    assert empty.core.state is State.CHECK
    assert empty.core.received_end == start


def test_frames_before_the_comparison_are_dropped() -> None:
    stream = Stream()
    stream.connect()
    assert isinstance(stream.send(ChunkArrived(1, 100, True, 0))[0], Drop)
    assert isinstance(stream.send(HeartbeatArrived(1, 100, 0, True))[0], Drop)


def test_flushed_ends_are_acknowledged_up_to_the_last_whole_record() -> None:
    stream = following()
    stream.chunk(100)
    assert stream.send(Flushed(500)) == [SendAck()]
    assert stream.core.flushed_end == 110
    assert stream.send(Flushed(110)) == []


def test_a_heartbeat_is_acknowledged_and_sets_the_in_sync_state() -> None:
    stream = following()
    effects = stream.send(HeartbeatArrived(1, 100, 70, True))
    assert effects == [StateMoved(State.IN_SYNC), SendAck(), ConfirmMoved(70)]
    stream.now_ns += 250 * MS
    assert stream.send(HeartbeatArrived(1, 100, 70, False)) == [
        StateMoved(State.CATCHUP),
        SendAck(),
    ]


def test_a_heartbeat_right_after_an_acknowledgement_is_not_acknowledged() -> None:
    stream = following()
    stream.chunk(100)
    assert stream.send(HeartbeatArrived(1, 110, 110, False)) == [ConfirmMoved(110)]


def test_a_silent_leader_is_lost_after_three_heartbeat_intervals() -> None:
    stream = following()
    assert stream.wait(1400) == []
    effects = stream.wait(100)
    assert effects == [LeaderAlive(False), Drop("no frame from the leader for too long")]


def test_any_frame_keeps_the_leader_alive() -> None:
    stream = following()
    for _ in range(10):
        assert stream.wait(1000) == []
        stream.send(OtherFrame())


def test_a_suspended_follower_does_not_count_the_leaders_silence() -> None:
    stream = following()
    stream.now_ns += 30_000 * MS
    assert stream.send(Tick()) == []
    assert stream.core.leader_alive


def test_a_broken_stream_gets_one_attempt_before_the_leader_is_lost() -> None:
    stream = following()
    assert stream.send(StreamEnded(False)) == [StateMoved(State.IDLE), Reconnect(100)]
    assert stream.core.leader_alive
    stream.connect()
    assert LeaderAlive(False) in stream.send(StreamEnded(False))


def test_a_goodbye_ends_the_leader_immediately() -> None:
    stream = following()
    assert LeaderAlive(False) in stream.send(StreamEnded(True))


def test_pauses_grow_until_an_attempt_makes_progress() -> None:
    stream = Stream()
    pauses = []
    for _ in range(7):
        stream.connect()
        pauses += [e.after_ms for e in stream.send(StreamEnded(False)) if isinstance(e, Reconnect)]
    assert pauses == [100, 200, 400, 800, 1600, 2000, 2000]
    stream.connect()
    stream.accept()
    stream.send(TailCompared(True))
    stream.chunk(100)
    assert Reconnect(100) in stream.send(StreamEnded(False))
