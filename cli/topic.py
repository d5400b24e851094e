"""`cometmq topic`: create, alter, delete, list and describe topics."""

from collections.abc import Mapping
from typing import Any

import click

from ..proto import paths, v1
from .confirm import go_on, plan_options
from .connection import Connection
from .errors import CliError, Exit
from .metadata import attribute_option, attribute_texts, change_verb, with_options
from .options import endpoint_option, output_option
from .output import print_table, show_fields, show_json, show_rows, timed
from .values import PERMISSION_METAVAR, TOPIC_TYPE_NAMES, TOPIC_TYPES, permission, permission_name

_COUNT = click.IntRange(1, 1024)
_DEFAULT_QUEUES = 8

#: The options of `create` and `alter`; an omitted option keeps the topic's value.
_settings = with_options(
    click.option("--read-queues", type=_COUNT, help="Queues that consumers read."),
    click.option("--write-queues", type=_COUNT, help="Queues that producers send to."),
    click.option(
        "--perm", type=permission, metavar=PERMISSION_METAVAR, help="Permission of clients."
    ),
    attribute_option("+lite.topic.expiration=60"),
)


@click.group()
def topic() -> None:
    """Create, alter, delete, list and describe topics."""


@topic.command()
@click.argument("name")
@click.option(
    "--type",
    "kind",
    type=click.Choice(list(TOPIC_TYPES), case_sensitive=False),
    help="Message type (default: normal). An existing topic keeps its type: see `topic alter`.",
)
@click.option(
    "--queues",
    type=_COUNT,
    help=f"Queues in each broker group (default: {_DEFAULT_QUEUES}; existing topic: unchanged).",
)
@_settings
@endpoint_option
@output_option
def create(*, name: str, endpoint: str, output: str, **settings: Any) -> None:
    """Create topic NAME, or update an existing topic with the given options."""
    request = _request(name, settings)
    with Connection(endpoint) as connection:
        if settings["kind"]:
            _check_type(connection, request, settings["kind"])
        answer = connection.call(paths.CREATE_TOPIC, request, v1.CreateTopicResponse)
    _show(answer, output)


def _check_type(connection: Connection, wanted: v1.CreateTopicRequest, kind: str) -> None:
    """Raise CliError if the topic exists with another type.

    It asks with a dry run of a creation, which needs no other right than the creation.
    """
    request = v1.CreateTopicRequest(name=wanted.name, dry_run=True)
    found = connection.call(paths.CREATE_TOPIC, request, v1.CreateTopicResponse)
    present = TOPIC_TYPE_NAMES.get(found.topic.message_type, "normal")
    if not found.created and present != kind:
        raise CliError(
            f"Topic {wanted.name} exists with type {present}. To change its type, use `cometmq "
            f"topic alter {wanted.name} --type {kind}`."
        )


@topic.command()
@click.argument("name")
@click.option(
    "--type",
    "kind",
    type=click.Choice(list(TOPIC_TYPES), case_sensitive=False),
    help="Message type.",
)
@click.option("--queues", type=_COUNT, help="Number of queues; can only be increased.")
@_settings
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Lower --read-queues even if unconsumed messages become unreadable.",
)
@click.option("--dry-run", is_flag=True, help="Show the result without changing anything.")
@endpoint_option
@output_option
def alter(
    *,
    name: str,
    accept_loss: bool,
    dry_run: bool,
    endpoint: str,
    output: str,
    **settings: Any,
) -> None:
    """Change the given settings of topic NAME.

    To remove queues, lower --write-queues, let consumers finish, then lower --read-queues.
    """
    request = _request(name, settings)
    request.must_exist = True
    request.accept_loss = accept_loss
    request.dry_run = dry_run
    with Connection(endpoint) as connection:
        answer = connection.call(paths.CREATE_TOPIC, request, v1.CreateTopicResponse)
    _show(answer, output, dry_run=dry_run)


@topic.command()
@click.argument("name")
@plan_options
@click.option("--accept-loss", is_flag=True, help="Delete it although it holds messages.")
@endpoint_option
@output_option
def delete(
    *, name: str, dry_run: bool, yes: bool, accept_loss: bool, endpoint: str, output: str
) -> None:
    """Delete topic NAME with its groups' offsets and retry topics.

    A topic that holds messages is deleted only with --accept-loss.
    """
    delete_topic(name, endpoint, output, dry_run=dry_run, yes=yes, accept_loss=accept_loss)


def delete_topic(
    name: str, endpoint: str, output: str, *, dry_run: bool, yes: bool, accept_loss: bool
) -> None:
    """Print the plan, ask for confirmation, delete."""
    request = v1.DeleteTopicRequest(name=name, dry_run=True)
    with Connection(endpoint) as connection:
        plan = connection.call(paths.DELETE_TOPIC, request, v1.DeleteTopicResponse)
        document = {
            "topics": list(plan.topics),
            "messages": plan.messages,
            "in_flight": plan.in_flight,
            "groups_that_lose_offsets": list(plan.groups),
        }
        if plan.messages and not accept_loss and not dry_run:
            raise CliError(
                f"Topic {name} holds {plan.messages} messages. Use --accept-loss to delete it with "
                "its messages."
            )
        if not go_on(document, f"Delete topic {name}?", output, dry_run=dry_run, yes=yes):
            return
        request = v1.DeleteTopicRequest(name=name, accept_loss=accept_loss)
        connection.call(paths.DELETE_TOPIC, request, v1.DeleteTopicResponse)
    if output == "table":
        click.echo(f"Deleted topic {name}.")


@topic.command("list")
@click.option("--system", is_flag=True, help="Include the broker's system topics and retry topics.")
@endpoint_option
@output_option
def list_topics(system: bool, endpoint: str, output: str) -> None:
    """List all topics."""
    request = v1.ListTopicsRequest(include_system=system)
    with Connection(endpoint) as connection:
        pages = connection.pages(paths.LIST_TOPICS, request, v1.ListTopicsResponse, "topics")
        rows = [_row(config) for page in pages for config in page.topics]
    show_rows(
        rows, output, empty="There are no topics. Create one with `cometmq topic create NAME`."
    )


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
        attributes = dict(sorted(answer.topic.attributes.items()))
        show_json({**_row(answer.topic), "attributes": attributes, "queues": queues})
        return
    show_fields({**_row(answer.topic), "attributes": attribute_texts(answer.topic)}, output)
    if queues:
        print_table([timed(queue) for queue in queues])


def _request(name: str, settings: Mapping[str, Any]) -> v1.CreateTopicRequest:
    queues, read, write = (settings[key] for key in ("queues", "read_queues", "write_queues"))
    if queues and (read or write):
        raise CliError(
            "--queues sets both numbers: omit --read-queues and --write-queues.", Exit.USAGE
        )
    kind = settings["kind"]
    return v1.CreateTopicRequest(
        name=name,
        message_type=TOPIC_TYPES[kind] if kind else 0,
        queues=queues or 0,
        perm=settings["perm"],
        read_queues=read or 0,
        write_queues=write or 0,
        attributes=settings["attributes"],
    )


def _show(answer: v1.CreateTopicResponse, output: str, *, dry_run: bool = False) -> None:
    row = _row(answer.topic)
    if output == "json":
        show_json({**row, "created": answer.created, "altered": answer.altered})
        return
    verb = change_verb(answer, dry_run=dry_run)
    read, write = answer.topic.read_queues, answer.topic.write_queues
    queues = f"{write} queues" if read == write else f"{write} write queues, {read} read queues"
    text = f"{verb} topic {answer.topic.name}: {row['type']}, {queues}"
    if answer.topic.perm & 6 != 6:
        text += f", permission: {row['permission']}"
    click.echo(f"{text}.")


def _row(config: v1.TopicConfig) -> dict[str, object]:
    return {
        "topic": config.name,
        "type": TOPIC_TYPE_NAMES.get(config.message_type, "normal"),
        "read_queues": config.read_queues,
        "write_queues": config.write_queues,
        "permission": permission_name(config.perm),
    }
