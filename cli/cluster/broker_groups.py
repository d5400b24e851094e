"""The broker groups that a command addresses, and what it prints of their outcomes.

A command reaches every group through the node of `--endpoint` (`operations/broker_groups.py`). If
one fails, the others' changes stay; the command prints each outcome, ends with exit code 1, and
prints the command that finishes it. With one group, the output has no names of groups.
"""

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from ...operations.broker_groups import BrokerGroups, Outcome, answers, group_names
from ...operations.errors import CliError, Exit, ForbiddenError
from ..links import connect
from ..output import note, print_table, show_document, show_fields

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


@contextmanager
def broker_groups(endpoint: str) -> Iterator[BrokerGroups]:
    """Connect, and find the groups that the command addresses. Raises CliError."""
    ctx = click.get_current_context()
    with connect(endpoint) as connection:
        names: Sequence[str] = ctx.meta.get(_BROKERS_KEY, ())
        yield BrokerGroups(connection, names or group_names(connection))


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


def planned(looked: Sequence[Outcome[R]]) -> list[tuple[str, R]]:
    """Return the plans of a dry run by group; tell on stderr which groups have none."""
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
            note(f"{one.broker}: {one.error}")
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
        note(_RECONCILE)


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
            print_table(rows)


def _tell_errors(outcomes: Sequence[Outcome[Any]]) -> None:
    for one in outcomes:
        if one.error is not None:
            note(f"{one.broker}: {one.error}")


def _key(row: Row) -> str:
    return repr(sorted(row.items()))


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


def check_topic(groups: BrokerGroups, name: str) -> None:
    """Raise CliError if a topic, of which nothing was found, does not exist."""
    from ...proto import paths, v1

    request = v1.DescribeTopicRequest(name=name)
    with suppress(ForbiddenError):
        answers(groups.each(paths.DESCRIBE_TOPIC, request, v1.DescribeTopicResponse))
