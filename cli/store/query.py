"""`cometmq store query`: messages by key, from the index files, offline."""

from pathlib import Path

import click

from ...operations.errors import CliError, Exit
from ..options import output_option
from ..output import show_document
from ..times import TIME_FORMS, moment
from .options import open_layout, store_argument

_TIME_MAX_MS = (1 << 63) - 1


@click.command()
@store_argument
@click.option("--topic", required=True, help="The topic.")
@click.option("--key", required=True, help="A key, a unique key, or with --type T a tag.")
@click.option(
    "--type",
    "kind",
    type=click.Choice(["K", "U", "T"]),
    help="Search keys (K), unique keys (U) or tags (T) (default: K and U).",
)
@click.option(
    "--begin", type=moment, default=0, metavar="TIME", help=f"Earliest store time: {TIME_FORMS}."
)
@click.option("--end", type=moment, default=_TIME_MAX_MS, metavar="TIME", help="Latest store time.")
@click.option(
    "--max",
    "count_max",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Maximum number of results.",
)
@output_option
def query(
    *,
    directory: Path,
    config: Path | None,
    index_slots: int | None,
    index_entries: int | None,
    topic: str,
    key: str,
    kind: str | None,
    begin: int,
    end: int,
    count_max: int,
    output: str,
) -> int:
    """Print the physical offsets of the messages of TOPIC with KEY, oldest first.

    \b
    cometmq store query data/master/store --topic orders --key o-1
    """
    from ...store.doctor.index_view import common_layout
    from ...store.query import KeyQuery, StoreQuery

    layout = open_layout(directory, config, index_slots, index_entries)
    folders = sorted({str(file.path.parent) for file in layout.log.files})
    asked = KeyQuery(topic, key, count_max, begin, end, kind)
    if not layout.index:
        raise CliError(f"{layout.root} has no index files.", Exit.NOT_FOUND)
    sizes = common_layout(layout)
    with StoreQuery(folders, str(layout.root / "index"), sizes) as files:
        offsets = [record.physical_offset for record in files.query(asked)]
    if output == "json":
        show_document(offsets)
    else:
        for offset in offsets:
            click.echo(offset)
        if not offsets:
            text = f"No index entry for '{key}' in topic {topic}. A running broker holds the newest"
            click.echo(f"{text} entries in memory: `cometmq message query` asks it.", err=True)
    return Exit.DONE
