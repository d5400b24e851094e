"""One value that several nameservers keep together: a CASPaxos register (pure: no clock, no I/O).

Source: D. Rystsov, "CASPaxos: Replicated State Machines without logs" (2018), and HA note, 6.3 option c.
There is no log and no leader. A proposer changes the value in two rounds over all acceptors, each decided by
a majority:

    prepare(ballot)          an acceptor promises to take nothing of a lower ballot, and says what it took last
    accept(ballot, value)    of the answers' newest value the proposer makes the next one; an acceptor takes it
                             unless it has promised a higher ballot

Whatever a majority took is what every later prepare finds, so changes are linear. A change that reached only
a minority, or whose answers were lost, is *unknown*: a later round finds it or makes sure that it never
counts. Reading is a change that changes nothing; only so is it safe to say that a value is not there.

A majority is one of acceptors, not of addresses: a name may have come to lead to another acceptor, or to the
proposer's own. So an acceptor says who it is, and a second answer of the same one in a phase is no answer.

An acceptor must have written what it answers to its disk before it answers. One that lost its disk must not
take part under its old name: it could deny what it has promised.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True, order=True)
class Ballot:
    """A number that no two proposers share."""

    counter: int = 0
    proposer: str = ""

    def __str__(self) -> str:
        return f"{self.counter}@{self.proposer}"


ZERO = Ballot()


@dataclass(frozen=True, slots=True)
class Cell:
    """What an acceptor knows of one register, and what it must keep on its disk."""

    promised: Ballot = ZERO
    accepted: Ballot = ZERO
    value: bytes = b""

    def validate(self) -> None:
        assert self.accepted <= self.promised, (self.accepted, self.promised)
        assert self.accepted != ZERO or not self.value, "a value of no ballot"


@dataclass(frozen=True, slots=True)
class Vote:
    """An acceptor's answer; `cell` is what it has to have on its disk before it is sent."""

    ok: bool
    cell: Cell
    acceptor_id: str = ""  #: who answers, whatever its address; empty: it does not say


def prepare(cell: Cell, ballot: Ballot) -> Vote:
    """An acceptor is asked to promise. A repeated request gets the same answer."""
    if ballot < cell.promised:
        return Vote(False, cell)
    return Vote(True, Cell(ballot, cell.accepted, cell.value))


def accept(cell: Cell, ballot: Ballot, value: bytes) -> Vote:
    """An acceptor is asked to take a value."""
    if ballot < cell.promised or ballot == ZERO:
        return Vote(False, cell)
    return Vote(True, Cell(ballot, ballot, value))


#: The next value from the current one (empty: none was ever taken); None leaves it as it is.
Change = Callable[[bytes], bytes | None]


class Outcome(Enum):
    TAKEN = "taken"  #: a majority has the value: it is the register's
    CONFLICT = (
        "conflict"  #: another proposer was faster, and ours has no effect: try a higher ballot
    )
    UNREACHABLE = "unreachable"  #: too few answered, and ours has no effect
    UNKNOWN = "unknown"  #: ours may become the register's value, or not: a later round settles it


@dataclass(slots=True)
class Identities:
    """Which acceptor stands behind which address, for the answers to one question."""

    _addresses: dict[str, str] = field(default_factory=dict)

    def counts(self, address: str, acceptor_id: str) -> bool:
        """It has not answered under another address. Who does not say who it is counts by its address."""
        return not acceptor_id or self._addresses.setdefault(acceptor_id, address) == address


class Phase(Enum):
    PREPARE = "prepare"
    ACCEPT = "accept"
    DONE = "done"


@dataclass(slots=True)
class Round:
    """One attempt of a proposer. Ask every acceptor for `phase`; hand in the answers until it is DONE."""

    acceptors: int
    ballot: Ballot
    change: Change
    phase: Phase = Phase.PREPARE
    outcome: Outcome = Outcome.UNREACHABLE
    value: bytes = b""  #: what to accept; at the end, what the register holds if it was TAKEN
    highest: Ballot = ZERO  #: that anybody was promised: the next attempt has to be above it
    #: Address and identity of answers that led to an acceptor counted already.
    twice: set[tuple[str, str]] = field(default_factory=set)
    _identities: dict[Phase, Identities] = field(default_factory=dict)
    _votes: dict[str, Vote] = field(default_factory=dict)
    _failed: set[str] = field(default_factory=set)
    _refused: set[str] = field(default_factory=set)

    @property
    def majority(self) -> int:
        return self.acceptors // 2 + 1

    def answered(self, phase: Phase, acceptor: str, vote: Vote) -> bool:
        """Take an answer to `phase`; True: the phase or outcome has changed."""
        self.highest = max(self.highest, vote.cell.promised)
        if not self._identities.setdefault(phase, Identities()).counts(acceptor, vote.acceptor_id):
            self.twice.add((acceptor, vote.acceptor_id))
            return self.failed(phase, acceptor)
        if phase is not self.phase or acceptor in self._votes or acceptor in self._refused:
            return False
        if vote.ok:
            self._votes[acceptor] = vote
        else:
            self._refused.add(acceptor)
        return self._advance()

    def failed(self, phase: Phase, acceptor: str) -> bool:
        """An acceptor did not answer `phase`; whether it has acted is not known."""
        if phase is not self.phase or acceptor in self._votes or acceptor in self._refused:
            return False
        self._failed.add(acceptor)
        return self._advance()

    def _advance(self) -> bool:
        if len(self._votes) >= self.majority:
            self._majority_said_yes()
            return True
        silent = self._failed - set(self._votes) - self._refused
        if len(self._refused) + len(silent) <= self.acceptors - self.majority:
            return False
        if self.phase is Phase.ACCEPT:
            self.outcome = Outcome.UNKNOWN  # whoever took it shows it to the next round
        else:
            self.outcome = Outcome.CONFLICT if self._refused else Outcome.UNREACHABLE
        self.phase = Phase.DONE
        return True

    def _majority_said_yes(self) -> None:
        if self.phase is Phase.ACCEPT:
            self.phase, self.outcome = Phase.DONE, Outcome.TAKEN
            return
        newest = max((vote.cell for vote in self._votes.values()), key=lambda cell: cell.accepted)
        changed = self.change(newest.value)
        # Even an unchanged value is accepted again: that makes what a minority had the register's, or
        # sure that nothing else is.
        self.value = newest.value if changed is None else changed
        self.phase = Phase.ACCEPT
        self._votes.clear()
        self._failed.clear()
        self._refused.clear()


def merged(cells: list[Cell]) -> Cell:
    """What an acceptor that lost its disk takes over from *all* others before it votes again."""
    newest = max(cells, key=lambda cell: cell.accepted, default=Cell())
    promised = max((cell.promised for cell in cells), default=ZERO)
    return Cell(max(promised, newest.accepted), newest.accepted, newest.value)
