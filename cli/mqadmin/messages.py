"""RocketMQ's `mqadmin` commands for messages, with their names and options.

Hidden aliases of `cometmq message`, like those of `messaging.py`. Options that choose a queue for a
send are refused: a client of the gRPC protocol leaves that to the broker.
"""

from typing import Any

import click

from ...operations.errors import CliError, Exit
from ..message import command as messages
from ..message.start import Start, start_position
from .messaging import CLUSTER, NAMESERVER, call, options_of, time_of

#: Commands of mqadmin end at the last message; a tail ends after this silence.
_SILENCE_MS = 1_000


@click.command("sendMessage")
@click.option("-t", "--topic", required=True, help="Topic.")
@click.option("-p", "--body", required=True, help="The body.")
@click.option("-k", "--key", "keys", default="", help="Keys, separated by blanks.")
@click.option("-c", "--tags", "tag", default=None, help="The tag.")
@click.option("-b", "--broker", "broker", default="", help="Refused: the broker is not chosen.")
@click.option("-i", "--qid", "queue", default="", help="Refused: the queue is not chosen.")
@click.option("-m", "--msgTraceEnable", expose_value=False, hidden=True)
@options_of(NAMESERVER, brokers=False)
def send_message(*, keys: str, broker: str, queue: str, **values: Any) -> int:
    """Send a message (`message send`)."""
    if broker or queue:
        raise CliError("The broker chooses the queue of a message: omit -b and -i.", Exit.USAGE)
    sent: int = call(messages.send, keys=tuple(keys.split()), **values)
    return sent


@click.command("queryMsgById")
@click.option("-i", "--msgId", "message_id", required=True, help="Message id.")
@click.option("-t", "--topic", default="", help="Topic.")
@options_of(NAMESERVER, CLUSTER)
def query_by_id(**values: Any) -> None:
    """Find a message by its id (`message query --id`)."""
    call(messages.query, **values)


@click.command("queryMsgByKey")
@click.option("-t", "--topic", required=True, help="Topic.")
@click.option("-k", "--msgKey", "key", required=True, help="Key.")
@click.option("-b", "--beginTimestamp", "begin", type=click.IntRange(0), default=0, help="In ms.")
@click.option("-e", "--endTimestamp", "end", type=click.IntRange(0), default=0, help="In ms.")
@click.option("-m", "--maxNum", "count", type=click.IntRange(1), help="Largest number.")
@options_of(NAMESERVER, CLUSTER)
def query_by_key(**values: Any) -> None:
    """Find messages by key (`message query --key`)."""
    call(messages.query, **values)


@click.command("queryMsgByUniqueKey")
@click.option("-t", "--topic", required=True, help="Topic.")
@click.option("-i", "--msgId", "unique_key", required=True, help="Unique id.")
@click.option("-a", "--showAll", is_flag=True, expose_value=False, hidden=True)
@options_of(NAMESERVER, CLUSTER)
def query_by_unique_key(**values: Any) -> None:
    """Find messages by unique id (`message query --unique-key`)."""
    call(messages.query, **values)


@click.command("queryMsgByOffset")
@click.option("-t", "--topic", required=True, help="Topic.")
@click.option("-b", "--brokerName", "broker", required=True, help="Broker group.")
@click.option("-i", "--queueId", "queue", type=click.IntRange(0), required=True, help="Queue.")
@click.option("-o", "--offset", type=click.IntRange(0), required=True, help="Queue offset.")
@options_of(NAMESERVER, brokers=False)
def query_by_offset(**values: Any) -> None:
    """Show the message at an offset of a queue (`message get`)."""
    call(messages.get, **values)


@click.command("queryMsgTraceById")
@click.option("-i", "--msgId", "message_id", required=True, help="Message id.")
@click.option("-t", "--topic", default="", help="Topic of the message.")
@options_of(NAMESERVER)
def query_trace(**values: Any) -> None:
    """Show what happened to a message (`message story`)."""
    call(messages.story, **values)


@click.command("printMsg")
@click.option("-t", "--topic", required=True, help="Topic.")
@click.option("-b", "--beginTimestamp", "begin", default="", help="Earliest store time.")
@click.option("-d", "--printBody", expose_value=False, hidden=True)
@options_of(NAMESERVER, brokers=False)
def print_messages(topic: str, begin: str, **values: Any) -> None:
    """Print the messages of a topic (`message tail`)."""
    call(messages.tail, topic=topic, start=_start(begin), timeout=_SILENCE_MS, **values)


@click.command("consumeMessage")
@click.option("-t", "--topic", required=True, help="Topic.")
@click.option("-c", "--MessageNumber", "count", type=click.IntRange(1), default=128)
@click.option("-s", "--beginTimestamp", "begin", default="", help="Earliest store time.")
@options_of(NAMESERVER, brokers=False)
def consume_message(topic: str, begin: str, **values: Any) -> None:
    """Print messages of a topic, without a group (`message tail`)."""
    call(messages.tail, topic=topic, start=_start(begin), timeout=_SILENCE_MS, **values)


def _start(text: str) -> Start:
    """Return the start position for a time of mqadmin; empty: the beginning. Raises CliError."""
    when = time_of(text) if text else "beginning"
    return start_position("end" if when == "latest" else when)
