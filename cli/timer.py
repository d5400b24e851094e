"""`cometmq timer`: list the delayed messages that wait for their time, and recall one."""

from typing import Any

import click

from .cluster.broker_groups import broker_option
from .links import connect
from .names import topics
from .options import endpoint_option, output_option
from .output import show_fields, show_rows
from .times import TIME_FORMS, moment


@click.group()
def timer() -> None:
    """List the delayed messages that wait for their time, and recall one."""


@timer.command("ls")
@click.argument("topic", default="", shell_complete=topics)
@click.option("--begin", type=moment, default="0", metavar="TIME", help=f"From: {TIME_FORMS}.")
@click.option("--end", type=moment, default="0", metavar="TIME", help="Due before this time.")
@click.option(
    "--count",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Maximum number of rows.",
)
@click.option("--system", is_flag=True, help="Include messages of the broker itself.")
@broker_option
@endpoint_option
@output_option
def list_timers(
    *, topic: str, begin: int, end: int, count: int, system: bool, endpoint: str, output: str
) -> None:
    """List the waiting messages of TOPIC, or of all topics; the next to be due is the first.

    Recalled messages and those of the running second are left out.

    \b
    cometmq timer ls
    cometmq timer ls reminders --end 2026-12-01T00:00
    """
    from ..operations.broker_groups import answers
    from ..proto import v1
    from .cluster.broker_groups import broker_groups, check_topic, note_failures

    request = v1.ListTimersRequest(topic=topic, begin_ms=begin, end_ms=end, include_system=system)
    with broker_groups(endpoint) as groups:
        outcomes = [_waiting(groups.among([name]), request, count + 1) for name in groups.names]
        found = [(broker, *each) for broker, waiting in answers(outcomes) for each in waiting]
        if topic and not found:
            check_topic(groups, topic)
    rows = [
        {
            "due_ms": one.due_ms,
            "topic": one.topic,
            "message_id": one.message_id,
            "tag": one.tag,
            "keys": list(one.keys),
            "stored_ms": one.stored_ms,
            "size": one.size,
            **({"broker": broker} if broker else {}),
            **({"recall_handle": one.recall_handle} if output == "json" else {}),
        }
        for broker, one, _ in sorted(found, key=lambda each: each[1].due_ms)
    ]
    show_rows(rows[:count], output, empty="No message waits.")
    if len(rows) > count:
        click.echo("cometmq: There are more; see --count and --begin.", err=True)
    if any(left_out for *_, left_out in found):
        click.echo("cometmq: A second has more messages than are listed.", err=True)
    note_failures(outcomes)


def _waiting(groups: Any, request: Any, count: int) -> Any:
    """Return the outcome of one broker group: messages, each with whether its second has more."""
    from ..operations.broker_groups import Outcome
    from ..proto import paths, v1

    found: list[tuple[v1.WaitingMessage, bool]] = []
    following = v1.ListTimersRequest()
    following.CopyFrom(request)
    while len(found) < count:
        following.count = count - len(found)
        (outcome,) = groups.each(paths.LIST_TIMERS, following, v1.ListTimersResponse)
        if outcome.answer is None:
            return outcome
        found += [(one, outcome.answer.left_out) for one in outcome.answer.timers]
        following.slot_ms = outcome.answer.next_slot_ms
        if not following.slot_ms:
            break
    return Outcome(outcome.broker, found)


@timer.command()
@click.argument("topic", shell_complete=topics)
@click.argument("handle")
@endpoint_option
@output_option
def recall(*, topic: str, handle: str, endpoint: str, output: str) -> None:
    """Cancel the delivery of the delayed message of TOPIC that HANDLE names.

    A send of a delayed message returns the handle, and `cometmq timer ls -o json` prints it.

    \b
    cometmq timer recall reminders djEgcmVtaW5kZXJz...
    """
    from ..proto import paths, v2

    request = v2.RecallMessageRequest(topic=v2.Resource(name=topic), recall_handle=handle)
    with connect(endpoint) as connection:
        answer = connection.call(paths.RECALL_MESSAGE, request, v2.RecallMessageResponse)
    show_fields({"topic": topic, "recalled": answer.message_id}, output)
