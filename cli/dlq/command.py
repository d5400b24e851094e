"""`cometmq dlq`: list the dead letters of consumer groups, and send them again."""

from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from ...operations.errors import CliError, Exit
from ..cluster.broker_groups import broker_option
from ..confirm import go_on, plan_options
from ..links import connect
from ..metadata import with_options
from ..names import groups
from ..options import endpoint_option, output_option
from ..output import show_document, show_rows
from ..times import TIME_FORMS, moment

if TYPE_CHECKING:
    from ...client.message import Message
    from ...operations.broker_groups import BrokerGroups

_selection = with_options(
    click.option("--begin", type=moment, default="0", metavar="TIME", help=f"From: {TIME_FORMS}."),
    click.option("--end", type=moment, default="0", metavar="TIME", help="Before this time."),
    click.option("--origin", default="", metavar="TOPIC", help="Only messages sent to this topic."),
    click.option("--id", "ids", multiple=True, metavar="ID", help="This message id; repeatable."),
)


@click.group()
def dlq() -> None:
    """List dead letters, and send them again."""


@dlq.command("ls")
@click.argument("group", default="", shell_complete=groups)
@_selection
@click.option(
    "--count",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Maximum number of rows.",
)
@broker_option
@endpoint_option
@output_option
def list_letters(*, group: str, endpoint: str, output: str, count: int, **selection: Any) -> None:
    """List the groups with dead letters, or the dead letters of GROUP, oldest first.

    A dead letter that was sent again to its topic has the time, the user, and the id of the copy.

    \b
    cometmq dlq ls
    cometmq dlq ls billing --begin -1d
    """
    from ..cluster.broker_groups import broker_groups
    from .letters import Selection, dead_letters

    if not group:
        _list_groups(endpoint, output)
        return
    wanted = Selection(
        group, selection["begin"], selection["end"], selection["origin"], selection["ids"]
    )
    with broker_groups(endpoint) as groups, connect(endpoint) as connection:
        found = list(islice(dead_letters(groups, connection, wanted), count + 1))
        documents = [_document(letter) | _sent_again(groups, letter) for letter in found[:count]]
    if output == "json":
        show_document(documents)
    else:
        show_rows(
            [_row(each) for each in documents],
            output,
            empty=f"Group {group} has no{' matching' * wanted.narrows} dead letters.",
        )
    if len(found) > count:
        click.echo("cometmq: There are more; see --count and --begin.", err=True)
    elif absent := [one for one in wanted.ids if one not in {each.message_id for each in found}]:
        raise CliError(f"Group {group} has no matching dead letter {', '.join(absent)}.")


def _list_groups(endpoint: str, output: str) -> None:
    from ...operations.broker_groups import answers
    from ...proto import paths, v1
    from ..cluster.broker_groups import broker_groups, note_failures

    with broker_groups(endpoint) as groups:
        outcomes = groups.pages(
            paths.LIST_GROUPS, v1.ListGroupsRequest(), v1.ListGroupsResponse, "groups"
        )
    letters: dict[str, int] = {}
    for _, pages in answers(outcomes):
        for page in pages:
            for config, progress in zip(page.groups, page.progress, strict=True):
                letters[config.name] = letters.get(config.name, 0) + progress.dead_letters
    rows = [{"group": name, "dead_letters": n} for name, n in sorted(letters.items()) if n]
    show_rows(rows, output, empty="No group has dead letters.")
    note_failures(outcomes)


def _document(letter: "Message") -> dict[str, Any]:
    from ...operations.message_document import body_fields
    from ...operations.redrive import origin_of

    return {
        "message_id": letter.message_id,
        "origin": origin_of(letter),
        "attempts": letter.attempt,
        "tag": letter.tag,
        "keys": list(letter.keys),
        "message_group": letter.group,
        "born_ms": letter.born_ms,
        "stored_ms": letter.stored_ms,
        "broker": letter.broker,
        "queue": letter.queue_id,
        "offset": letter.offset,
        "properties": dict(letter.properties),
        **body_fields(letter.body),
    }


def _sent_again(groups: "BrokerGroups", letter: "Message") -> dict[str, Any]:
    """Return the time, the user and the id of the copy of a dead letter that was sent to its topic.
    Raises CliError."""
    from ...operations.redrive import SENDER_PROPERTY, copy_of, earlier, origin_of

    topic = origin_of(letter)
    found = earlier(groups, copy_of(letter, topic)) if topic else None
    if found is None:
        return {"sent_again_ms": 0, "sent_again_by": "", "sent_again_as": ""}
    system = found.system_properties
    return {
        "sent_again_ms": system.store_timestamp.ToMilliseconds(),
        "sent_again_by": found.user_properties.get(SENDER_PROPERTY, ""),
        "sent_again_as": system.message_id,
    }


def _row(document: dict[str, Any]) -> dict[str, Any]:
    names = (
        *("message_id", "origin", "attempts", "tag", "keys", "stored_ms"),
        *("sent_again_ms", "sent_again_by", "sent_again_as"),
    )
    return {name: document[name] for name in names} | {"body": document.get("body", "(not text)")}


@dlq.command()
@click.argument("group", shell_complete=groups)
@_selection
@click.option("--to", default="", metavar="TOPIC", help="Send to this topic, not to the origin.")
@plan_options
@broker_option
@endpoint_option
@output_option
def redrive(
    *,
    group: str,
    to: str,
    dry_run: bool,
    yes: bool,
    endpoint: str,
    output: str,
    **selection: Any,
) -> None:
    """Send the dead letters of GROUP again, to the topic of each; prints the plan and asks.

    What an earlier redrive has sent is omitted, so the command can be repeated. Dead letters stay.
    One that cannot be sent does not stop the others; the end names each, and the exit code is 1.
    All consumer groups of the topic receive the copies: --to names another topic.

    \b
    cometmq dlq redrive billing --begin -1d --dry-run
    """
    from ...operations import redrive as work
    from ..cluster.broker_groups import broker_groups
    from .letters import Selection, dead_letters

    wanted = Selection(
        group, selection["begin"], selection["end"], selection["origin"], selection["ids"]
    )
    with broker_groups(endpoint) as groups, connect(endpoint) as connection:
        letters = dead_letters(groups, connection, wanted)
        plan = work.plan(groups, letters, to, wanted.ids)
        problems = plan.problems()
        fields: dict[str, Any] = {"group": group, "without_topic": len(plan.without_target)}
        if plan.missing:
            fields["missing"] = plan.missing
        rows = plan.rows()
        question = f"Send {len(plan.copies)} messages again?"
        if not plan.copies and not problems and output == "table":
            click.echo(f"Group {group} has no dead letters to send again.")
            return
        only_shows = dry_run
        if not plan.copies and not dry_run:
            fields["to_send"] = 0
            dry_run = True
        goes_on = go_on(fields, question, output, rows=rows, dry_run=dry_run, yes=yes)
        if not goes_on and (only_shows or plan.copies):
            return
        results = list(work.send(groups, connection, plan.copies))
    for one, result in zip(plan.copies, results, strict=True):
        if isinstance(result, CliError):
            problems.append((one.letter_id, f"topic {one.topic}: {result}"))
    if output == "table" and plan.copies:
        click.echo(f"Sent {results.count(True)} of {len(plan.copies)} messages again.")
        if others := results.count(False):
            click.echo(f"Another redrive has sent {others} of them meanwhile.")
    if problems:
        said = [f"{message_id}: {reason}" for message_id, reason in problems]
        first = f"{len(problems)} messages were not sent:"
        cure = "Repeat the command."
        if len(problems) == len(plan.missing):
            cure = f"`cometmq dlq ls {group}` shows the ids."
        raise CliError("\n".join([first, *said, cure]), Exit.FAILED)
