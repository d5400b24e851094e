"""`cometmq store dump`: the contents of a store, as a table or as JSON."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...operations.errors import Exit
from .lines import write_rows
from .options import lines_option, open_layout, store_argument

if TYPE_CHECKING:
    from ...store.doctor.dump import DumpState

_WHAT = ("messages", "segments", "queues", "index", "timers", "checkpoint", "config")
_TABLE = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "tags_code")
_TABLE_MORE = ("store_timestamp", "born_host", "properties")


@click.command()
@store_argument
@click.option(
    "--what",
    type=click.Choice(_WHAT),
    default="messages",
    show_default=True,
    help="What to print; segments is a synonym of messages.",
)
@click.option("--topic", help="Only this topic.")
@click.option("--queue", type=click.IntRange(0), help="Only this queue.")
@click.option(
    "--from",
    "begin",
    type=click.IntRange(0),
    default=0,
    help="First physical offset; with --what queues, the first queue offset.",
)
@click.option("--to", "end", type=click.IntRange(0), help="Offset after the last one.")
@lines_option()
def dump(
    *,
    directory: Path,
    config: Path | None,
    index_slots: int | None,
    index_entries: int | None,
    what: str,
    topic: str | None,
    queue: int | None,
    begin: int,
    end: int | None,
    output: str,
) -> int:
    """Print the contents of DIR in file order, including system topics.

    Exit code 5 if a damaged part of the log was skipped.

    \b
    cometmq store dump data/master/store --what queues --topic orders --queue 3 -o jsonl
    """
    from ...store.doctor import dump as rows

    layout = open_layout(directory, config, index_slots, index_entries)
    chosen = rows.Selection(topic, queue, begin, rows.NO_END if end is None else end)
    state = rows.DumpState()
    found: Iterable[Mapping[str, Any]]
    if what == "queues":
        found = rows.units(layout, chosen)
    elif what == "index":
        found = rows.index_entries(layout)
    elif what == "timers":
        found = rows.timers(layout, chosen)
    elif what == "checkpoint":
        found = rows.checkpoint_rows(layout)
    elif what == "config":
        found = rows.config_rows(layout)
    else:
        found = rows.messages(layout, chosen, state)
        if output == "table":
            found = ({name: row[name] for name in (*_TABLE, *_TABLE_MORE)} for row in found)
    if not write_rows(found, output) and output == "table":
        click.echo("Nothing found.")
    return report_lost(state)


def report_lost(state: "DumpState") -> int:
    """Print skipped ranges on stderr; returns the exit code."""
    for lost in state.lost:
        click.echo(f"cometmq: skipped offsets {lost.begin} to {lost.end}: {lost.reason}", err=True)
    return Exit.PROBLEMS if state.lost else Exit.DONE
