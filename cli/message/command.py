"""`cometmq message`: send messages, follow a topic, find messages."""

import click

from ...operations.errors import CliError, Exit
from ..cluster.broker_groups import broker_option
from ..links import connect
from ..names import topics
from ..options import endpoint_option, output_option
from ..output import note, show_document, show_fields, show_rows
from ..times import TIME_FORMS, duration, moment
from .start import Start, start_position

#: Messages that are named for one reason; `-o json` names all.
_NUMBERS_SHOWN = 20


@click.group()
def message() -> None:
    """Send messages, follow a topic, find messages."""


@message.command()
@click.argument("topic", shell_complete=topics)
@click.argument("body", default="-")
@click.option("--key", "keys", multiple=True, help="A key; repeatable.")
@click.option("--tag", help="The tag.")
@click.option(
    "--property", "pairs", multiple=True, metavar="NAME=VALUE", help="A user property; repeatable."
)
@click.option("--group", "message_group", help="Message group; required for a FIFO topic.")
@click.option(
    "--delay",
    type=duration("s"),
    metavar="DURATION",
    help="Time until delivery, as 30s or 2h, or in seconds; required for a delay topic.",
)
@click.option(
    "--priority",
    type=click.IntRange(0),
    help="Priority, larger is more urgent; required for a priority topic.",
)
@click.option("--lite-topic", help="The lite topic; required for a topic of type lite.")
@click.option("--count", type=click.IntRange(1), help="Number of messages [default: 1].")
@click.option("--lines", is_flag=True, help="Send each line of stdin as a message.")
@endpoint_option
@output_option
def send(
    *,
    topic: str,
    body: str,
    keys: tuple[str, ...],
    tag: str | None,
    pairs: tuple[str, ...],
    message_group: str | None,
    delay: int | None,
    priority: int | None,
    lite_topic: str | None,
    count: int | None,
    lines: bool,
    endpoint: str,
    output: str,
) -> int:
    """Send BODY to TOPIC, once or --count times; without BODY, or with '-', from stdin.

    With --count or --lines, `{{n}}` (1, 2, ...) and `{{time}}` in body, keys, tag, property or
    group are replaced in each message; a body from stdin stays as it is.

    \b
    cometmq message send orders "hello" --tag new --key o-1
    cometmq message send orders "order {{n}}" --key "o-{{n}}" --count 100
    cat events.txt | cometmq message send orders --lines
    """
    from ...operations.sending import Draft, send_over
    from .drafts import drafts_of

    if lines and (count is not None or body != "-"):
        raise CliError("--lines reads the messages from stdin: omit BODY and --count.", Exit.USAGE)
    draft = Draft(
        topic,
        b"",
        keys,
        tag,
        _properties(pairs),
        group=message_group,
        delay_ms=delay,
        priority=priority,
        lite_topic=lite_topic,
    )
    with connect(endpoint) as connection:
        drafts = drafts_of(draft, body, count, lines=lines)
        one = not lines and count in (None, 1)
        result = send_over(connection, drafts, locate=output == "json" or one)
    if output == "json":
        show_document(result.document())
    elif one and result.receipts:
        show_fields(result.document()["messages"][0], output)
        if "recall_handle" in result.receipts[0]:
            note(f"Until it is due: cometmq timer recall {topic} RECALL_HANDLE")
    else:
        click.echo(result.sentence(result.total if lines else count or 1))
    for sentence, numbers in result.failures.items():
        click.echo(f"cometmq: {_named(numbers)} not acknowledged: {sentence}", err=True)
    return result.exit_code()


def _named(numbers: list[int]) -> str:
    """Return what names these messages: 2 (messages 3, 7)."""
    shown = ", ".join(str(number) for number in numbers[:_NUMBERS_SHOWN])
    more = ", ..." if len(numbers) > _NUMBERS_SHOWN else ""
    return f"{len(numbers)} (message{'s' if len(numbers) > 1 else ''} {shown}{more})"


def _properties(pairs: tuple[str, ...]) -> dict[str, str]:
    properties: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise CliError(f"--property must be NAME=VALUE, but is '{pair}'.", Exit.USAGE)
        if name in properties:
            raise CliError(f"--property {name} is given twice: a name has one value.", Exit.USAGE)
        properties[name] = value
    return properties


@message.command()
@click.argument("topic", shell_complete=topics)
@click.option(
    "--from",
    "start",
    type=start_position,
    metavar="beginning|end|TIME|OFFSET",
    default="end",
    show_default=True,
    help=f"Start position in each queue. TIME: {TIME_FORMS} (13 digits); OFFSET: a number with at"
    " most 12 digits.",
)
@click.option("--count", type=click.IntRange(1), help="Stop after this number of messages.")
@click.option(
    "--timeout",
    type=duration("s", least="100ms"),
    metavar="DURATION",
    help="Stop after this time without a message, as 30s or in seconds (default: until Ctrl-C).",
)
@endpoint_option
@output_option
def tail(
    *,
    topic: str,
    start: Start,
    count: int | None,
    timeout: int | None,
    endpoint: str,
    output: str,
) -> None:
    """Show the messages of TOPIC as they arrive, without a consumer group.

    The first line, on stderr, names the start position.

    \b
    cometmq message tail orders --from -1h
    """
    import asyncio

    from .tailing import tail_topic

    asyncio.run(
        tail_topic(
            endpoint=endpoint,
            topic=topic,
            start=start,
            count=count,
            timeout_s=None if timeout is None else timeout / 1_000,
            output=output,
        )
    )


@message.command()
@click.option(
    "--topic",
    shell_complete=topics,
    default="",
    help="The topic; optional if --id is an offset id.",
)
@click.option("--key", default="", help="One of the message's keys.")
@click.option("--unique-key", default="", help="The unique key (message id set by the client).")
@click.option("--tag", default="", help="The tag.")
@click.option(
    "--id", "message_id", default="", help="An offset id, or with --topic a client's message id."
)
@click.option(
    "--count",
    type=click.IntRange(1),
    help="Return at most this number, the newest (default: the broker's limit).",
)
@click.option(
    "--begin",
    type=moment,
    default="0",
    metavar="TIME",
    help=f"Earliest store time: {TIME_FORMS}.",
)
@click.option("--end", type=moment, default="0", metavar="TIME", help="Latest store time.")
@broker_option
@endpoint_option
@output_option
def query(
    *,
    topic: str,
    key: str,
    unique_key: str,
    tag: str,
    message_id: str,
    count: int | None,
    begin: int,
    end: int,
    endpoint: str,
    output: str,
) -> None:
    """Find messages by --key, --unique-key, --tag or --id, oldest first.

    \b
    cometmq message query --topic orders --key o-1
    """
    from ...proto import v1
    from .querying import query_messages

    if sum(map(bool, (key, unique_key, tag, message_id))) != 1:
        raise CliError("Give exactly one of --key, --unique-key, --tag and --id.", Exit.USAGE)
    if not topic and not message_id:
        raise CliError("Give --topic.", Exit.USAGE)
    request = v1.QueryMessagesRequest(
        topic=topic,
        key=key,
        unique_key=unique_key,
        tag=tag,
        message_id=message_id,
        count=count or 0,
        begin_ms=begin,
        end_ms=end,
    )
    query_messages(endpoint, request, output)


@message.command()
@click.argument("topic", shell_complete=topics)
@click.argument("queue", type=click.IntRange(0))
@click.argument("offset", type=click.IntRange(0))
@click.option(
    "--broker", metavar="NAME", default="", help="The broker group, if there are several."
)
@endpoint_option
@output_option
def get(*, topic: str, queue: int, offset: int, broker: str, endpoint: str, output: str) -> None:
    """Show the message at OFFSET of a QUEUE of TOPIC.

    \b
    cometmq message get orders 0 12
    """
    from ...operations.message_document import message_document
    from .querying import message_at

    with connect(endpoint) as connection:
        document = message_document(message_at(connection, topic, broker, queue, offset))
    if output == "json":
        show_document(document)
    else:
        show_fields(document, output)


@message.command()
@click.argument("message_id", metavar="ID")
@click.option(
    "--topic", shell_complete=topics, default="", help="The topic; optional if ID is an offset id."
)
@click.option(
    "--group",
    "names",
    multiple=True,
    help="Only this consumer group; repeatable [default: all that consume the topic].",
)
@broker_option
@endpoint_option
@output_option
def story(
    *, message_id: str, topic: str, names: tuple[str, ...], endpoint: str, output: str
) -> None:
    """Show what happened to message ID: where it is stored, and its state in each group.

    `offset is past it`: a consumer acknowledged it, a filter left it out, or a reset skipped it.

    \b
    cometmq message story 01A2B3C4D5E6F7 --topic orders
    """
    from ...operations.message_states import states
    from ..cluster.broker_groups import broker_groups
    from . import story as work

    with broker_groups(endpoint) as groups:
        found = work.find(groups, message_id, topic)
        waits = "" if found else work.waiting_place(groups, message_id)
        known = work.check_found(found, waits, message_id)
        consumers = list(names) or work.group_names(groups, known)
        if len(consumers) > work.GROUPS_MAX:
            click.echo(f"cometmq: Only {work.GROUPS_MAX} groups are asked; see --group.", err=True)
        rows = states(groups, known, consumers[: work.GROUPS_MAX])
        document = work.document(known.message, work.broker_name(groups, known))
    if output == "json":
        show_document({"message": document, "groups": rows})
    else:
        show_fields(document, output)
        click.echo()
        show_rows(rows, output, empty="No group has consumed the topic.")
    if missing := sorted({*names} - {row["group"] for row in rows}):
        text = f"No state of {', '.join(missing)}: not a group, or it has not consumed the topic."
        raise CliError(text)
