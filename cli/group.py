"""`cometmq group`: create, alter, delete, list, describe consumer groups."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click

from ..operations.broker_groups import Outcome, answers, distinct
from ..operations.errors import CliError, Exit
from ..operations.group_settings import group_row, group_settings, retry_policy
from ..proto import paths, v1
from .cluster.broker_groups import (
    broker_groups,
    broker_option,
    check_answered,
    merged,
    named,
    note_failures,
    planned,
    show_changes,
    show_described,
    show_done,
)
from .confirm import go_on, plan_options
from .metadata import attribute_option, change_verb, with_options
from .names import groups, topics
from .options import endpoint_option, output_option
from .output import show_rows
from .times import duration, durations_ms

# RocketMQ's defaults for `--retry-policy exponential`.
_EXPONENTIAL_MS = (5_000, 7_200_000)
_MULTIPLIER = 2
_TRUE_OR_FALSE = "true|false"

#: The options of `create` and `alter`; an omitted option keeps the group's value.
_settings = with_options(
    click.option(
        "--order",
        type=click.BOOL,
        metavar=_TRUE_OR_FALSE,
        help="Deliver the messages of one queue in order (default: false).",
    ),
    click.option(
        "--max-attempts",
        type=click.IntRange(1, 1_000),
        help="Deliveries of a message before it moves to the dead-letter topic "
        "(default: the broker's).",
    ),
    click.option(
        "--consume-enable",
        type=click.BOOL,
        metavar=_TRUE_OR_FALSE,
        help="Allow consumers of the group to receive messages (default: true).",
    ),
    click.option(
        "--retry-policy",
        type=click.Choice(["customized", "exponential"]),
        help="Delay between attempts: exponential, or customized (a list of delays; "
        "without --retry-delays the broker's table).",
    ),
    click.option(
        "--retry-delays",
        type=durations_ms,
        metavar="1s,5s,...",
        help="Delays between attempts (customized policy); the last one repeats.",
    ),
    click.option(
        "--retry-initial",
        type=duration("ms"),
        metavar="DURATION",
        help="Initial delay (exponential policy).",
    ),
    click.option(
        "--retry-max",
        type=duration("ms"),
        metavar="DURATION",
        help="Maximum delay (exponential policy).",
    ),
    click.option(
        "--retry-multiplier",
        type=click.IntRange(1, 100),
        help="Backoff multiplier (exponential policy).",
    ),
    attribute_option("+priority.factor=50"),
)


@click.group()
def group() -> None:
    """Create, alter, delete, list and describe consumer groups."""


@group.command()
@click.argument("name", shell_complete=groups)
@_settings
@broker_option
@endpoint_option
@output_option
def create(*, name: str, endpoint: str, output: str, **settings: Any) -> None:
    """Create consumer group NAME, or update an existing group with the given options.

    \b
    cometmq group create billing --order true --max-attempts 16
    """
    request = _request(name, settings)
    with broker_groups(endpoint) as groups:
        outcomes = groups.each(paths.CREATE_GROUP, request, v1.CreateGroupResponse)
    _show(outcomes, output)


@group.command()
@click.argument("name", shell_complete=groups)
@_settings
@click.option("--dry-run", is_flag=True, help="Show the result without changing anything.")
@broker_option
@endpoint_option
@output_option
def alter(*, name: str, dry_run: bool, endpoint: str, output: str, **settings: Any) -> None:
    """Change the given settings of consumer group NAME.

    \b
    cometmq group alter billing --retry-policy customized --retry-delays 1s,5s,1m
    """
    request = _request(name, settings)
    request.must_exist = True
    request.dry_run = dry_run
    with broker_groups(endpoint) as groups:
        outcomes = groups.each(paths.CREATE_GROUP, request, v1.CreateGroupResponse)
    _show(outcomes, output, dry_run=dry_run)


@group.command()
@click.argument("name", shell_complete=groups)
@click.option(
    "--keep-offsets", is_flag=True, help="Keep the offsets for a later group of this name."
)
@plan_options
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Delete the group even if it has pending retries or dead letters.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Delete the group even if it has connected clients. It stays deleted for ten minutes, or "
    "until it is created again.",
)
@broker_option
@endpoint_option
@output_option
def delete(
    *,
    name: str,
    keep_offsets: bool,
    dry_run: bool,
    yes: bool,
    accept_loss: bool,
    force: bool,
    endpoint: str,
    output: str,
) -> None:
    """Delete consumer group NAME with its offsets, retry topics and dead letters.

    \b
    cometmq group delete billing --dry-run
    """
    delete_group(
        v1.DeleteGroupRequest(
            name=name, keep_offsets=keep_offsets, accept_loss=accept_loss, force=force
        ),
        endpoint,
        output,
        dry_run=dry_run,
        yes=yes,
    )


def delete_group(
    request: v1.DeleteGroupRequest, endpoint: str, output: str, *, dry_run: bool, yes: bool
) -> None:
    """Print the plan, ask for confirmation, delete."""
    name = request.name
    asking = v1.DeleteGroupRequest(name=name, keep_offsets=request.keep_offsets, dry_run=True)
    with broker_groups(endpoint) as groups:
        looked = groups.each(paths.DELETE_GROUP, asking, v1.DeleteGroupResponse)
        plans = planned(looked)
        messages = sum(plan.messages for _, plan in plans)
        document = {
            **named(plans),
            "topics": distinct(topic for _, plan in plans for topic in plan.topics),
            "messages": messages,
            "in_flight": sum(plan.in_flight for _, plan in plans),
            "offsets_on": distinct(topic for _, plan in plans for topic in plan.offsets),
            "clients": max(plan.clients for _, plan in plans),
        }
        clients = distinct(client for _, plan in plans for client in plan.client_ids)
        if clients and not request.force and not dry_run:
            raise CliError(
                f"Group {name} has {document['clients']} connected clients: {', '.join(clients)}. "
                "Stop them, or use --force."
            )
        if messages and not request.accept_loss and not dry_run:
            raise CliError(
                f"Group {name} has {messages} pending retries and dead letters. "
                "Use --accept-loss to delete them."
            )
        if not go_on(document, f"Delete group {name}?", output, dry_run=dry_run, yes=yes):
            check_answered(looked)  # a dry run
            return
        outcomes = groups.carry_out(paths.DELETE_GROUP, request, v1.DeleteGroupResponse, looked)
    show_done(outcomes, f"Deleted group {name}.", output)


@group.command("list")
@click.option("--system", is_flag=True, help="Include the broker's system groups.")
@broker_option
@endpoint_option
@output_option
def list_groups(system: bool, endpoint: str, output: str) -> None:
    """List all consumer groups with their lag, the highest first.

    \b
    cometmq group list -o json
    """
    request = v1.ListGroupsRequest(include_system=system)
    with broker_groups(endpoint) as groups:
        outcomes = groups.pages(paths.LIST_GROUPS, request, v1.ListGroupsResponse, "groups")
    found = answers(outcomes)
    progress = {
        (broker, config.name): each
        for broker, pages in found
        for page in pages
        for config, each in zip(page.groups, page.progress, strict=True)
    }
    rows = merged(
        (broker, [group_row(config) for page in pages for config in page.groups])
        for broker, pages in found
    )
    listed = []
    for row in rows:
        brokers = row.pop("brokers", [""])
        state = _progress([progress[name, row["group"]] for name in brokers])
        at = {} if brokers == [""] else {"brokers": brokers}
        listed.append({"group": row.pop("group"), **state, **row, **at})
    listed.sort(key=lambda row: -row["lag"])
    show_rows(
        listed,
        output,
        empty="There are no consumer groups. A consumer creates its own; or: cometmq group create.",
    )
    note_failures(outcomes)


@group.command()
@click.argument("name", shell_complete=groups)
@click.option("--topic", shell_complete=topics, default="", help="Only this topic.")
@broker_option
@endpoint_option
@output_option
def describe(name: str, topic: str, endpoint: str, output: str) -> None:
    """Show group NAME: settings, lag, messages in flight, retries, dead letters, clients.

    \b
    cometmq group describe billing
    """
    request = v1.DescribeGroupRequest(name=name, topic=topic)
    with broker_groups(endpoint) as groups:
        outcomes = groups.each(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse)
    found = answers(outcomes)
    progress = _progress([answer.progress for _, answer in found])
    progress.pop("clients")  # listed in a table of their own
    settings = merged((name, [group_settings(answer.group)]) for name, answer in found)
    for fields in settings:
        last = {key: fields.pop(key) for key in ("attributes", "brokers") if key in fields}
        fields.update(progress | last)
    show_described(settings, _tables([answer for _, answer in found]), output)
    note_failures(outcomes)


def _tables(found: Sequence[v1.DescribeGroupResponse]) -> dict[str, list[dict[str, object]]]:
    """Return the rows of queues, missing messages and clients of all broker groups.

    A client is connected to several groups.
    """
    queues = [queue_row(queue) for answer in found for queue in answer.queues]
    missing = [
        {
            "topic": queue.topic,
            "broker": queue.broker,
            "queue": queue.queue_id,
            "missing_offset": message.offset,
            "file": message.file,
        }
        for answer in found
        for queue in answer.queues
        for message in queue.missing
    ]
    latest: dict[str, v1.GroupClient] = {}
    for client in (client for answer in found for client in answer.clients):
        known = latest.setdefault(client.client_id, client)
        if client.last_seen_ms_ago < known.last_seen_ms_ago:
            latest[client.client_id] = client
    clients: list[dict[str, object]] = [
        {
            "client": client.client_id,
            "language": client.language,
            "version": client.version,
            "address": client.peer,
            "seen_ms_ago": client.last_seen_ms_ago,
        }
        for client in latest.values()
    ]
    return {"queues": queues, "missing": missing, "clients": clients}


def queue_row(queue: v1.GroupQueueStatus) -> dict[str, object]:
    """Return one queue's offsets in a group as a table row."""
    return {
        "topic": queue.topic,
        "broker": queue.broker,
        "queue": queue.queue_id,
        "consumer_offset": queue.consumer_offset,
        "max_offset": queue.max_offset,
        "lag": queue.lag,
        "in_flight": queue.in_flight,
        "retry": queue.retry,
    }


def _request(name: str, settings: Mapping[str, Any]) -> v1.CreateGroupRequest:
    return v1.CreateGroupRequest(
        name=name,
        orderly=settings["order"],
        max_attempts=settings["max_attempts"] or 0,
        consume_enable=settings["consume_enable"],
        retry=_retry(settings),
        attributes=settings["attributes"],
    )


def _retry(settings: Mapping[str, Any]) -> v1.GroupRetry | None:
    """Return the requested retry policy, or None if no option was given."""
    policy, delays = settings["retry_policy"], settings["retry_delays"]
    initial, longest = settings["retry_initial"], settings["retry_max"]
    multiplier = settings["retry_multiplier"]
    curve = (initial, longest, multiplier)
    if policy != "exponential" and any(value is not None for value in curve):
        raise CliError(
            "--retry-initial, --retry-max and --retry-multiplier need --retry-policy exponential.",
            Exit.USAGE,
        )
    if policy != "customized" and delays is not None:
        raise CliError("--retry-delays needs --retry-policy customized.", Exit.USAGE)
    if policy == "exponential":
        return v1.GroupRetry(
            initial_ms=_EXPONENTIAL_MS[0] if initial is None else initial,
            max_ms=_EXPONENTIAL_MS[1] if longest is None else longest,
            multiplier=_MULTIPLIER if multiplier is None else multiplier,
        )
    return v1.GroupRetry(delays_ms=delays or ()) if policy else None


def _show(
    outcomes: Sequence[Outcome[v1.CreateGroupResponse]], output: str, *, dry_run: bool = False
) -> None:
    show_changes(outcomes, output, partial(_sentence, dry_run=dry_run), _document)


def _document(answer: v1.CreateGroupResponse) -> dict[str, object]:
    row = {**group_row(answer.group), "retry_policy": retry_policy(answer.group.retry)}
    return {**row, "created": answer.created, "altered": answer.altered}


def _sentence(answer: v1.CreateGroupResponse, *, dry_run: bool) -> str:
    verb = change_verb(answer, dry_run=dry_run)
    what = "in order" if answer.group.orderly else "concurrently"
    text = f"{verb} group {answer.group.name}: {what}, {answer.group.max_attempts} attempts"
    if not answer.group.consume_enable:
        text += ", consumption is off"
    return f"{text}."


def _progress(found: Sequence[v1.GroupProgress]) -> dict[str, Any]:
    """Return the sums of all broker groups; a client is connected to several of them."""
    return {
        "lag": sum(each.lag for each in found),
        "in_flight": sum(each.in_flight for each in found),
        "retries": sum(each.retries for each in found),
        "dead_letters": sum(each.dead_letters for each in found),
        "clients": max(each.clients for each in found),
    }
