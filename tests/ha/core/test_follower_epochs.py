"""A follower with an epoch history: promises, labels, cuts, holds, and the suspect mark."""

import pytest

from cometmq.ha.core.epochs import EpochHistory, EpochStart
from cometmq.ha.core.follower import Follower
from cometmq.ha.core.follower_events import (
    Accepted,
    Append,
    Appended,
    AssignEpoch,
    ChunkArrived,
    CompareTail,
    Connecting,
    Cut,
    CutOrdered,
    Drop,
    Effect,
    HeartbeatArrived,
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
from cometmq.tests.ha.core.test_follower import Stream


class EpochStream(Stream):
    """A follower with an epoch history: its log is 0..100, written by the leader of epoch 1."""

    def __init__(self, log_end: int = 100, confirm: int = 0, **fields: object) -> None:
        super().__init__(log_end, confirm)
        history = EpochHistory([EpochStart(1, 0)] if log_end else [])
        self.core = Follower(
            self.core.limits, log_end, log_end, log_end, confirm, history=history, promised=1
        )
        for name, value in fields.items():
            setattr(self.core, name, value)
        self.send(Tick())

    def follow(self, epoch: int, confirm: int = 0) -> list[Effect]:
        self.connect()
        end = self.core.log_end
        effects = self.send(Accepted(epoch, end, 0, end, confirm))
        return effects + self.send(TailCompared(True))

    def cut(self, to: int, accept_loss: bool = False) -> list[Effect]:
        self.connect()
        return self.send(CutOrdered(2, to, 0, to, 0, accept_loss))

    def labelled(self, offset: int, epoch: int, start: int, confirm: int = 0) -> list[Effect]:
        effects = self.send(ChunkArrived(epoch, offset, True, confirm, start))
        if Append() in effects:
            effects += self.send(Appended(offset + 10, offset + 10))
        return effects


def begun_without_a_byte() -> EpochStream:
    """Elected for epoch 7 and deposed before its first record; it follows the leader of epoch 8."""
    stream = EpochStream(promised=7)
    assert stream.core.history is not None
    stream.core.history.assign(7, 100)
    stream.core.label = 7
    stream.follow(8)
    return stream


def test_the_promise_is_durable_before_anything_is_acknowledged() -> None:
    stream = EpochStream()
    effects = stream.follow(5)
    assert effects.index(SavePromise(5)) < effects.index(SendAck())
    assert SavePromise(5) not in EpochStream(promised=5).follow(5)


def test_a_leader_of_an_epoch_below_the_promise_is_not_followed() -> None:
    stream = EpochStream(promised=6)
    assert isinstance(stream.follow(5)[0], Drop)
    assert stream.core.state is State.HELLO


def test_a_promise_made_elsewhere_ends_the_stream_of_an_older_leader() -> None:
    stream = EpochStream()
    stream.follow(5)
    assert stream.send(Promised(5)) == []
    assert isinstance(stream.send(Promised(6))[0], Drop)
    assert isinstance(stream.labelled(100, 5, 100)[0], Drop)
    assert isinstance(stream.send(HeartbeatArrived(5, 100, 0, True))[0], Drop)
    assert stream.core.log_end == 100


def test_an_epoch_is_assigned_with_its_first_data() -> None:
    stream = EpochStream()
    stream.follow(5)
    stream.send(HeartbeatArrived(5, 100, 0, True))
    assert stream.core.history == EpochHistory([EpochStart(1, 0)])
    assert stream.labelled(100, 5, 100) == [AssignEpoch(5, 100), Append(), SendAck()]
    assert stream.labelled(110, 5, 100) == [Append(), SendAck()]


def test_catching_up_brings_bytes_of_older_epochs_under_their_own_labels() -> None:
    stream = EpochStream()
    stream.follow(5)
    stream.labelled(100, 1, 0)
    stream.labelled(110, 3, 110)
    stream.labelled(120, 5, 120)
    assert stream.core.history == EpochHistory(
        [EpochStart(1, 0), EpochStart(3, 110), EpochStart(5, 120)]
    )


@pytest.mark.parametrize(("epoch", "start"), [(6, 100), (5, 90), (1, 50), (5, 110)], ids=str)
def test_a_label_that_does_not_continue_the_history_is_refused(epoch: int, start: int) -> None:
    stream = EpochStream()
    stream.follow(5)
    nack, drop = stream.labelled(100, epoch, start)
    assert isinstance(nack, SendNack)
    assert isinstance(drop, Drop)
    assert stream.core.history == EpochHistory([EpochStart(1, 0)])


def test_an_empty_follower_takes_the_label_of_an_epoch_that_began_earlier() -> None:
    stream = EpochStream(log_end=0)
    stream.connect()
    stream.send(Accepted(5, 4096, 4096, 4096, 0))
    stream.send(TailCompared(True))
    assert AssignEpoch(3, 700) in stream.labelled(4096, 3, 700)


def test_a_diverged_tail_is_cut_by_a_plan() -> None:
    stream = EpochStream(confirm=60)
    effects = stream.cut(60)
    assert effects[-1] == CompareTail(0, 60)
    effects = stream.send(TailCompared(True))
    assert effects[:2] == [StateMoved(State.CUTTING), Cut(60, 2, False)]
    assert isinstance(effects[2], Drop)
    assert stream.send(StreamEnded(False)) == []  # nothing left to do before the restart
    assert stream.core.log_end == 100


def test_bytes_that_differ_below_the_cut_are_never_cut() -> None:
    stream = EpochStream()
    stream.cut(60)
    effects = stream.send(TailCompared(False))
    assert stream.core.state is State.DIVERGED
    assert not any(isinstance(effect, Cut) for effect in effects)


def test_confirmed_bytes_are_not_cut_without_an_operator() -> None:
    stream = EpochStream(confirm=61)
    effects = stream.cut(60)
    assert effects[0].__class__ is Stopped
    assert stream.core.state is State.HOLD
    assert stream.send(StreamEnded(False)) == [Reconnect(10_000)]
    assert CompareTail(0, 60) in stream.cut(60, accept_loss=True)
    asynchronous = EpochStream(confirm=61, is_sync=False)
    assert CompareTail(0, 60) in asynchronous.cut(60)


def test_a_refused_cut_also_leads_to_hold() -> None:
    stream = EpochStream()
    stream.connect()
    stream.send(Refused("CUT_BELOW_CONFIRM", "no"))
    assert stream.core.state is State.HOLD


@pytest.mark.parametrize("cut", [-1, 100, 101])
def test_an_empty_cut_is_refused(cut: int) -> None:
    stream = EpochStream()
    assert isinstance(stream.cut(cut)[0], Drop)


def test_only_a_replica_outside_the_in_sync_set_reseeds_automatically() -> None:
    stream = EpochStream()
    stream.connect()
    assert not any(isinstance(e, Reseed) for e in stream.send(Refused("BELOW_LOG_START", "old")))
    stream.send(StreamEnded(False))
    stream.connect()
    assert Reseed("old") in stream.send(Refused("BELOW_LOG_START", "old", may_reseed=True))


def test_the_suspect_mark_is_cleared_at_the_leaders_confirm_offset_with_data_of_its_epoch() -> None:
    stream = EpochStream(suspect=True)
    assert SuspectCleared() not in stream.follow(5, confirm=100)  # nothing of epoch 5 yet
    assert SuspectCleared() not in stream.labelled(100, 5, 100, confirm=120)
    assert SuspectCleared() in stream.labelled(110, 5, 100, confirm=120)
    assert not stream.core.suspect


def test_the_suspect_mark_stays_when_the_stream_breaks() -> None:
    stream = EpochStream(suspect=True)
    stream.follow(5, confirm=500)
    stream.labelled(100, 5, 100, confirm=500)
    stream.send(StreamEnded(False))
    assert stream.core.suspect


def test_an_epoch_without_data_does_not_block_older_epochs() -> None:
    # Found by the simulation: elected, deposed before its first record, then refused every chunk.
    stream = begun_without_a_byte()
    assert stream.labelled(100, 6, 100) == [AssignEpoch(6, 100), Append(), SendAck()]
    assert stream.core.history == EpochHistory([EpochStart(1, 0), EpochStart(6, 100)])


def test_an_epoch_of_a_failed_election_does_not_label_bytes_of_an_older_one() -> None:
    # Found by the simulation: the follower's own copy of the history lacked it.
    stream = EpochStream(promised=7)
    on_disk = EpochHistory([EpochStart(1, 0), EpochStart(7, 100)])
    stream.send(Connecting(100, 100, on_disk))
    stream.send(Accepted(8, 100, 0, 100, 0))
    stream.send(TailCompared(True))
    assert stream.labelled(100, 1, 0) == [AssignEpoch(1, 0), Append(), SendAck()]


def test_an_epoch_without_data_does_not_label_bytes_of_an_older_one() -> None:
    # Found by the simulation: it stayed in the history on disk while the older epoch's bytes
    # continued, so that the next leader would have cut below the confirm offset, and the replica
    # was held.
    stream = begun_without_a_byte()
    assert stream.labelled(100, 1, 0) == [AssignEpoch(1, 0), Append(), SendAck()]
    assert stream.core.history == EpochHistory([EpochStart(1, 0)])
    assert stream.labelled(110, 1, 0) == [Append(), SendAck()], "once is enough"
