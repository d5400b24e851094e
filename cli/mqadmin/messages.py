"""RocketMQ's `mqadmin` commands for messages, with their names and options.

Hidden aliases of `cometmq message`, like those of `messaging.py`. Options that choose a queue for a
send are refused: a client of the gRPC protocol leaves that to the broker.
"""

from typing import Any

import click

from ...operations.errors import CliError, Exit
from ..message import command as messages
from ..message.start import Start, start_position
from .messaging import CLUSTER, NAMESERVER, alias, call, ignored, options_of, time_of

_TOPIC = click.option("-t", "--topic", required=True, help="Topic.")
_NUMBER = click.IntRange(0)
_EVERYWHERE = options_of(NAMESERVER, CLUSTER)
_ONE_BROKER = options_of(NAMESERVER, brokers=False)

#: Commands of mqadmin end at the last message; a tail ends after this silence.
_SILENCE_MS = 1_000


@click.command("sendMessage")
@_TOPIC
@click.option("-p", "--body", required=True, help="The body.")
@click.option("-k", "--key", "keys", default="", help="Keys, separated by blanks.")
@click.option("-c", "--tags", "tag", default=None, help="The tag.")
@click.option("-b", "--broker", "broker", default="", help="Refused: the broker is not chosen.")
@click.option("-i", "--qid", "queue", default="", help="Refused: the queue is not chosen.")
@ignored("-m", "--msgTraceEnable")
@_ONE_BROKER
def send_message(*, keys: str, broker: str, queue: str, **values: Any) -> int:
    """Send a message (`message send`)."""
    if broker or queue:
        raise CliError("The broker chooses the queue of a message: omit -b and -i.", Exit.USAGE)
    sent: int = call(messages.send, keys=tuple(keys.split()), **values)
    return sent


query_by_id = alias(
    "queryMsgById",
    messages.query,
    "Find a message by its id (`message query --id`).",
    click.option("-i", "--msgId", "message_id", required=True, help="Message id."),
    click.option("-t", "--topic", default="", help="Topic."),
    shared=_EVERYWHERE,
)
query_by_key = alias(
    "queryMsgByKey",
    messages.query,
    "Find messages by key (`message query --key`).",
    _TOPIC,
    click.option("-k", "--msgKey", "key", required=True, help="Key."),
    click.option("-b", "--beginTimestamp", "begin", type=_NUMBER, default=0, help="In ms."),
    click.option("-e", "--endTimestamp", "end", type=_NUMBER, default=0, help="In ms."),
    click.option("-m", "--maxNum", "count", type=click.IntRange(1), help="Largest number."),
    shared=_EVERYWHERE,
)
query_by_unique_key = alias(
    "queryMsgByUniqueKey",
    messages.query,
    "Find messages by unique id (`message query --unique-key`).",
    _TOPIC,
    click.option("-i", "--msgId", "unique_key", required=True, help="Unique id."),
    ignored("-a", "--showAll", is_flag=True),
    shared=_EVERYWHERE,
)
query_by_offset = alias(
    "queryMsgByOffset",
    messages.get,
    "Show the message at an offset of a queue (`message get`).",
    _TOPIC,
    click.option("-b", "--brokerName", "broker", required=True, help="Broker group."),
    click.option("-i", "--queueId", "queue", type=_NUMBER, required=True, help="Queue."),
    click.option("-o", "--offset", type=_NUMBER, required=True, help="Queue offset."),
    shared=_ONE_BROKER,
)
query_trace = alias(
    "queryMsgTraceById",
    messages.story,
    "Show what happened to a message (`message story`).",
    click.option("-i", "--msgId", "message_id", required=True, help="Message id."),
    click.option("-t", "--topic", default="", help="Topic of the message."),
    shared=options_of(NAMESERVER),
)


@click.command("printMsg")
@_TOPIC
@click.option("-b", "--beginTimestamp", "begin", default="", help="Earliest store time.")
@ignored("-d", "--printBody")
@_ONE_BROKER
def print_messages(topic: str, begin: str, **values: Any) -> None:
    """Print the messages of a topic (`message tail`)."""
    call(messages.tail, topic=topic, start=_start(begin), timeout=_SILENCE_MS, **values)


@click.command("consumeMessage")
@_TOPIC
@click.option("-c", "--MessageNumber", "count", type=click.IntRange(1), default=128)
@click.option("-s", "--beginTimestamp", "begin", default="", help="Earliest store time.")
@_ONE_BROKER
def consume_message(topic: str, begin: str, **values: Any) -> None:
    """Print messages of a topic, without a group (`message tail`)."""
    call(messages.tail, topic=topic, start=_start(begin), timeout=_SILENCE_MS, **values)


def _start(text: str) -> Start:
    """Return the start position for a time of mqadmin; empty: the beginning. Raises CliError."""
    when = time_of(text) if text else "beginning"
    return start_position("end" if when == "latest" else when)
