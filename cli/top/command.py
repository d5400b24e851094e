"""`cometmq top`: rates, lag, roles and disk of a cluster, refreshed until Ctrl-C."""

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from ...operations.errors import CliError
from ..options import endpoint_option, output_option
from ..output import show_document, show_streamed, table_of
from ..times import duration, present_ms, time_text

if TYPE_CHECKING:
    from .sample import Sample

_TITLES = {"brokers": "broker groups", "replicas": "replicas", "consumers": "consumer groups"}


@click.command()
@click.option(
    "--interval",
    type=duration("s", least="200ms", most="1h"),
    default="2s",
    show_default=True,
    metavar="DURATION",
    help="Time between two looks, as 5s or in seconds.",
)
@click.option("--once", is_flag=True, help="Print one look and exit, for scripts.")
@click.option(
    "--count",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Maximum number of consumer groups, highest lag first.",
)
@endpoint_option
@output_option
def top(*, interval: int, once: bool, count: int, endpoint: str, output: str) -> None:
    """Show rates, disk and roles of the broker groups, and the lag of consumer groups.

    Rates of messages are averages of 10 s; `lag per s` is the change since the last look. With
    -o json each look is a document.

    \b
    cometmq top
    cometmq top --once -o json
    """
    from ..cluster.broker_groups import broker_groups
    from .sample import look

    with broker_groups(endpoint) as groups:
        if once:
            sample = look(groups, time.monotonic(), None)
            if output == "json":
                show_document(sample.document())
            else:
                click.echo(_page(sample, count))
            return
        _follow(lambda before: look(groups, time.monotonic(), before), interval, count, output)


def _follow(look: Any, interval_ms: int, count: int, output: str) -> None:
    """Look until Ctrl-C. A cluster that does not answer is shown as such, and asked again."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    before: Any = None
    shown = ""
    live = sys.stdout.isatty() and output == "table"
    console = Console(highlight=False)
    with Live(console=console, screen=live, auto_refresh=False) as screen:
        while True:
            try:
                before = look(before)
                shown = _page(before, count)
            except CliError as error:
                shown = f"{_now()}  {error}"
                if output == "json":
                    click.echo(f"cometmq: {error}", err=True)
            else:
                if output == "json":
                    show_streamed({"time_ms": present_ms(), **before.document()})
            if live:
                screen.update(Text(shown), refresh=True)
            elif output == "table":
                click.echo(shown)
            time.sleep(interval_ms / 1_000)


def _now() -> str:
    return time_text(present_ms(), "seconds")


def _page(sample: "Sample", count: int) -> str:
    """Return the tables of a sample, with the time above them."""
    parts = [_now()]
    for name, title in _TITLES.items():
        rows = getattr(sample, name)[:count] if name == "consumers" else getattr(sample, name)
        if rows:
            parts += ["", title, table_of(rows)]
    return "\n".join(parts)
