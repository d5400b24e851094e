"""CASPaxos register: one value replicated over several nameservers (pure: no clock, no I/O).

Source: D. Rystsov, "CASPaxos: Replicated State Machines without logs" (2018). There is no log and
no leader. A proposer changes the value in two rounds over all acceptors, each decided by a
majority:

    prepare(ballot)          an acceptor promises to refuse lower ballots and returns what it
                             accepted last
    accept(ballot, value)    the proposer derives the next value from the newest one returned; an
                             acceptor accepts it unless it has promised a higher ballot

Every later prepare finds a value that a majority accepted, so changes are linear. A change that
reached only a minority, or whose answers were lost, is *unknown*: a later round completes it or
makes sure that it never counts. A read is a change that changes nothing; only so is it safe to
return that no value exists.

A majority counts acceptors, not addresses: a name may resolve to another acceptor, or to the
proposer's own. So an acceptor returns its id, and a second answer of the same acceptor in a phase
does not count.

An acceptor writes its new state to disk before it answers. An acceptor that lost its disk must not
vote under its old id: it could break its promises (docs/formats/ha.md, section 6.3).
"""

from collections.abc import Callable
from enum import Enum

from msgspec import Struct, field


class Ballot(Struct, frozen=True, order=True):
    """A number that no two proposers share."""

    counter: int = 0
    proposer: str = ""

    def __str__(self) -> str:
        return f"{self.counter}@{self.proposer}"


ZERO = Ballot()


class AcceptorState(Struct, frozen=True):
    """The durable state of an acceptor for one register."""

    promised: Ballot = ZERO
    accepted: Ballot = ZERO
    value: bytes = b""

    def validate(self) -> None:
        assert self.accepted <= self.promised, (self.accepted, self.promised)
        assert self.accepted != ZERO or not self.value, "a value without a ballot"


class Vote(Struct, frozen=True):
    """An acceptor's answer; `state` must be durable before the answer is sent."""

    ok: bool
    state: AcceptorState
    acceptor_id: str = ""  #: id of the acceptor, independent of its address; empty: not reported


def prepare(state: AcceptorState, ballot: Ballot) -> Vote:
    """Return the acceptor's vote on a prepare request. A repeated request gets the same answer."""
    if ballot < state.promised:
        return Vote(False, state)
    return Vote(True, AcceptorState(ballot, state.accepted, state.value))


def accept(state: AcceptorState, ballot: Ballot, value: bytes) -> Vote:
    """Return the acceptor's vote on an accept request."""
    if ballot < state.promised or ballot == ZERO:
        return Vote(False, state)
    return Vote(True, AcceptorState(ballot, ballot, value))


#: The next value computed from the current one (empty: none was ever accepted); None keeps it.
Change = Callable[[bytes], bytes | None]


class Outcome(Enum):
    TAKEN = "taken"  #: a majority accepted the value: it is the register's
    CONFLICT = "conflict"  #: a higher ballot was promised, and this change has no effect: retry
    UNREACHABLE = "unreachable"  #: too few acceptors answered, and this change has no effect
    UNKNOWN = "unknown"  #: the change may or may not take effect: a later round settles it


class Identities(Struct):
    """The acceptor behind each address, for the answers to one request."""

    _addresses: dict[str, str] = field(default_factory=dict)

    def counts(self, address: str, acceptor_id: str) -> bool:
        """Return whether this is the acceptor's first address. Without an id each address
        counts."""
        return not acceptor_id or self._addresses.setdefault(acceptor_id, address) == address


class Phase(Enum):
    PREPARE = "prepare"
    ACCEPT = "accept"
    DONE = "done"


class Round(Struct):
    """One attempt of a proposer: send `phase` to every acceptor and pass in the answers until
    DONE."""

    acceptors: int
    ballot: Ballot
    change: Change
    phase: Phase = Phase.PREPARE
    outcome: Outcome = Outcome.UNREACHABLE
    value: bytes = b""  #: the value to accept; at the end the register's value if TAKEN
    highest: Ballot = ZERO  #: highest ballot promised anywhere: the next attempt must exceed it
    #: Addresses and ids of answers by an acceptor that was already counted.
    duplicates: set[tuple[str, str]] = field(default_factory=set)
    _identities: dict[Phase, Identities] = field(default_factory=dict)
    _votes: dict[str, Vote] = field(default_factory=dict)
    _failed: set[str] = field(default_factory=set)
    _refused: set[str] = field(default_factory=set)

    @property
    def majority(self) -> int:
        return self.acceptors // 2 + 1

    def answered(self, phase: Phase, acceptor: str, vote: Vote) -> bool:
        """Enter an answer to `phase`; returns True if the phase or outcome changed."""
        self.highest = max(self.highest, vote.state.promised)
        if not self._identities.setdefault(phase, Identities()).counts(acceptor, vote.acceptor_id):
            self.duplicates.add((acceptor, vote.acceptor_id))
            return self.failed(phase, acceptor)
        if phase is not self.phase or acceptor in self._votes or acceptor in self._refused:
            return False
        if vote.ok:
            self._votes[acceptor] = vote
        else:
            self._refused.add(acceptor)
        return self._advance()

    def failed(self, phase: Phase, acceptor: str) -> bool:
        """Enter a missing answer to `phase`; whether the acceptor acted is unknown."""
        if phase is not self.phase or acceptor in self._votes or acceptor in self._refused:
            return False
        self._failed.add(acceptor)
        return self._advance()

    def _advance(self) -> bool:
        if len(self._votes) >= self.majority:
            self._on_majority()
            return True
        silent = self._failed - set(self._votes) - self._refused
        if len(self._refused) + len(silent) <= self.acceptors - self.majority:
            return False
        if self.phase is Phase.ACCEPT:
            # an acceptor that accepted returns the value to the next round
            self.outcome = Outcome.UNKNOWN
        else:
            self.outcome = Outcome.CONFLICT if self._refused else Outcome.UNREACHABLE
        self.phase = Phase.DONE
        return True

    def _on_majority(self) -> None:
        if self.phase is Phase.ACCEPT:
            self.phase, self.outcome = Phase.DONE, Outcome.TAKEN
            return
        newest = max(
            (vote.state for vote in self._votes.values()), key=lambda state: state.accepted
        )
        changed = self.change(newest.value)
        # An unchanged value is accepted again: this completes a change that reached a minority, or
        # makes sure that it never takes effect.
        self.value = newest.value if changed is None else changed
        self.phase = Phase.ACCEPT
        self._votes.clear()
        self._failed.clear()
        self._refused.clear()


def merge_states(states: list[AcceptorState]) -> AcceptorState:
    """Return the state that an acceptor without disk takes over from *all* others before it
    votes."""
    newest = max(states, key=lambda state: state.accepted, default=AcceptorState())
    promised = max((state.promised for state in states), default=ZERO)
    return AcceptorState(max(promised, newest.accepted), newest.accepted, newest.value)
