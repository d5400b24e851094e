"""`cometmq topic`: create, list, describe. Topics live in the log of every group (design, 8.3)."""

import click

from ..proto import paths, v1, v2
from .connection import Connection
from .options import endpoint_option, output_option
from .output import print_table, show_fields, show_json, show_rows

_MIXED = -1
TYPES = {
    "normal": int(v2.NORMAL),
    "fifo": int(v2.FIFO),
    "delay": int(v2.DELAY),
    "transaction": int(v2.TRANSACTION),
}
_TYPE_NAMES = {number: name for name, number in TYPES.items()} | {_MIXED: "mixed"}
_PERMISSIONS = {0: "none", 2: "write", 4: "read", 6: "read, write"}


@click.group()
def topic() -> None:
    """Create, list and describe topics."""


@topic.command()
@click.argument("name")
@click.option(
    "--type",
    "kind",
    type=click.Choice(list(TYPES)),
    default="normal",
    show_default=True,
    help="Type of its messages.",
)
@click.option(
    "--queues",
    type=click.IntRange(1, 1024),
    default=8,
    show_default=True,
    help="Number of queues in each broker group.",
)
@endpoint_option
@output_option
def create(name: str, kind: str, queues: int, endpoint: str, output: str) -> None:
    """Create topic NAME, or change the type and queues of one that is there."""
    request = v1.CreateTopicRequest(name=name, message_type=TYPES[kind], queues=queues)
    with Connection(endpoint) as connection:
        answer = connection.call(paths.CREATE_TOPIC, request, v1.CreateTopicResponse)
    if output == "json":
        show_json({**_row(answer.topic), "created": answer.created})
        return
    if answer.created:
        click.echo(f"Topic {name} is created: {kind}, {queues} queues.")
    else:
        click.echo(f"Topic {name} was there already; it is {kind} with {queues} queues.")


@topic.command("list")
@click.option("--system", is_flag=True, help="With the broker's own topics.")
@endpoint_option
@output_option
def list_topics(system: bool, endpoint: str, output: str) -> None:
    """List all topics."""
    request = v1.ListTopicsRequest(include_system=system)
    with Connection(endpoint) as connection:
        answer = connection.call(paths.LIST_TOPICS, request, v1.ListTopicsResponse)
    rows = sorted((_row(config) for config in answer.topics), key=lambda row: str(row["topic"]))
    show_rows(rows, output, empty="There are no topics. `cometmq topic create NAME` makes one.")


@topic.command()
@click.argument("name")
@endpoint_option
@output_option
def describe(name: str, endpoint: str, output: str) -> None:
    """Show topic NAME and the state of its queues."""
    request = v1.DescribeTopicRequest(name=name)
    with Connection(endpoint) as connection:
        answer = connection.call(paths.DESCRIBE_TOPIC, request, v1.DescribeTopicResponse)
    queues = [
        {
            "broker": queue.broker,
            "queue": queue.queue_id,
            "min_offset": queue.min_offset,
            "max_offset": queue.max_offset,
            "messages": queue.max_offset - queue.min_offset,
            "last_store_ms": queue.last_store_ms,
        }
        for queue in answer.queues
    ]
    if output == "json":
        show_json({**_row(answer.topic), "queues": queues})
        return
    show_fields(_row(answer.topic), output)
    if queues:
        print_table(queues)


def _row(config: v1.TopicConfig) -> dict[str, object]:
    return {
        "topic": config.name,
        "type": _TYPE_NAMES.get(config.message_type, "normal"),
        "read_queues": config.read_queues,
        "write_queues": config.write_queues,
        "permission": _PERMISSIONS.get(config.perm & 6, "none"),
    }
