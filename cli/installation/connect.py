"""`cometmq doctor connect`: the first broken leg of a client's way to a broker, and its cure."""

import logging
import time
from typing import Any

import click

from ...operations.errors import CliError, Exit
from ...operations.links import target
from ..options import data_option, link_options, output_option
from ..output import show_document, show_rows


@click.command()
@click.argument("endpoint", metavar="HOST:PORT")
@click.option(
    "--topic",
    default="",
    help="Send one message to this topic and receive none, instead of a scratch topic.",
)
@data_option
@link_options
@output_option
def connect(endpoint: str, topic: str, output: str) -> int:
    """Check the way of a client to HOST:PORT, leg by leg; names the first broken one.

    Name, TCP, TLS and HTTP/2, broker, topic, route, the addresses in the route, telemetry, send,
    receive. It makes a scratch topic and group and deletes them. Exit code 5: a leg is broken.

    \b
    cometmq doctor connect 127.0.0.1:8081
    """
    import asyncio

    from .legs import BrokenLeg, Way, clean_up, legs

    # The SDK logs each failed attempt; the row of the leg has its last one.
    logging.getLogger("cometmq.client").setLevel(logging.CRITICAL)
    target(endpoint)  # an invalid address is a mistake in the command
    rows: list[dict[str, Any]] = []
    cure = ""
    with asyncio.Runner() as runner:
        way = Way(endpoint, runner, topic)
        try:
            for name, check in legs():
                row: dict[str, Any] = {"leg": name, "result": "good", "ms": 0, "found": ""}
                rows.append(row)
                began_s = time.monotonic()
                try:
                    row["found"] = check(way)
                except BrokenLeg as broken:
                    row["result"], row["found"], cure = "broken", str(broken), broken.cure
                row["ms"] = round((time.monotonic() - began_s) * 1_000)
                if cure:
                    break
        finally:
            _clean(clean_up, way)
    if output == "json":
        show_document({"endpoint": endpoint, "legs": rows, "cure": cure or None})
    else:
        show_rows(rows, output, empty="")
        click.echo(f"{rows[-1]['leg']} is broken. {cure}" if cure else "The way is good.")
    return Exit.PROBLEMS if cure else Exit.DONE


def _clean(clean_up: Any, way: Any) -> None:
    try:
        clean_up(way)
    except CliError as error:
        click.echo(f"cometmq: The scratch topic {way.topic} is left: {error}", err=True)
