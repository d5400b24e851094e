"""Epoch history: each rule, and random histories against a log that records every byte's author."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.ha.core.epochs import EpochHistory, EpochStart


def history(*pairs: tuple[int, int]) -> EpochHistory:
    return EpochHistory(EpochStart(epoch, start) for epoch, start in pairs)


def pairs(epochs: EpochHistory) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start) for entry in epochs.entries]


def test_an_epoch_that_starts_where_the_last_one_started_replaces_it() -> None:
    # To refuse it would label the new leader's bytes with the old epoch.
    epochs = history((1, 0), (2, 100))
    epochs.assign(3, 100)
    assert pairs(epochs) == [(1, 0), (3, 100)]


def test_two_elections_without_a_message_between_cut_at_the_right_offset() -> None:
    leader = history((1, 0), (2, 100))
    leader.assign(3, 100)
    rejoining = history((1, 0), (2, 100))  # it wrote 100..200 as leader of epoch 2
    assert rejoining.cut_against(leader, own_end=200, leader_end=150) == 100


def test_a_lower_start_drops_what_was_above() -> None:
    epochs = history((1, 0), (2, 100), (4, 300))
    epochs.assign(5, 200)
    assert pairs(epochs) == [(1, 0), (2, 100), (5, 200)]
    epochs.assign(5, 50)
    assert pairs(epochs) == [(1, 0), (5, 50)]


def test_a_cut_drops_epochs_without_a_byte() -> None:
    epochs = history((1, 0), (2, 100), (3, 200))
    epochs.truncate(200)
    assert pairs(epochs) == [(1, 0), (2, 100)]
    epochs.truncate(0)
    assert pairs(epochs) == []
    assert epochs.last_epoch == 0


def test_retention_keeps_the_true_start_of_the_oldest_epoch() -> None:
    epochs = history((1, 0), (2, 100), (3, 200))
    epochs.collapse(199)
    assert pairs(epochs) == [(2, 100), (3, 200)]
    epochs.collapse(5000)
    assert pairs(epochs) == [(3, 200)]
    assert epochs.cut_against(history((1, 0), (2, 100), (3, 200)), 6000, 7000) == 6000


def test_epoch_at_and_next_start_follow_the_entries() -> None:
    epochs = history((1, 10), (2, 100), (3, 200))
    assert epochs.epoch_at(10) == EpochStart(1, 10)
    assert epochs.epoch_at(99) == EpochStart(1, 10)
    assert epochs.epoch_at(100) == EpochStart(2, 100)
    assert epochs.epoch_at(9999) == EpochStart(3, 200)
    with pytest.raises(LookupError):
        epochs.epoch_at(9)
    assert [epochs.next_start(offset) for offset in (0, 10, 100, 199, 200)] == [
        10,
        100,
        200,
        200,
        None,
    ]


def test_cut_against_returns_the_common_end() -> None:
    leader = history((1, 0), (2, 100), (5, 300))
    assert history((1, 0)).cut_against(leader, 80, 400) == 80  # only behind
    assert history((1, 0)).cut_against(leader, 150, 400) == 100  # it went on alone in epoch 1
    assert history((1, 0), (2, 100)).cut_against(leader, 350, 400) == 300
    assert history((1, 0), (3, 90)).cut_against(leader, 200, 400) == 90
    assert history((1, 0), (2, 100), (5, 300)).cut_against(leader, 500, 400) == 400
    assert history((3, 0)).cut_against(leader, 200, 400) is None
    assert history().cut_against(leader, 0, 400) is None


@pytest.mark.parametrize("bad", [[(2, 0), (1, 10)], [(1, 10), (2, 10)], [(0, 0)], [(1, -1)]])
def test_an_invalid_history_is_refused(bad: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        history(*bad)


class Replica:
    """A log whose bytes are numbered by author and time, with its history."""

    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []
        self.epochs = EpochHistory()

    def lead(self, epoch: int, size: int) -> None:
        """Write `size` bytes as leader of `epoch`; none: it died before its EPOCH_START."""
        self.epochs.assign(epoch, len(self.log))
        self.log += [(epoch, len(self.log) + i) for i in range(size)]
        self.epochs.validate()

    def rejoin(self, leader: "Replica") -> None:
        cut = self.epochs.cut_against(leader.epochs, len(self.log), len(leader.log))
        cut = 0 if cut is None else cut
        assert self.log[:cut] == leader.log[:cut], "bytes below the cut must be equal"
        assert cut == len(self.log) or cut == len(leader.log) or self.log[cut] != leader.log[cut]
        del self.log[cut:]
        self.epochs.truncate(cut)
        self.epochs.validate()

    def copy(self, leader: "Replica", size: int) -> None:
        """Follow: chunks that never pass an epoch's boundary, labelled with their epoch."""
        end = min(len(leader.log), len(self.log) + size)
        while len(self.log) < end:
            offset = len(self.log)
            label = leader.epochs.epoch_at(offset)
            if self.epochs.last_epoch != label.epoch:
                self.epochs.assign(label.epoch, label.start)
            boundary = leader.epochs.next_start(offset)
            stop = end if boundary is None else min(end, boundary)
            self.log += leader.log[offset:stop]
            self.epochs.validate()


_STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),  # the leader
        st.integers(0, 4),  # the bytes it writes
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=3),  # its follower
    ),
    max_size=12,
)


@given(_STEPS)
def test_equal_entries_mean_equal_bytes_in_random_histories(
    steps: list[tuple[int, int, list[tuple[int, int]]]],
) -> None:
    replicas = [Replica(), Replica(), Replica()]
    for epoch, (leader, size, followers) in enumerate(steps, start=1):
        replicas[leader].lead(epoch, size)
        for follower, copied in followers:
            if follower != leader:
                replicas[follower].rejoin(replicas[leader])
                replicas[follower].copy(replicas[leader], copied)
    for one in replicas:
        for offset, (epoch, _) in enumerate(one.log):
            assert one.epochs.epoch_at(offset).epoch == epoch
        for other in replicas:
            for entry in one.epochs.entries:
                if entry in other.epochs.entries:
                    end = min(
                        one.epochs.end_of(entry.epoch, len(one.log)),
                        other.epochs.end_of(entry.epoch, len(other.log)),
                    )
                    assert one.log[:end] == other.log[:end]


_HISTORIES = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 50)), max_size=6).map(
    lambda steps: history(
        *(
            (sum(s[0] for s in steps[: i + 1]), sum(s[1] for s in steps[:i]))
            for i in range(len(steps))
        )
    )
)


@given(_HISTORIES, st.integers(0, 400))
def test_collapse_keeps_the_labels_of_remaining_bytes(epochs: EpochHistory, start: int) -> None:
    collapsed = EpochHistory(epochs.entries)
    collapsed.collapse(start)
    collapsed.validate()
    if epochs.entries:
        assert all(collapsed.epoch_at(o) == epochs.epoch_at(o) for o in range(start, start + 60))
        assert collapsed.last_epoch == epochs.last_epoch


@given(_HISTORIES, st.integers(1, 40), st.integers(0, 400))
def test_assign_makes_the_epoch_the_last_and_keeps_older_labels(
    epochs: EpochHistory, epoch: int, start: int
) -> None:
    changed = EpochHistory(epochs.entries)
    changed.assign(epoch, start)
    changed.validate()
    assert changed.entries[-1] == EpochStart(epoch, start)
    kept = [entry for entry in epochs.entries if entry.epoch < epoch and entry.start < start]
    assert changed.entries[:-1] == tuple(kept)
