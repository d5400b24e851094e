"""The cluster as the console calls it: bounded calls to the broker groups over one connection.

The connection is that of the commands (`operations/connection.py`), with the same addresses,
credentials and TLS; several addresses are alternatives, so the console survives the end of a node.
Calls may come from any thread.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..operations.broker_groups import BrokerGroups, Outcome, group_names
from ..operations.connection import Connection
from ..operations.errors import CliError, Exit
from .language import said

R = TypeVar("R")

#: Longest wait of a page for an answer: a person waits no longer, and threads are few.
CALL_S = 5.0
# The names of broker groups change when an operator adds one.
_NAMES_MS = 5_000
# Pages of a list (5,000 names each) that are read: 20,000 names take a second.
_LIST_PAGES_MAX = 4


class Cluster:
    """The broker groups of a cluster."""

    def __init__(self, connection: Connection, wall_ms: Callable[[], int]) -> None:
        self.connection = connection
        self._wall_ms = wall_ms
        self._names: tuple[str, ...] = ()
        self._read_ms = 0

    def names(self, timeout_s: float = CALL_S) -> tuple[str, ...]:
        """Return the names of all broker groups; `("",)` for the only one.

        If no node answers, the names known before are returned. Raises CliError without any.
        """
        now_ms = self._wall_ms()
        if not self._names or now_ms - self._read_ms > _NAMES_MS:
            try:
                self._names = group_names(self.connection, timeout_s)
            except CliError:
                if not self._names:
                    raise
            self._read_ms = now_ms
        return self._names

    def groups(self, among: Sequence[str] | None = None, timeout_s: float = CALL_S) -> BrokerGroups:
        """Return all broker groups, or `among` these. Raises CliError for an unknown name."""
        names = self.names(timeout_s)
        for name in among or ():
            if name and name not in names and names != ("",):
                raise CliError(said("There is no broker group {}.", name), Exit.NOT_FOUND)
        return BrokerGroups(self.connection, names if among is None else among, timeout_s)

    def each(self, path: str, request: Any, answer: type[R]) -> list[Outcome[R]]:
        """Send a request to all broker groups. Raises CliError if none is known."""
        return self.groups().each(path, request, answer)

    def pages(self, path: str, request: Any, answer: type[R], items: str) -> list[Outcome[list[R]]]:
        """Return the pages of a list by name of each broker group, at most 20,000 names."""

        def read(name: str) -> Outcome[list[R]]:
            asked = type(request)()
            asked.CopyFrom(request)
            asked.broker = name
            found: list[R] = []
            try:
                for page in self.connection.pages(path, asked, answer, items, CALL_S):
                    found.append(page)
                    if len(found) == _LIST_PAGES_MAX:
                        break
            except CliError as error:
                return Outcome(name, error=error)
            return Outcome(name, found)

        return [read(name) for name in self.names()]


def problems(outcomes: Sequence[Outcome[Any]]) -> list[str]:
    """Return a sentence for every group that failed, apart from those that lack the object."""
    return [
        f"{one.broker}: {one.error}" if one.broker else str(one.error)
        for one in outcomes
        if one.error is not None and not one.absent
    ]


def check(outcomes: Sequence[Outcome[Any]]) -> None:
    """Raise CliError if a change failed in a broker group, with the groups that made it."""
    failed = [one for one in outcomes if one.error is not None]
    if not failed:
        return
    first = failed[0].error
    assert first is not None
    if len(outcomes) == 1:
        raise first
    done = [one.broker for one in outcomes if one.error is None]
    errors = " ".join(f"{one.broker}: {one.error}" for one in failed)
    made = said("Done in: {}.", ", ".join(done))
    raise CliError(said("{} {}", errors, made) if done else errors, first.code)
