"""`cometmq message`: send messages, and watch a topic as they arrive."""

import asyncio
import sys

import click

from .errors import CliError, Exit
from .options import endpoint_option, output_option
from .output import show_fields, show_json


@click.group()
def message() -> None:
    """Send messages, and watch them arrive."""


@message.command()
@click.argument("topic")
@click.argument("body", default="-")
@click.option("--key", "keys", multiple=True, help="A key; may be given several times.")
@click.option("--tag", help="The tag.")
@click.option(
    "--property", "pairs", multiple=True, metavar="NAME=VALUE", help="A user property; repeatable."
)
@click.option("--group", "message_group", help="Message group; needed for a FIFO topic.")
@click.option(
    "--delay", type=click.FloatRange(0), help="Seconds until delivery; needed for a delay topic."
)
@click.option(
    "--count", type=click.IntRange(1), default=1, show_default=True, help="How many times."
)
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
    delay: float | None,
    count: int,
    endpoint: str,
    output: str,
) -> int:
    """Send BODY to TOPIC, once or --count times; without BODY, or with '-', from stdin."""
    from .sending import Draft, send_all

    data = sys.stdin.buffer.read() if body == "-" else body.encode("utf-8", "surrogateescape")
    draft = Draft(topic, data, keys, tag, _properties(pairs), message_group, delay)
    result = send_all(endpoint, draft, count)
    if output == "json":
        show_json(result.document())
    elif count == 1 and not result.failures:
        show_fields(result.document()["messages"][0], output)
    else:
        click.echo(f"Sent {len(result.receipts)} of {count} messages in {result.seconds:.2f} s.")
    for sentence, times in result.failures.items():
        click.echo(f"cometmq: {times} not acknowledged: {sentence}", err=True)
    return result.exit_code()


def _properties(pairs: tuple[str, ...]) -> dict[str, str]:
    properties: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise CliError(f"--property must be NAME=VALUE, but is '{pair}'.", Exit.USAGE)
        properties[name] = value
    return properties


@message.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    type=click.Choice(["beginning", "end"]),
    default="end",
    show_default=True,
    help="Where to begin in each queue.",
)
@click.option("--count", type=click.IntRange(1), help="Stop after so many messages.")
@click.option(
    "--timeout",
    type=click.FloatRange(0.1),
    help="Stop when nothing has come for so many seconds; otherwise only Ctrl-C stops.",
)
@endpoint_option
@output_option
def tail(
    *, topic: str, start: str, count: int | None, timeout: float | None, endpoint: str, output: str
) -> None:
    """Show the messages of TOPIC as they arrive; no consumer group is touched."""
    from .tailing import tail_topic

    asyncio.run(
        tail_topic(
            endpoint=endpoint,
            topic=topic,
            start=start,
            count=count,
            timeout_s=timeout,
            output=output,
        )
    )
