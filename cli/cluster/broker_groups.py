"""Commands that reach every broker group of a cluster, and their outcomes by group.

A command asks the node of `--endpoint` for the names of the groups, and calls each group through
that node: the request names the group (`broker`), and nodes and proxies forward it to the group's
leader. So a command needs no further address, and sends no token elsewhere. The groups are called
at the same time. If one fails, the others' changes stay; the command prints each outcome, ends with
exit code 1, and prints the command that finishes it.

With one group, requests name none, and the output has no names of groups.
"""

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import click

from ...proto import paths, v1
from ..connection import TIMEOUT_S, Connection
from ..errors import CliError, Exit, NotServedError
from ..output import print_table, show_document, show_fields, timed

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Row = Mapping[str, object]

_BROKERS_KEY = "cometmq.brokers"
_OPTION = "--broker"
_RECONCILE = "`cometmq cluster reconcile` mends differences between groups."


def broker_option(command: F) -> F:
    """Add `--broker NAME`."""

    def keep(ctx: click.Context, _parameter: click.Parameter, names: tuple[str, ...]) -> None:
        if "" in names:  # requests without a name mean the group of the node that is asked
            raise CliError(f"{_OPTION} must not be empty.", Exit.USAGE)
        ctx.meta[_BROKERS_KEY] = tuple(dict.fromkeys(names))

    return click.option(
        _OPTION,
        multiple=True,
        metavar="NAME",
        expose_value=False,
        callback=keep,
        help="Only this broker group (its brokerName); repeatable [default: all].",
    )(command)


@dataclass(frozen=True, slots=True)
class Again:
    """How the command that finishes a change differs from the running one."""

    #: Words to add.
    more: tuple[str, ...] = ()
    #: The words behind `cometmq`, if it is another command.
    command: tuple[str, ...] = ()
    #: Words to replace: a relative time would mean another one later.
    replaced: Mapping[str, str] = field(default_factory=dict)


_NOTHING = Again()


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
        present = [one.broker for one in looked if one.answer is not None]
        done = {one.broker: one for one in self.each(path, request, answer, present)}
        return [done.get(one.broker, one) for one in looked if not one.absent]

    def pages(self, path: str, request: Any, answer: type[R], items: str) -> list[Outcome[list[R]]]:
        """Return all pages of a list of each group."""

        def read(name: str) -> list[R]:
            return list(self._connection.pages(path, _to(name, request), answer, items))

        return [_outcome(name, partial(read, name)) for name in self.names]


@contextmanager
def broker_groups(endpoint: str) -> Iterator[BrokerGroups]:
    """Connect, and find the groups that the command addresses. Raises CliError."""
    ctx = click.get_current_context()
    with Connection(endpoint) as connection:
        names: Sequence[str] = ctx.meta.get(_BROKERS_KEY, ())
        yield BrokerGroups(connection, names or group_names(connection))


def group_names(connection: Connection, timeout_s: float = TIMEOUT_S) -> tuple[str, ...]:
    """Return the names of all groups; `("",)` for the only one. Raises CliError."""
    request = v1.ListBrokersRequest()
    try:
        found = connection.call(paths.LIST_BROKERS, request, v1.ListBrokersResponse, timeout_s)
    except NotServedError:
        return ("",)  # a broker of version 0.1.0, which serves its own group
    return tuple(found.brokers) if len(found.brokers) > 1 else ("",)


def answers(outcomes: Sequence[Outcome[R]]) -> list[tuple[str, R]]:
    """Return the names and answers of the groups that answered. Raises CliError if none did."""
    found = [(one.broker, one.answer) for one in outcomes if one.answer is not None]
    if not found:
        raise _failure_of_all(outcomes)
    return found


def show_changes(
    outcomes: Sequence[Outcome[R]],
    output: str,
    sentence: Callable[[R], str],
    document: Callable[[R], Row],
    *,
    again: Again = _NOTHING,
) -> None:
    """Print what a change did in each group. Raises CliError if one failed."""
    done = answers(outcomes)
    if len(outcomes) == 1:
        ((_, answer),) = done
        if output == "json":
            show_document(document(answer))
        else:
            click.echo(sentence(answer))
        return
    if output == "json":
        show_document(
            [
                {"broker": one.broker, **document(one.answer)}
                if one.answer is not None
                else {"broker": one.broker, "error": str(one.error)}
                for one in outcomes
            ]
        )
    else:
        _print_outcomes(outcomes, sentence)
    finish(outcomes, again=again)


def present(outcomes: Sequence[Outcome[R]]) -> Sequence[Outcome[R]]:
    """Return the outcomes of a deletion without the groups that had nothing to delete.

    If no group had it, all are returned.
    """
    return [one for one in outcomes if not one.absent] or outcomes


def planned(looked: Sequence[Outcome[R]]) -> list[tuple[str, R]]:
    """Return `answers` to a dry run; tell on stderr which groups have no plan."""
    found = answers(looked)
    _tell_errors(looked)
    return found


def check_answered(outcomes: Sequence[Outcome[Any]]) -> None:
    """Raise CliError if a group failed. That it does not have what was asked for is no failure."""
    if any(one.error is not None and not one.absent for one in outcomes):
        raise CliError("The output is incomplete: not every broker group answered.")


def named(found: Sequence[tuple[str, Any]]) -> dict[str, object]:
    """Return the field `brokers` of a plan or object; empty for the only group of a cluster."""
    names = [name for name, _ in found if name]
    return {"brokers": names} if len(names) > 1 else {}


def distinct(values: Iterable[T]) -> list[T]:
    """Return the values without repetitions, in their order."""
    return list(dict.fromkeys(values))


def show_done(
    outcomes: Sequence[Outcome[Any]], sentence: str, output: str, *, again: Again = _NOTHING
) -> None:
    """Print that a planned change is done; the plan is the document of JSON output.

    Raises CliError if a group failed.
    """
    if output == "table":
        if any(one.error is not None for one in outcomes) and len(outcomes) > 1:
            _print_outcomes(outcomes, lambda _answer: sentence)
        elif outcomes[0].error is None:
            click.echo(sentence)
    finish(outcomes, again=again)


def show_failures(outcomes: Sequence[Outcome[Any]]) -> None:
    """Print the errors on stderr after a result that holds for the other groups, and `finish`."""
    for one in outcomes:
        if one.error is not None and len(outcomes) > 1:
            click.echo(f"cometmq: {one.broker}: {one.error}", err=True)
    finish(outcomes)


def finish(outcomes: Sequence[Outcome[Any]], *, again: Again = _NOTHING) -> None:
    """Raise CliError if a group failed, with the command that finishes the change."""
    failed = [one for one in outcomes if one.error is not None]
    if not failed:
        return
    if len(outcomes) == 1 and failed[0].error is not None:
        raise failed[0].error
    words = [f"{len(failed)} of {len(outcomes)} broker groups failed."]
    to_repeat = [one.broker for one in failed if not one.absent]
    if to_repeat:
        words.append(f"To finish, run: {running_command(to_repeat, again)}")
    if len(to_repeat) < len(failed):
        words.append(_RECONCILE)
    raise CliError("\n".join(words))


def note_failures(outcomes: Sequence[Outcome[Any]]) -> None:
    """Tell on stderr which groups are missing in a list. Raises CliError if one failed.

    A group that only does not have what was asked for is no failure.
    """
    _tell_errors(outcomes)
    check_answered(outcomes)
    if any(one.absent for one in outcomes):
        click.echo(f"cometmq: {_RECONCILE}", err=True)


def merged(found: Iterable[tuple[str, Iterable[Row]]]) -> list[dict[str, Any]]:
    """Return the distinct rows of all groups with their `brokers`, sorted by the first column.

    Rows of the only group of a cluster (its name is "") are returned as they are.
    """
    brokers: list[tuple[Row, list[str]]] = []
    for name, rows in found:
        if not name:
            return [dict(row) for row in rows]
        known = {_key(row): names for row, names in brokers}
        for row in rows:
            if (names := known.get(_key(row))) is not None:
                names.append(name)
            else:
                brokers.append((row, [name]))
    brokers.sort(key=lambda one: str(next(iter(one[0].values()))))
    return [{**row, "brokers": names} for row, names in brokers]


def show_described(
    settings: Sequence[Mapping[str, Any]], tables: Mapping[str, Sequence[Row]], output: str
) -> None:
    """Print an object: its settings (`merged`, several if the groups differ) and its tables.

    In JSON the fields of the first settings are at the top; all are in `settings` if there are
    groups to name.
    """
    if output == "json":
        several = {"settings": list(settings)} if "brokers" in settings[0] else {}
        show_document({**settings[0], **several, **tables})
        return
    for each in settings:
        texts = [f"{key}={value}" for key, value in each["attributes"].items()]
        show_fields({**each, "attributes": texts}, output)
    for rows in tables.values():
        if rows:
            print_table([timed(row) for row in rows])


def _tell_errors(outcomes: Sequence[Outcome[Any]]) -> None:
    for one in outcomes:
        if one.error is not None:
            click.echo(f"cometmq: {one.broker}: {one.error}", err=True)


def _key(row: Row) -> str:
    return repr(sorted(row.items()))


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


def _failure_of_all(outcomes: Sequence[Outcome[Any]]) -> CliError:
    errors = [one.error for one in outcomes if one.error is not None]
    if len({str(error) for error in errors}) == 1:
        return errors[0]
    text = "\n".join(f"{one.broker}: {one.error}" for one in outcomes)
    absent = all(one.absent for one in outcomes)
    return CliError(text, Exit.NOT_FOUND if absent else Exit.FAILED)


def _print_outcomes(outcomes: Sequence[Outcome[R]], sentence: Callable[[R], str]) -> None:
    width = max(len(one.broker) for one in outcomes)
    for one in outcomes:
        text = f"Failed: {one.error}" if one.answer is None else sentence(one.answer)
        click.echo(f"{one.broker:<{width}}  {text}")


def running_command(brokers: Sequence[str], again: Again = _NOTHING) -> str:
    """Return the running command for these groups only, as a shell line.

    With no names it is for all groups.
    """
    words = iter(again.command or sys.argv[1:])
    kept = []
    for word in words:
        if word == _OPTION:
            next(words, None)
        elif not word.startswith(f"{_OPTION}="):
            kept.append(again.replaced.get(word, word))
    end = kept.index("--") if "--" in kept else len(kept)
    chosen = [part for name in brokers for part in (_OPTION, name)]
    return shlex.join(["cometmq", *kept[:end], *again.more, *chosen, *kept[end:]])
