"""RocketMQ's `mqadmin` commands for topics, groups and offsets, with their names and options.

They are hidden aliases of our own commands, for users and scripts that use `updateTopic`. `-n`
names the cluster by its nameserver, which is asked for a broker; `-c` and `-b` (cluster, broker)
are accepted and ignored: any node answers for the cluster (docs/formats/broker-semantics.md,
section 11.4).
"""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import click

from ...operations.errors import CliError, Exit
from .. import group as groups
from .. import offset as offsets
from .. import topic as topics
from ..cluster.broker_groups import broker_option
from ..confirm import plan_options
from ..options import ENDPOINT_KEY, endpoint_option
from ..output import keep_form

F = TypeVar("F", bound=Callable[..., Any])
_BOOL = click.BOOL
_DEFAULT_QUEUES = 8
_NOW = {"now", "currenttimemillis"}
# Bit 1 of Apache's permissions marks a template of topics.
_PERM_ALL = 6
NAMESERVER = ("-n", "--namesrvAddr")
CLUSTER = ("-c", "--clusterName")
BROKER = ("-b", "--brokerAddr")


def options_of(*without_effect: tuple[str, str], brokers: bool = True) -> Callable[[F], F]:
    """Return what adds `--endpoint`, `--output`, ignored options of mqadmin, and `--broker`."""

    def add(command: F) -> F:
        for letter, name in without_effect:
            kept = _nameserver if (letter, name) == NAMESERVER else ignored(letter, name)
            command = kept(command)
        # Without the short form `-o`: it has other meanings in mqadmin.
        forms = click.Choice(["table", "json", "yaml"])
        command = endpoint_option(
            click.option("--output", type=forms, default="table", callback=keep_form)(command)
        )
        return broker_option(command) if brokers else command

    return add


def common(command: F) -> F:
    """Add `--broker`, `--endpoint`, `--output`, and the ignored options of mqadmin."""
    return options_of(NAMESERVER, CLUSTER, BROKER)(command)


_topic = click.option("-t", "--topic", "name", required=True, help="Topic.")
_group = click.option("-g", "--groupName", "name", required=True, help="Consumer group.")


def split(attributes: str) -> list[str]:
    """Split `+a=b,-c` into a list."""
    return [part.strip() for part in attributes.split(",") if part.strip()]


def call(command: click.Command, **values: Any) -> Any:
    """Run the aliased command; omitted options have their defaults."""
    return click.get_current_context().invoke(command, **values)


def _nameserver(command: F) -> F:
    def keep(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> None:
        if value:
            ctx.meta[ENDPOINT_KEY] = partial(_broker_of, value)

    option = click.option(
        *NAMESERVER, callback=keep, expose_value=False, is_eager=True, help="Nameservers."
    )
    return option(command)


def _broker_of(nameservers: str) -> str:
    """Return client addresses of brokers that these nameservers know. Raises CliError."""
    from ..ha.replicas import Nameservers

    try:
        found = [one.client for one in Nameservers(nameservers).replicas() if one.client]
    except CliError as error:
        raise CliError(
            f"No answer from the nameserver of -n: {error} -n takes the gRPC port of `cometmq"
            " namesrv`; or name a broker with --endpoint HOST:PORT."
        ) from None
    if not found:
        raise CliError(f"The nameserver {nameservers} knows no broker.", Exit.NOT_FOUND)
    return ";".join(found)


def ignored(letter: str, name: str, *, is_flag: bool = False) -> Callable[[F], F]:
    """Return an option of mqadmin without effect here."""
    return click.option(letter, name, is_flag=is_flag, expose_value=False, hidden=True)


def alias(
    name: str,
    command: click.Command,
    sentence: str,
    *options: Callable[[Any], Any],
    shared: Callable[[Any], Any] = common,
    **fixed: Any,
) -> click.Command:
    """Return an alias: it runs a command with its own options and with the `fixed` values."""

    def run(**values: Any) -> Any:
        return call(command, **fixed, **values)

    run.__doc__ = sentence
    for option in reversed((*options, shared)):
        run = option(run)
    return click.command(name)(run)


@click.command("updateTopic")
@_topic
@click.option("-r", "--readQueueNums", "read", type=click.IntRange(1, 1024), help="Read queues.")
@click.option("-w", "--writeQueueNums", "write", type=click.IntRange(1, 1024), help="Write queues.")
@click.option("-p", "--perm", type=click.Choice(["0", "2", "4", "6", "7"]), help="2 W, 4 R, 6 RW.")
@click.option("-a", "--attributes", default="", help="+a=b,+c=d,-e")
@ignored("-o", "--order")
@ignored("-u", "--unit")
@ignored("-s", "--hasUnitSub")
@common
def update_topic(
    name: str,
    read: int | None,
    write: int | None,
    *,
    perm: str | None,
    attributes: str,
    endpoint: str,
    output: str,
) -> None:
    """Create or update a topic (`topic create`)."""
    call(
        topics.create,
        name=name,
        read_queues=read,
        write_queues=write,
        perm=int(perm) & _PERM_ALL if perm else None,
        attributes=split(attributes),
        endpoint=endpoint,
        output=output,
    )


@click.command("updateTopicPerm")
@_topic
@click.option("-p", "--perm", type=click.Choice(["2", "4", "6", "7"]), required=True)
@common
def update_topic_perm(name: str, perm: str, endpoint: str, output: str) -> None:
    """Change the permission of a topic (`topic alter --perm`)."""
    call(topics.alter, name=name, perm=int(perm) & _PERM_ALL, endpoint=endpoint, output=output)


delete_topic = alias(
    "deleteTopic",
    topics.delete,
    "Delete a topic (`topic delete`).",
    _topic,
    click.option("--accept-loss", is_flag=True, help="Delete the topic even if it holds messages."),
    plan_options,
)
topic_list = alias("topicList", topics.list_topics, "List topics (`topic list`).")

topic_status = alias(
    "topicStatus",
    topics.describe,
    "Show the offsets of a topic's queues (`topic describe`).",
    _topic,
)


@click.command("updateSubGroup")
@_group
@click.option("-s", "--consumeEnable", "consume_enable", type=_BOOL)
@click.option("-o", "--consumeMessageOrderly", "order", type=_BOOL)
@click.option("-r", "--retryMaxTimes", "retries", type=click.IntRange(0, 999))
@click.option("--attributes", default="", help="+a=b,+c=d,-e")
@ignored("-q", "--retryQueueNums")
@ignored("-m", "--consumeFromMinEnable")
@ignored("-d", "--consumeBroadcastEnable")
@ignored("-i", "--brokerId")
@ignored("-w", "--whichBrokerWhenConsumeSlowly")
@ignored("-a", "--notifyConsumerIdsChanged")
@common
def update_sub_group(
    name: str,
    consume_enable: bool | None,
    order: bool | None,
    retries: int | None,
    *,
    attributes: str,
    endpoint: str,
    output: str,
) -> None:
    """Create or update a group (`group create`). Retries exclude the first delivery."""
    call(
        groups.create,
        name=name,
        order=order,
        consume_enable=consume_enable,
        max_attempts=None if retries is None else retries + 1,
        attributes=split(attributes),
        endpoint=endpoint,
        output=output,
    )


@click.command("deleteSubGroup")
@_group
@click.option(
    "-r",
    "--removeOffset",
    "remove_offset",
    type=_BOOL,
    default=False,
    help="Also delete the offsets (default: false).",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Delete the group even if it has pending retries or dead letters.",
)
@plan_options
@common
def delete_sub_group(remove_offset: bool, **values: Any) -> None:
    """Delete a group (`group delete`)."""
    call(groups.delete, keep_offsets=not remove_offset, **values)


get_consumer_config = alias(
    "getConsumerConfig", groups.describe, "Show the settings of a group (`group describe`).", _group
)


@click.command("consumerProgress")
@click.option("-g", "--groupName", "group", default="", help="Consumer group (default: all).")
@click.option("-t", "--topicName", "topic", default="", help="Only this topic.")
@ignored("-s", "--showClientIP")
@common
def consumer_progress(group: str, topic: str, endpoint: str, output: str) -> None:
    """Show offsets and lag (`offset show`, or `group list`)."""
    if group:
        call(offsets.show, group=group, topic=topic, endpoint=endpoint, output=output)
    else:
        call(groups.list_groups, endpoint=endpoint, output=output)


@click.command("resetOffsetByTime")
@click.option("-g", "--group", required=True, help="Consumer group.")
@click.option("-t", "--topic", required=True, help="Topic.")
@click.option("-s", "--timestamp", required=True, help="now, EPOCH_MS or yyyy-MM-dd#HH:mm:ss:SSS.")
@click.option("-q", "--queue", type=click.IntRange(0), help="Only this queue.")
@click.option(
    "-o",
    "--offset",
    "queue_offset",
    type=click.IntRange(0),
    help="Offset to set, instead of a time.",
)
@ignored("-f", "--force")
@plan_options
@common
def reset_offset_by_time(timestamp: str, queue_offset: int | None, **values: Any) -> None:
    """Reset a group's offsets on a topic (`offset reset`)."""
    when = "" if queue_offset is not None else time_of(timestamp)
    call(offsets.reset, when=when, queue_offset=queue_offset, **values)


skip_accumulated_message = alias(
    "skipAccumulatedMessage",
    offsets.reset,
    "Skip to the newest message (`offset reset GROUP TOPIC latest`).",
    click.option("-g", "--group", required=True, help="Consumer group."),
    click.option("-t", "--topic", required=True, help="Topic."),
    ignored("-f", "--force"),
    plan_options,
    when="latest",
)


def time_of(text: str) -> str:
    """Convert a time of mqadmin to the form of `offset reset`. Raises CliError."""
    # Apache's broker takes every negative time as the end.
    if text.lower() in _NOW or (text.startswith("-") and text[1:].isdigit()):
        return "latest"
    if text.isdigit():
        return text
    try:
        moment = datetime.strptime(text, "%Y-%m-%d#%H:%M:%S:%f").astimezone()
    except ValueError:
        raise CliError(
            f"'{text}' is not now, EPOCH_MS or yyyy-MM-dd#HH:mm:ss:SSS.", Exit.USAGE
        ) from None
    return str(round(moment.timestamp() * 1000))
