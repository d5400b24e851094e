"""The register of several nameservers under loss, delay, repetition, reordering and crashes of
proposers.

Each seed runs proposers that increment a counter: no increment reported as TAKEN may be missing or
applied twice.
"""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cometmq.ha.core.cas_register import (
    ZERO,
    AcceptorState,
    Ballot,
    Outcome,
    Phase,
    Round,
    Vote,
    accept,
    merge_states,
    prepare,
)

ballots = st.builds(Ballot, st.integers(1, 5), st.sampled_from(["a", "b"]))
requests = st.lists(st.tuples(st.booleans(), ballots, st.binary(max_size=2)), max_size=30)


@given(requests)
def test_an_acceptor_never_accepts_below_its_promise(
    asked: list[tuple[bool, Ballot, bytes]],
) -> None:
    state = AcceptorState()
    for is_prepare, ballot, value in asked:
        vote = prepare(state, ballot) if is_prepare else accept(state, ballot, value)
        vote.state.validate()
        assert vote.state.promised >= state.promised
        assert vote.state.accepted >= state.accepted
        assert vote.ok == (ballot >= state.promised)
        if not vote.ok:
            assert vote.state == state
        state = vote.state


def test_an_accept_without_a_ballot_is_refused() -> None:
    assert not accept(AcceptorState(), ZERO, b"x").ok


def test_merge_states_keeps_the_newest_value_and_the_highest_promise() -> None:
    states = [
        AcceptorState(Ballot(5, "a"), Ballot(2, "a"), b"old"),
        AcceptorState(Ballot(3, "b"), Ballot(3, "b"), b"new"),
    ]
    assert merge_states(states) == AcceptorState(Ballot(5, "a"), Ballot(3, "b"), b"new")
    assert merge_states([]) == AcceptorState()


@dataclass
class Attempt:
    round: Round
    marker: bytes
    phase: Phase = Phase.PREPARE


@dataclass
class World:
    rng: random.Random
    states: dict[str, AcceptorState]
    wire: list[tuple[Attempt, str, Phase, bytes]] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    taken: list[bytes] = field(default_factory=list)
    unknown: set[bytes] = field(default_factory=set)
    conflicts: set[bytes] = field(default_factory=set)
    counter: int = 0
    astray: float = 0.0  #: probability that an address leads to any of the acceptors

    def begin(self, index: int) -> None:
        proposer = f"p{self.rng.randrange(3)}.{index}"
        self.counter += self.rng.choice((0, 1, 1, 2))
        marker = b"%d;" % index
        ballot = Ballot(self.counter, proposer)
        attempt = Attempt(Round(len(self.states), ballot, lambda old: old + marker), marker)
        self.attempts.append(attempt)
        self._ask(attempt)

    def _ask(self, attempt: Attempt) -> None:
        round_ = attempt.round
        for name in self.states:
            self.wire.append((attempt, name, round_.phase, round_.value))

    def step(self) -> None:
        attempt, name, phase, value = self.wire.pop(self.rng.randrange(len(self.wire)))
        fate = self.rng.random()
        if fate < 0.15:  # the request is lost
            self._after(attempt, attempt.round.failed(phase, name))
            return
        if fate < 0.3:  # a copy arrives later
            self.wire.append((attempt, name, phase, value))
        # The acceptor that now has the address; the answer carries its id.
        found = self.rng.choice([*self.states]) if self.rng.random() < self.astray else name
        state = self.states[found]
        ballot = attempt.round.ballot
        vote = prepare(state, ballot) if phase is Phase.PREPARE else accept(state, ballot, value)
        self.states[found] = vote.state
        vote = replace(vote, acceptor_id=found if self.astray else "")
        if self.rng.random() < 0.15:  # the answer is lost
            self._after(attempt, attempt.round.failed(phase, name))
            return
        self._after(attempt, attempt.round.answered(phase, name, vote))

    def _after(self, attempt: Attempt, changed: bool) -> None:
        if not changed or self.rng.random() < 0.05:  # or the proposer crashed here
            if changed and attempt.round.phase is Phase.ACCEPT:
                self.unknown.add(attempt.marker)
            if changed and attempt.round.outcome is Outcome.TAKEN:
                self.unknown.add(attempt.marker)
            return
        if attempt.round.phase is Phase.ACCEPT:
            self._ask(attempt)
            return
        outcome = attempt.round.outcome
        if outcome is Outcome.TAKEN:
            self.taken.append(attempt.marker)
        elif outcome is Outcome.UNKNOWN:
            self.unknown.add(attempt.marker)
        else:
            self.conflicts.add(attempt.marker)

    def read(self) -> bytes:
        """A last round without faults."""
        round_ = Round(len(self.states), Ballot(10_000, "reader"), lambda old: None)
        for phase in (Phase.PREPARE, Phase.ACCEPT):
            for name in self.states:
                state = self.states[name]
                vote = (
                    prepare(state, round_.ballot)
                    if phase is Phase.PREPARE
                    else accept(state, round_.ballot, round_.value)
                )
                self.states[name] = vote.state
                round_.answered(phase, name, vote)
        assert round_.outcome is Outcome.TAKEN
        return round_.value


@pytest.mark.parametrize("astray", [0.0, 0.3])
@pytest.mark.parametrize("chunk", range(10))
def test_no_accepted_change_is_lost_or_applied_twice(chunk: int, astray: float) -> None:
    for seed in range(chunk * 60, chunk * 60 + 60):
        rng = random.Random(seed)
        world = World(
            rng, {f"n{i}": AcceptorState() for i in range(rng.choice((3, 3, 5)))}, astray=astray
        )
        for index in range(12):
            world.begin(index)
            for _ in range(rng.randrange(1, 14)):
                if world.wire:
                    world.step()
        while world.wire:
            world.step()
        found = [marker + b";" for marker in world.read().split(b";")[:-1]]
        assert len(found) == len(set(found)), (seed, found)
        assert set(world.taken) <= set(found), (seed, world.taken, found)
        assert not world.conflicts & set(found), (seed, world.conflicts, found)


def test_a_majority_that_is_down_leaves_the_register_untouched() -> None:
    round_ = Round(3, Ballot(1, "a"), lambda old: b"x")
    round_.answered(Phase.PREPARE, "n0", prepare(AcceptorState(), round_.ballot))
    assert not round_.failed(Phase.PREPARE, "n1")
    assert round_.failed(Phase.PREPARE, "n2")
    assert (round_.phase, round_.outcome) == (Phase.DONE, Outcome.UNREACHABLE)


def test_a_value_of_one_acceptor_is_unknown_and_completed_by_the_next_round() -> None:
    states = {f"n{i}": AcceptorState() for i in range(3)}
    first = Round(3, Ballot(1, "a"), lambda old: b"first")
    for name in ("n0", "n1"):
        states[name] = prepare(states[name], first.ballot).state
        first.answered(Phase.PREPARE, name, prepare(states[name], first.ballot))
    states["n0"] = accept(states["n0"], first.ballot, first.value).state
    for name in ("n0", "n1", "n2"):
        first.failed(Phase.ACCEPT, name)
    assert first.outcome is Outcome.UNKNOWN
    second = Round(3, Ballot(2, "b"), lambda old: None)
    for name in ("n0", "n2"):
        vote = prepare(states[name], second.ballot)
        states[name] = vote.state
        second.answered(Phase.PREPARE, name, vote)
    assert second.value == b"first"


def vote_of(acceptor_id: str, ballot: Ballot) -> Vote:
    return replace(prepare(AcceptorState(), ballot), acceptor_id=acceptor_id)


@pytest.mark.parametrize("phase", [Phase.PREPARE, Phase.ACCEPT])
def test_one_acceptor_under_two_addresses_counts_once(phase: Phase) -> None:
    round_ = Round(3, Ballot(1, "a"), lambda old: b"x")
    if phase is Phase.ACCEPT:
        for name in ("own", "n1"):
            round_.answered(Phase.PREPARE, name, vote_of(f"id-{name}", round_.ballot))
    assert round_.phase is phase
    assert not round_.answered(phase, "own", vote_of("id-own", round_.ballot))
    assert not round_.answered(phase, "n1", vote_of("id-own", round_.ballot))
    assert (round_.phase, round_.duplicates) == (phase, {("n1", "id-own")})
    assert round_.failed(phase, "n2")
    assert round_.phase is Phase.DONE
    assert round_.outcome is (Outcome.UNREACHABLE if phase is Phase.PREPARE else Outcome.UNKNOWN)


def test_a_third_acceptor_completes_the_majority_after_a_duplicate() -> None:
    round_ = Round(3, Ballot(1, "a"), lambda old: b"x")
    round_.answered(Phase.PREPARE, "own", vote_of("id-own", round_.ballot))
    round_.answered(Phase.PREPARE, "n1", vote_of("id-own", round_.ballot))
    assert round_.answered(Phase.PREPARE, "n2", vote_of("id-n2", round_.ballot))
    assert round_.phase is Phase.ACCEPT
    assert not round_.answered(Phase.ACCEPT, "n2", vote_of("id-n2", round_.ballot))
    assert round_.answered(Phase.ACCEPT, "own", vote_of("id-own", round_.ballot))
    assert round_.outcome is Outcome.TAKEN


def test_acceptors_of_an_older_version_count_by_their_addresses() -> None:
    round_ = Round(3, Ballot(1, "a"), lambda old: b"x")
    assert not round_.answered(Phase.PREPARE, "n1", vote_of("", round_.ballot))
    assert not round_.answered(Phase.PREPARE, "n1", vote_of("", round_.ballot))
    assert round_.answered(Phase.PREPARE, "n2", vote_of("", round_.ballot))
    assert (round_.phase, round_.duplicates) == (Phase.ACCEPT, set())
