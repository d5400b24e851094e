"""Calls that reach every broker group of a cluster, and their outcomes by group.

A program asks one node for the names of the groups, and calls each group through that node: the
request names the group (`broker`), and nodes and proxies forward it to the group's leader. So a
program needs no further address, and sends no token elsewhere. The groups are called at the same
time. If one fails, the others' changes stay.

With one group, requests name none.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from ..proto import paths, v1
from .connection import TIMEOUT_S, Connection
from .errors import CliError, Exit, NotServedError

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """What one group answered: an answer, or an error."""

    broker: str
    answer: R | None = None
    error: CliError | None = None

    @property
    def absent(self) -> bool:
        """Whether the group does not have what the call names."""
        return self.error is not None and self.error.code is Exit.NOT_FOUND


class BrokerGroups:
    """The groups that a command addresses."""

    def __init__(
        self, connection: Connection, names: Sequence[str], timeout_s: float = TIMEOUT_S
    ) -> None:
        """`names` is `[""]` for the only group of a cluster; the timeout is that of a call."""
        self.names = names
        self._connection = connection
        self._timeout_s = timeout_s

    def among(self, names: Sequence[str]) -> "BrokerGroups":
        """Return these groups only."""
        return BrokerGroups(self._connection, names, self._timeout_s)

    def each(
        self, path: str, request: Any, answer: type[R], among: Sequence[str] | None = None
    ) -> list[Outcome[R]]:
        """Send a request to the groups (or `among` these); the outcomes are in their order."""
        names = self.names if among is None else among
        pending = [
            (name, self._connection.start(path, _to(name, request), answer, self._timeout_s))
            for name in names
        ]
        return [_outcome(name, result) for name, result in pending]

    def carry_out(
        self, path: str, request: Any, answer: type[R], looked: Sequence[Outcome[Any]]
    ) -> list[Outcome[R]]:
        """Send a planned change to the groups that have the object: those with a plan in `looked`.

        Groups that could not be asked for a plan are among the outcomes, with their errors.
        """
        present = [outcome.broker for outcome in looked if outcome.answer is not None]
        done = {outcome.broker: outcome for outcome in self.each(path, request, answer, present)}
        return [done.get(outcome.broker, outcome) for outcome in looked if not outcome.absent]

    def pages(self, path: str, request: Any, answer: type[R], items: str) -> list[Outcome[list[R]]]:
        """Return all pages of a list of each group."""

        def read(name: str) -> list[R]:
            return list(self._connection.pages(path, _to(name, request), answer, items))

        return [_outcome(name, partial(read, name)) for name in self.names]


def group_names(connection: Connection, timeout_s: float = TIMEOUT_S) -> tuple[str, ...]:
    """Return the names of all groups; `("",)` for the only one. Raises CliError."""
    request = v1.ListBrokersRequest()
    try:
        answered = connection.call(paths.LIST_BROKERS, request, v1.ListBrokersResponse, timeout_s)
    except NotServedError:
        return ("",)  # a broker of version 0.1.0, which serves its own group
    return tuple(answered.brokers) if len(answered.brokers) > 1 else ("",)


def answers(outcomes: Sequence[Outcome[R]]) -> list[tuple[str, R]]:
    """Return the names and answers of the groups that answered. Raises CliError if none did."""
    answered = [
        (outcome.broker, outcome.answer) for outcome in outcomes if outcome.answer is not None
    ]
    if not answered:
        raise failure_of_all(outcomes)
    return answered


def present(outcomes: Sequence[Outcome[R]]) -> Sequence[Outcome[R]]:
    """Return the outcomes of a deletion without the groups that had nothing to delete.

    If no group had it, all are returned.
    """
    return [outcome for outcome in outcomes if not outcome.absent] or outcomes


def distinct(values: Iterable[T]) -> list[T]:
    """Return the values without repetitions, in their order."""
    return list(dict.fromkeys(values))


def _to(name: str, request: Any) -> Any:
    copy = type(request)()
    copy.CopyFrom(request)
    copy.broker = name
    return copy


def _outcome(name: str, result: Callable[[], R]) -> Outcome[R]:
    try:
        return Outcome(name, result())
    except CliError as error:
        return Outcome(name, error=error)


def failure_of_all(outcomes: Sequence[Outcome[Any]]) -> CliError:
    """Return the error of a call that no group answered."""
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if len({str(error) for error in errors}) == 1:
        return errors[0]
    text = "\n".join(f"{outcome.broker}: {outcome.error}" for outcome in outcomes)
    absent = all(outcome.absent for outcome in outcomes)
    return CliError(text, Exit.NOT_FOUND if absent else Exit.FAILED)
