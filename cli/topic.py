"""`cometmq topic`: create, alter, delete, list and describe topics."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import click

from ..operations.broker_groups import BrokerGroups, Outcome, answers, distinct
from ..operations.errors import CliError, Exit
from ..operations.topic_values import TOPIC_TYPE_NAMES, TOPIC_TYPES, permission_name
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
from .metadata import PERMISSION_METAVAR, attribute_option, change_verb, permission, with_options
from .names import topics
from .options import endpoint_option, output_option
from .output import show_rows
from .times import present_ms

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
@click.argument("name", shell_complete=topics)
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
@broker_option
@endpoint_option
@output_option
def create(*, name: str, endpoint: str, output: str, **settings: Any) -> None:
    """Create topic NAME, or update an existing topic with the given options.

    \b
    cometmq topic create orders --queues 8
    cometmq topic create steps --type fifo
    """
    request = _request(name, settings)
    with broker_groups(endpoint) as groups:
        if settings["kind"]:
            looked = _check_type(groups, request, settings["kind"])
            outcomes = groups.carry_out(paths.CREATE_TOPIC, request, v1.CreateTopicResponse, looked)
        else:
            outcomes = groups.each(paths.CREATE_TOPIC, request, v1.CreateTopicResponse)
    _show(outcomes, output)


def _check_type(
    groups: BrokerGroups, wanted: v1.CreateTopicRequest, kind: str
) -> list[Outcome[v1.CreateTopicResponse]]:
    """Raise CliError if the topic exists with another type in a group; return what they answered.

    It asks with a dry run of a creation, which needs no other right than the creation.
    """
    request = v1.CreateTopicRequest(name=wanted.name, dry_run=True)
    looked = groups.each(paths.CREATE_TOPIC, request, v1.CreateTopicResponse)
    for found in (one.answer for one in looked if one.answer is not None):
        present = TOPIC_TYPE_NAMES.get(found.topic.message_type, "normal")
        if not found.created and present != kind:
            raise CliError(
                f"Topic {wanted.name} exists with type {present}. To change its type, use `cometmq "
                f"topic alter {wanted.name} --type {kind}`."
            )
    return looked


@topic.command()
@click.argument("name", shell_complete=topics)
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
@broker_option
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

    \b
    cometmq topic alter orders --queues 12
    """
    request = _request(name, settings)
    request.must_exist = True
    request.accept_loss = accept_loss
    request.dry_run = dry_run
    with broker_groups(endpoint) as groups:
        outcomes = groups.each(paths.CREATE_TOPIC, request, v1.CreateTopicResponse)
    _show(outcomes, output, dry_run=dry_run)


@topic.command()
@click.argument("name", shell_complete=topics)
@plan_options
@click.option("--accept-loss", is_flag=True, help="Delete it although it holds messages.")
@broker_option
@endpoint_option
@output_option
def delete(
    *, name: str, dry_run: bool, yes: bool, accept_loss: bool, endpoint: str, output: str
) -> None:
    """Delete topic NAME with its groups' offsets and retry topics.

    A topic that holds messages is deleted only with --accept-loss.

    \b
    cometmq topic delete orders --dry-run
    """
    delete_topic(name, endpoint, output, dry_run=dry_run, yes=yes, accept_loss=accept_loss)


def delete_topic(
    name: str, endpoint: str, output: str, *, dry_run: bool, yes: bool, accept_loss: bool
) -> None:
    """Print the plan, ask for confirmation, delete."""
    request = v1.DeleteTopicRequest(name=name, dry_run=True)
    with broker_groups(endpoint) as groups:
        looked = groups.each(paths.DELETE_TOPIC, request, v1.DeleteTopicResponse)
        plans = planned(looked)
        messages = sum(plan.messages for _, plan in plans)
        document = {
            **named(plans),
            "topics": distinct(topic for _, plan in plans for topic in plan.topics),
            "messages": messages,
            "in_flight": sum(plan.in_flight for _, plan in plans),
            "groups_that_lose_offsets": distinct(
                group for _, plan in plans for group in plan.groups
            ),
        }
        if messages and not accept_loss and not dry_run:
            held = "1 message" if messages == 1 else f"{messages} messages"
            raise CliError(
                f"Topic {name} holds {held}. Use --accept-loss to delete it with its messages."
            )
        if not go_on(document, f"Delete topic {name}?", output, dry_run=dry_run, yes=yes):
            check_answered(looked)  # a dry run
            return
        request = v1.DeleteTopicRequest(name=name, accept_loss=accept_loss)
        outcomes = groups.carry_out(paths.DELETE_TOPIC, request, v1.DeleteTopicResponse, looked)
    show_done(outcomes, f"Deleted topic {name}.", output)


@topic.command("list")
@click.option("--system", is_flag=True, help="Include the broker's system topics and retry topics.")
@broker_option
@endpoint_option
@output_option
def list_topics(system: bool, endpoint: str, output: str) -> None:
    """List all topics with their messages, rate and last write.

    \b
    cometmq topic list --system -o json
    """
    request = v1.ListTopicsRequest(include_system=system, with_traffic=True)
    with broker_groups(endpoint) as groups:
        outcomes = groups.pages(paths.LIST_TOPICS, request, v1.ListTopicsResponse, "topics")
    found = answers(outcomes)
    traffic = {
        (broker, config.name): each
        for broker, pages in found
        for page in pages
        for config, each in zip(page.topics, page.traffic, strict=False)
    }
    rows = merged(
        (name, [_row(config) for page in pages for config in page.topics]) for name, pages in found
    )
    listed = []
    for row in rows:
        at = [traffic.get((name, row["topic"])) for name in row.get("brokers", [""])]
        listed.append({"topic": row.pop("topic"), "type": row.pop("type"), **_sums(at), **row})
    if output == "table":
        now_ms = present_ms()
        for row in listed:
            last_ms = row.pop("last_write_ms")
            row["last_write_ms_ago"] = now_ms - last_ms if last_ms else "-"
    show_rows(
        listed, output, empty="There are no topics. Create one with `cometmq topic create NAME`."
    )
    note_failures(outcomes)


@topic.command()
@click.argument("name", shell_complete=topics)
@click.option("--lite-topics", default="", metavar="GLOB", help='Those of a parent; "*": all.')
@broker_option
@endpoint_option
@output_option
def describe(name: str, lite_topics: str, endpoint: str, output: str) -> None:
    """Show topic NAME and the state of its queues, or with --lite-topics that of its lite topics.

    A lite topic has a row for each group that has subscribed to it, the largest lag first.

    \b
    cometmq topic describe orders
    cometmq topic describe chats --lite-topics "*"
    """
    request = v1.DescribeTopicRequest(name=name, lite_topics=lite_topics)
    with broker_groups(endpoint) as groups:
        outcomes = groups.each(paths.DESCRIBE_TOPIC, request, v1.DescribeTopicResponse)
    found = answers(outcomes)
    queues = [
        {
            "broker": queue.broker,
            "queue": queue.queue_id,
            "min_offset": queue.min_offset,
            "max_offset": queue.max_offset,
            "messages": queue.max_offset - queue.min_offset,
            "last_store_ms": queue.last_store_ms,
        }
        for _, answer in found
        for queue in answer.queues
    ]
    settings = merged((name, [topic_settings(answer.topic)]) for name, answer in found)
    if lite_topics:
        lite = [row for broker, answer in found for row in _lite_rows(broker, answer)]
        lite.sort(key=lambda row: (-(row["lag"] or 0), row["lite_topic"]))
        show_rows(lite, output, empty=f"Topic {name} has no lite topic {lite_topics}.")
    else:
        show_described(settings, {"queues": queues}, output)
        is_lite = any(answer.topic.message_type == TOPIC_TYPES["lite"] for _, answer in found)
        if is_lite and output in ("table", "wide"):
            click.echo('cometmq: Its lite topics and their lag: --lite-topics "*"', err=True)
    note_failures(outcomes)


def _lite_rows(broker: str, answer: v1.DescribeTopicResponse) -> Iterator[dict[str, Any]]:
    for lite in answer.lite_topics:
        for group in lite.groups or (None,):
            yield {
                "lite_topic": lite.name,
                "messages": lite.messages,
                "last_write_ms": lite.last_store_ms,
                "group": group.group if group is not None else "",
                "lag": group.lag if group is not None else None,
                "in_flight": group.in_flight if group is not None else None,
                "broker": broker or answer.queues[0].broker,
            }


def _sums(found: Sequence[v1.TopicTraffic | None]) -> dict[str, Any]:
    """Return the fields of all broker groups; unknown if one is of an earlier version."""
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return dict.fromkeys(("messages", "sent_per_s", "last_write_ms"))
    return {
        "messages": sum(each.messages for each in known),
        "sent_per_s": round(sum(each.sent_per_s for each in known), 1),
        "last_write_ms": max(each.last_store_ms for each in known),
    }


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


def _show(
    outcomes: Sequence[Outcome[v1.CreateTopicResponse]], output: str, *, dry_run: bool = False
) -> None:
    show_changes(outcomes, output, partial(_sentence, dry_run=dry_run), _document)


def _document(answer: v1.CreateTopicResponse) -> dict[str, object]:
    return {**_row(answer.topic), "created": answer.created, "altered": answer.altered}


def _sentence(answer: v1.CreateTopicResponse, *, dry_run: bool) -> str:
    row = _row(answer.topic)
    verb = change_verb(answer, dry_run=dry_run)
    read, write = answer.topic.read_queues, answer.topic.write_queues
    queues = f"{write} queues" if read == write else f"{write} write queues, {read} read queues"
    text = f"{verb} topic {answer.topic.name}: {row['type']}, {queues}"
    if answer.topic.perm & 6 != 6:
        text += f", permission: {row['permission']}"
    return f"{text}."


def topic_settings(config: v1.TopicConfig) -> dict[str, object]:
    """Return the settings of a topic as fields."""
    return {**_row(config), "attributes": dict(sorted(config.attributes.items()))}


def _row(config: v1.TopicConfig) -> dict[str, object]:
    return {
        "topic": config.name,
        "type": TOPIC_TYPE_NAMES.get(config.message_type, "normal"),
        "read_queues": config.read_queues,
        "write_queues": config.write_queues,
        "permission": permission_name(config.perm),
    }
