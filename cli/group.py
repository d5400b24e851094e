"""`cometmq group`: create, list, describe consumer groups."""

import click

from ..proto import paths, v1
from .connection import Connection
from .options import endpoint_option, output_option
from .output import print_table, show_fields, show_json, show_rows


@click.group()
def group() -> None:
    """Create, list and describe consumer groups."""


@group.command()
@click.argument("name")
@click.option(
    "--order",
    type=click.BOOL,
    default=False,
    show_default=True,
    metavar="true|false",
    help="Deliver the messages of one queue in order.",
)
@click.option(
    "--max-attempts",
    type=click.IntRange(1, 1_000),
    default=None,
    help="Deliveries of one message before it goes to the dead-letter topic (default: the broker's).",
)
@endpoint_option
@output_option
def create(name: str, order: bool, max_attempts: int | None, endpoint: str, output: str) -> None:
    """Create consumer group NAME, or change one that is there."""
    request = v1.CreateGroupRequest(name=name, orderly=order, max_attempts=max_attempts or 0)
    with Connection(endpoint) as connection:
        answer = connection.call(paths.CREATE_GROUP, request, v1.CreateGroupResponse)
    if output == "json":
        show_json({**_row(answer.group), "created": answer.created})
        return
    what = "in order" if answer.group.orderly else "concurrently"
    verb = "is created" if answer.created else "was there already"
    click.echo(f"Group {name} {verb}: {what}, {answer.group.max_attempts} attempts.")


@group.command("list")
@click.option("--system", is_flag=True, help="With the broker's own groups.")
@endpoint_option
@output_option
def list_groups(system: bool, endpoint: str, output: str) -> None:
    """List all consumer groups."""
    request = v1.ListGroupsRequest(include_system=system)
    with Connection(endpoint) as connection:
        answer = connection.call(paths.LIST_GROUPS, request, v1.ListGroupsResponse)
    rows = sorted((_row(config) for config in answer.groups), key=lambda row: str(row["group"]))
    show_rows(rows, output, empty="There are no consumer groups.")


@group.command()
@click.argument("name")
@click.option("--topic", default="", help="Only this topic.")
@endpoint_option
@output_option
def describe(name: str, topic: str, endpoint: str, output: str) -> None:
    """Show group NAME: offsets, lag, messages in flight, clients."""
    request = v1.DescribeGroupRequest(name=name, topic=topic)
    with Connection(endpoint) as connection:
        answer = connection.call(paths.DESCRIBE_GROUP, request, v1.DescribeGroupResponse)
    fields = {**_row(answer.group), "lag": answer.lag, "in_flight": answer.in_flight}
    queues = [
        {
            "topic": queue.topic,
            "broker": queue.broker,
            "queue": queue.queue_id,
            "consumer_offset": queue.consumer_offset,
            "max_offset": queue.max_offset,
            "lag": queue.lag,
            "in_flight": queue.in_flight,
        }
        for queue in answer.queues
    ]
    clients = [
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
        show_json({**fields, "queues": queues, "clients": clients})
        return
    show_fields(fields, output)
    for rows in (queues, clients):
        if rows:
            print_table(rows)


def _row(config: v1.GroupConfig) -> dict[str, object]:
    return {
        "group": config.name,
        "order": config.orderly,
        "max_attempts": config.max_attempts,
        "retry_queues": config.retry_queues,
    }
