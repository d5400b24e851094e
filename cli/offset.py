"""`cometmq offset`: show and reset the consumer offsets of a group."""

import re
from collections.abc import Callable, Sequence
from functools import partial

import click

from ..operations import offset_moves as moves
from ..operations.broker_groups import BrokerGroups, answers
from ..operations.errors import CliError, Exit
from ..proto import paths, v1
from .cluster.broker_groups import (
    Again,
    broker_groups,
    broker_option,
    check_answered,
    note_failures,
    planned,
    show_done,
)
from .confirm import go_on, plan_options
from .group import queue_row
from .names import groups, topics
from .options import endpoint_option, output_option
from .output import note, show_rows
from .times import present_ms, time_ms

_EDGES = {
    "now": v1.ResetOffsetsRequest.LATEST,
    "earliest": v1.ResetOffsetsRequest.EARLIEST,
    "latest": v1.ResetOffsetsRequest.LATEST,
}
_TIME = re.compile(r"-1|[0-9]{1,18}")
_WHEN = "TIME|earliest|latest|-1"


@click.group()
def offset() -> None:
    """Show and reset the consumer offsets of a group."""


@offset.command()
@click.argument("group", shell_complete=groups)
@click.argument("topic", default="", shell_complete=topics)
@broker_option
@endpoint_option
@output_option
def show(group: str, topic: str, endpoint: str, output: str) -> None:
    """Show the offsets of GROUP, on TOPIC or on every topic that it consumes.

    \b
    cometmq offset show billing orders
    """
    request = v1.DescribeGroupRequest(name=group, topic=topic)
    with broker_groups(endpoint) as groups:
        outcomes = groups.each(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse)
        rows = [queue_row(queue) for _, answer in answers(outcomes) for queue in answer.queues]
        if topic and not rows:  # a topic that does not exist is an error
            asked = v1.DescribeTopicRequest(name=topic)
            answers(groups.each(paths.DESCRIBE_TOPIC, asked, v1.DescribeTopicResponse))
    where = f"on topic {topic} " if topic else ""
    show_rows(rows, output, empty=f"Group {group} has no offsets {where}yet.")
    note_failures(outcomes)


# -1 and -1h are times, not options.
@offset.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
@click.argument("group", shell_complete=groups)
@click.argument("topic", shell_complete=topics)
@click.argument("when", metavar=_WHEN, default="")
@click.option("--queue", type=click.IntRange(0), help="Only this queue (default: all).")
@click.option(
    "--offset", "queue_offset", type=click.IntRange(0), help="Offset to set, instead of a time."
)
@click.option(
    "--shift",
    type=int,
    metavar="N",
    help="Move each queue by N messages from its present offset: -100 is back, 100 is forward.",
)
@click.option("--like", metavar="GROUP", default="", help="Set the offsets of this other group.")
@click.option(
    "--skip-retries", is_flag=True, help="Also mark messages in the retry topics as consumed."
)
@click.option(
    "--lite-topics",
    metavar="GLOB",
    default="",
    help="With a parent of lite topics as TOPIC: only those that match (default: all).",
)
@plan_options
@broker_option
@endpoint_option
@output_option
def reset(
    *,
    group: str,
    topic: str,
    when: str,
    queue: int | None,
    queue_offset: int | None,
    shift: int | None = None,
    like: str = "",
    skip_retries: bool,
    lite_topics: str = "",
    dry_run: bool,
    yes: bool,
    endpoint: str,
    output: str,
) -> None:
    """Set GROUP on TOPIC to the first message stored at TIME or later; prints the plan and asks.

    TIME is 2026-11-22T10:00 (local time, or with a zone), -1h, or milliseconds since 1970; -1 and
    latest mean the end, earliest the first message.
    Acknowledgements of messages in flight have no effect any more.

    \b
    cometmq offset reset billing orders -1h --dry-run
    cometmq offset reset billing orders latest
    cometmq offset reset billing orders --shift -100
    cometmq offset reset billing orders --like billing-old
    cometmq offset reset readers chats earliest --lite-topics "room-*"
    """
    if sum((bool(when), queue_offset is not None, shift is not None, bool(like))) != 1:
        raise CliError(
            "Give the position: TIME, earliest, latest, --offset N, --shift N or --like GROUP.",
            Exit.USAGE,
        )
    request = v1.ResetOffsetsRequest(group=group, topic=topic, lite_topics=lite_topics)
    if queue is not None:
        request.queue_id = queue
    if shift is not None or like:
        if skip_retries or lite_topics:
            other = "retry topics" if skip_retries else "lite topics"
            raise CliError(f"--shift and --like do not reset {other}.", Exit.USAGE)
        targets = (
            partial(moves.like, other=like, tell=note)
            if like
            else partial(moves.shifted, shift=shift or 0, tell=note)
        )
        _move(request, endpoint, output, targets, dry_run=dry_run, yes=yes)
        return
    request.skip_retries = skip_retries
    request.MergeFrom(_position(when, queue_offset))
    again = {when: str(request.timestamp_ms)} if request.HasField("timestamp_ms") else {}
    reset_offsets(request, endpoint, output, dry_run=dry_run, yes=yes, again=Again(replaced=again))


def _move(
    request: v1.ResetOffsetsRequest,
    endpoint: str,
    output: str,
    targets: Callable[[BrokerGroups, v1.ResetOffsetsRequest], list[moves.Move]],
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Print the plan of a reset with a target for each queue, ask for confirmation, reset."""
    with broker_groups(endpoint) as groups:
        wanted = targets(groups, request)
        if _goes_on(request, [move.change for move in wanted], output, dry_run=dry_run, yes=yes):
            changes = moves.carry_out(groups, request, wanted)
            if output == "table":
                click.echo(_done(request, changes))


def _goes_on(
    request: v1.ResetOffsetsRequest,
    changes: Sequence[v1.OffsetChange],
    output: str,
    *,
    dry_run: bool,
    yes: bool,
) -> bool:
    """Show the plan, by queue and in all; return True to carry it out."""
    rows = [_row(change, output) for change in changes]
    plan = _effect_row(*changes)
    return go_on(plan, _question(request), output, rows=rows, dry_run=dry_run, yes=yes)


def _done(request: v1.ResetOffsetsRequest, changes: Sequence[v1.OffsetChange]) -> str:
    """Return the sentence at the end, with the numbers of what was done."""
    return f"Reset group {request.group} on topic {request.topic}. {moves.effect(*changes)}"


def _question(request: v1.ResetOffsetsRequest) -> str:
    return f"Set group {request.group} on topic {request.topic} to these offsets?"


def _position(when: str, queue_offset: int | None) -> v1.ResetOffsetsRequest:
    """Return the request for a time, an edge or an offset. Raises CliError."""
    if queue_offset is not None:
        return v1.ResetOffsetsRequest(offset=queue_offset)
    if when in _EDGES:
        return v1.ResetOffsetsRequest(edge=_EDGES[when])
    if _TIME.fullmatch(when):
        return v1.ResetOffsetsRequest(timestamp_ms=int(when))
    try:
        return v1.ResetOffsetsRequest(timestamp_ms=time_ms(when, present_ms()))
    except click.BadParameter as error:
        raise CliError(error.message, Exit.USAGE) from None


def reset_offsets(
    request: v1.ResetOffsetsRequest,
    endpoint: str,
    output: str,
    *,
    dry_run: bool,
    yes: bool,
    again: Again,
) -> None:
    """Print the plan, ask for confirmation, reset."""
    with broker_groups(endpoint) as groups:
        request.dry_run = True
        looked = groups.each(paths.RESET_OFFSETS, request, v1.ResetOffsetsResponse)
        changes = [change for _, plan in planned(looked) for change in plan.changes]
        if not _goes_on(request, changes, output, dry_run=dry_run, yes=yes):
            check_answered(looked)  # a dry run
            return
        request.dry_run = False
        outcomes = groups.carry_out(paths.RESET_OFFSETS, request, v1.ResetOffsetsResponse, looked)
    done = [change for each in outcomes if each.answer for change in each.answer.changes]
    show_done(outcomes, _done(request, done), output, again=again)


def _row(change: v1.OffsetChange, output: str) -> dict[str, object]:
    absent = None if output == "json" else "none"
    return {
        "topic": change.topic,
        "broker": change.broker,
        "queue": change.queue_id,
        "before": change.before if change.before >= 0 else absent,
        "after": change.after,
        "min_offset": change.min_offset,
        "max_offset": change.max_offset,
        "to_consume": change.max_offset - change.after,
        **_effect_row(change),
    }


def _effect_row(*changes: v1.OffsetChange) -> dict[str, object]:
    effect = moves.effect(*changes)
    return {
        "consumed_again": effect.again,
        "skipped": effect.skipped,
        "in_flight_dropped": effect.in_flight,
    }
