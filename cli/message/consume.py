"""`cometmq consume`: receive the messages of a consumer group, print and acknowledge them."""

import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from ...operations.errors import CliError, Exit
from ..names import groups
from ..options import endpoint_option, output_option
from ..times import duration

if TYPE_CHECKING:
    pass

_FORMAT_HELP = (
    "Print each message in this format, with no line end of its own: %s body, %S its size, %k keys,"
    " %t topic, %p queue, %o offset, %T store time in ms, %h properties, %i message id, %G tag,"
    " %g message group, %a delivery attempt, %b broker group; \\n, \\t, \\xHH."
)


def _format(text: str) -> Any:
    """Parse `-f`; the module needs the SDK, which help does not."""
    from .format import parse

    return parse(text)


@click.command()
@click.argument("group", shell_complete=groups)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("-f", "--format", "parts", type=_format, metavar="FORMAT", help=_FORMAT_HELP)
@click.option(
    "--tag", default="*", show_default=True, help="Only messages with these tags: A || B."
)
@click.option("--count", type=click.IntRange(1), help="Stop after this number of messages.")
@click.option(
    "--timeout",
    type=duration("s", least="100ms"),
    metavar="DURATION",
    help="Stop after this time without a message, as 30s or in seconds (default: until Ctrl-C).",
)
@click.option(
    "--invisible",
    type=duration("s", least="10s", most="12h"),
    default="30s",
    show_default=True,
    metavar="DURATION",
    help="Time after which a message that was not acknowledged is delivered again.",
)
@endpoint_option
@output_option
def consume(
    *,
    group: str,
    topics: tuple[str, ...],
    parts: Any,
    tag: str,
    count: int | None,
    timeout: int | None,
    invisible: int,
    endpoint: str,
    output: str,
) -> int:
    """Receive the messages of GROUP on TOPICs, print each, and acknowledge it.

    Without TOPIC, those that the group has consumed before. The progress of the group changes; to
    look at a topic without a group use `cometmq message tail`. Ctrl-C stops within a second.

    \b
    cometmq consume billing orders -f '%o %k %s\\n' --count 10
    """
    import asyncio

    from .consuming import Consumption, Wanted, topics_of

    wanted: Wanted = Wanted(
        group,
        topics or topics_of(endpoint, group),
        tag,
        count=count,
        silence_s=None if timeout is None else timeout / 1_000,
        invisible_s=invisible / 1_000,
    )
    consumption = Consumption(endpoint, wanted, parts, output)
    interrupted = asyncio.run(_until_signal(consumption))
    click.echo(f"cometmq: {consumption.sentence()}", err=True)
    return 128 + interrupted if interrupted else Exit.DONE


async def _until_signal(consumption: Any) -> int:
    """Run; return the number of the signal that ended it, or 0. Raises CliError."""
    import asyncio

    from ...client.errors import CometError

    received: list[int] = []
    task = asyncio.ensure_future(consumption.run())

    def stop(number: int) -> None:
        received.append(number)
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not received:
            raise
    except CometError as error:
        raise CliError(str(error)) from None
    finally:
        sys.stdout.flush()
    return received[0] if received else 0
