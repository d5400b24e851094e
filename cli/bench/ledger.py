"""Every message of a run, by its number: sent, acknowledged, received. Pure."""

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum

#: Messages of a run: the ledger has two bytes for each.
MESSAGES_MAX = 50_000_000
_COUNT_MAX = 255
#: Different error texts: a text can hold the id of its message.
_ERRORS_MAX = 1_000
_OTHER_ERRORS = "other errors"


class Outcome(IntEnum):
    """The outcome of a send."""

    PENDING = 0
    ACKNOWLEDGED = 1
    #: The server refused it, or it never left.
    FAILED = 2
    #: The answer was lost: the message may be stored.
    UNKNOWN = 3


@dataclass(slots=True)
class Ledger:
    """`step`: only messages whose number is a multiple of it are to be received."""

    step: int = 1
    #: Messages received after a later one of their message group.
    out_of_order: int = 0
    #: Sends that failed, by error.
    errors: Counter[str] = field(default_factory=Counter)
    _outcomes: bytearray = field(default_factory=bytearray)
    _received: bytearray = field(default_factory=bytearray)
    _missing: int = 0
    _latest: dict[str, int] = field(default_factory=dict)

    def begin(self) -> int:
        """Return the number of the next message."""
        number = len(self._outcomes)
        self._outcomes.append(Outcome.PENDING)
        self._received.append(0)
        return number

    def sent(self, number: int, outcome: Outcome, error: str = "") -> None:
        """Record the outcome of a send."""
        self._outcomes[number] = outcome
        if outcome is not Outcome.ACKNOWLEDGED:
            is_known = error in self.errors or len(self.errors) < _ERRORS_MAX
            self.errors[error if is_known else _OTHER_ERRORS] += 1
        elif not number % self.step and not self._received[number]:
            self._missing += 1

    def received(self, number: int, group: str = "") -> None:
        """Record a reception. A number that was not sent is ignored."""
        if number >= len(self._received):
            return
        if not self._received[number]:
            if self._outcomes[number] == Outcome.ACKNOWLEDGED and not number % self.step:
                self._missing -= 1
            if group:
                if number < self._latest.get(group, -1):
                    self.out_of_order += 1
                else:
                    self._latest[group] = number
        self._received[number] = min(self._received[number] + 1, _COUNT_MAX)

    @property
    def missing(self) -> int:
        """Acknowledged messages that the consumers must receive and have not received."""
        return self._missing

    @property
    def begun(self) -> int:
        """Messages whose send was begun."""
        return len(self._outcomes)

    def count(self, outcome: Outcome) -> int:
        """Return the number of sends with an outcome."""
        return self._outcomes.count(outcome)

    @property
    def distinct_received(self) -> int:
        """Messages that were received at least once."""
        return len(self._received) - self._received.count(0)

    @property
    def duplicated(self) -> int:
        """Receptions after the first of a message."""
        return sum(self._received) - self.distinct_received

    @property
    def not_selected(self) -> int:
        """Messages received although the filter does not pass them."""
        if self.step == 1:
            return 0
        return sum(1 for number, times in enumerate(self._received) if times and number % self.step)
