"""`cometmq group`: create, alter, delete, list, describe consumer groups."""

from collections.abc import Mapping
from typing import Any

import click

from ..proto import paths, v1
from .confirm import go_on, plan_options
from .connection import Connection
from .errors import CliError, Exit
from .metadata import attribute_option, attribute_texts, change_verb, with_options
from .options import endpoint_option, output_option
from .output import print_table, show_fields, show_json, show_rows
from .values import duration_ms, duration_text, durations_ms

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
        type=duration_ms,
        metavar="TIME",
        help="Initial delay (exponential policy).",
    ),
    click.option(
        "--retry-max",
        type=duration_ms,
        metavar="TIME",
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
@click.argument("name")
@_settings
@endpoint_option
@output_option
def create(*, name: str, endpoint: str, output: str, **settings: Any) -> None:
    """Create consumer group NAME, or update an existing group with the given options."""
    request = _request(name, settings)
    with Connection(endpoint) as connection:
        answer = connection.call(paths.CREATE_GROUP, request, v1.CreateGroupResponse)
    _show(answer, output)


@group.command()
@click.argument("name")
@_settings
@click.option("--dry-run", is_flag=True, help="Show the result without changing anything.")
@endpoint_option
@output_option
def alter(*, name: str, dry_run: bool, endpoint: str, output: str, **settings: Any) -> None:
    """Change the given settings of consumer group NAME."""
    request = _request(name, settings)
    request.must_exist = True
    request.dry_run = dry_run
    with Connection(endpoint) as connection:
        answer = connection.call(paths.CREATE_GROUP, request, v1.CreateGroupResponse)
    _show(answer, output, dry_run=dry_run)


@group.command()
@click.argument("name")
@click.option(
    "--keep-offsets", is_flag=True, help="Keep the offsets for a later group of this name."
)
@plan_options
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Delete the group even if it has pending retries or dead letters.",
)
@endpoint_option
@output_option
def delete(
    *,
    name: str,
    keep_offsets: bool,
    dry_run: bool,
    yes: bool,
    accept_loss: bool,
    endpoint: str,
    output: str,
) -> None:
    """Delete consumer group NAME with its offsets, retry topics and dead letters."""
    delete_group(
        v1.DeleteGroupRequest(name=name, keep_offsets=keep_offsets, accept_loss=accept_loss),
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
    with Connection(endpoint) as connection:
        plan = connection.call(paths.DELETE_GROUP, asking, v1.DeleteGroupResponse)
        document = {
            "topics": list(plan.topics),
            "messages": plan.messages,
            "in_flight": plan.in_flight,
            "offsets_on": list(plan.offsets),
            "clients": plan.clients,
        }
        if plan.messages and not request.accept_loss and not dry_run:
            raise CliError(
                f"Group {name} has {plan.messages} pending retries and dead letters. "
                "Use --accept-loss to delete them."
            )
        if not go_on(document, f"Delete group {name}?", output, dry_run=dry_run, yes=yes):
            return
        connection.call(paths.DELETE_GROUP, request, v1.DeleteGroupResponse)
    if output == "table":
        click.echo(f"Deleted group {name}.")


@group.command("list")
@click.option("--system", is_flag=True, help="Include the broker's system groups.")
@endpoint_option
@output_option
def list_groups(system: bool, endpoint: str, output: str) -> None:
    """List all consumer groups, with their lag."""
    request = v1.ListGroupsRequest(include_system=system)
    rows: list[dict[str, object]] = []
    with Connection(endpoint) as connection:
        pages = connection.pages(paths.LIST_GROUPS, request, v1.ListGroupsResponse, "groups")
        for page in pages:
            rows += [
                {**_row(config), **_progress(progress)}
                for config, progress in zip(page.groups, page.progress, strict=True)
            ]
    show_rows(rows, output, empty="There are no consumer groups.")


@group.command()
@click.argument("name")
@click.option("--topic", default="", help="Only this topic.")
@endpoint_option
@output_option
def describe(name: str, topic: str, endpoint: str, output: str) -> None:
    """Show group NAME: settings, lag, messages in flight, retries, dead letters, clients."""
    request = v1.DescribeGroupRequest(name=name, topic=topic)
    with Connection(endpoint) as connection:
        answer = connection.call(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse)
    fields = {
        **_row(answer.group),
        "retry_policy": _policy(answer.group.retry),
        **_progress(answer.progress),
    }
    fields.pop("clients")  # listed in a table of their own
    queues = [queue_row(queue) for queue in answer.queues]
    missing = [
        {
            "topic": queue.topic,
            "broker": queue.broker,
            "queue": queue.queue_id,
            "missing_offset": message.offset,
            "file": message.file,
        }
        for queue in answer.queues
        for message in queue.missing
    ]
    clients: list[dict[str, object]] = [
        {
            "client": client.client_id,
            "language": client.language,
            "version": client.version,
            "address": client.peer,
            "seen_ms_ago": client.last_seen_ms_ago,
        }
        for client in answer.clients
    ]
    if output == "json":
        attributes = dict(sorted(answer.group.attributes.items()))
        tables = {"queues": queues, "missing": missing, "clients": clients}
        show_json({**fields, "attributes": attributes, **tables})
        return
    show_fields({**fields, "attributes": attribute_texts(answer.group)}, output)
    for client in clients:
        client["seen"] = f"{int(str(client.pop('seen_ms_ago'))) / 1_000:.1f} s ago"
    for rows in (queues, missing, clients):
        if rows:
            print_table(rows)


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


def _policy(retry: v1.GroupRetry) -> str:
    if retry.delays_ms:
        return f"customized: {', '.join(map(duration_text, retry.delays_ms))}"
    if retry.initial_ms:
        times = f"x{retry.multiplier:g}"
        first, longest = duration_text(retry.initial_ms), duration_text(retry.max_ms)
        return f"exponential: {first} {times} up to {longest}"
    return "customized: the broker's table"


def _show(answer: v1.CreateGroupResponse, output: str, *, dry_run: bool = False) -> None:
    if output == "json":
        row = {**_row(answer.group), "retry_policy": _policy(answer.group.retry)}
        show_json({**row, "created": answer.created, "altered": answer.altered})
        return
    verb = change_verb(answer, dry_run=dry_run)
    what = "in order" if answer.group.orderly else "concurrently"
    text = f"{verb} group {answer.group.name}: {what}, {answer.group.max_attempts} attempts"
    if not answer.group.consume_enable:
        text += ", consumption is off"
    click.echo(f"{text}.")


def _row(config: v1.GroupConfig) -> dict[str, object]:
    return {
        "group": config.name,
        "order": config.orderly,
        "max_attempts": config.max_attempts,
        "retry_queues": config.retry_queues,
        "consume_enable": config.consume_enable,
    }


def _progress(progress: v1.GroupProgress) -> dict[str, object]:
    return {
        "lag": progress.lag,
        "in_flight": progress.in_flight,
        "retries": progress.retries,
        "dead_letters": progress.dead_letters,
        "clients": progress.clients,
    }
