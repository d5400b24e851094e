"""`cometmq store ls`: the contents of a store directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..options import output_option
from ..output import print_table, show_document
from .options import open_layout, store_argument

_QUEUES_SHOWN = 200


@click.command()
@store_argument
@click.option("--all", "everything", is_flag=True, help="Show all queues.")
@output_option
def ls(
    *,
    directory: Path,
    config: Path | None,
    index_slots: int | None,
    index_entries: int | None,
    everything: bool,
    output: str,
) -> None:
    """List segments, queues, index files, timers, checkpoint and configuration of DIR.

    \b
    cometmq store ls data/master/store
    """
    from ...store.doctor.listing import list_store

    document = list_store(open_layout(directory, config, index_slots, index_entries))
    if output == "json":
        show_document(document)
        return
    click.echo(f"{document['directory']}: {_state(document)}")
    _show("segments", document["segments"])
    queues = document["queues"]
    shown = queues if everything else queues[:_QUEUES_SHOWN]
    _show("queues", shown)
    if len(shown) < len(queues):
        click.echo(f"... and {len(queues) - len(shown)} more queues (--all)")
    _show("index", document["index"])
    for name in ("timers", "checkpoint"):
        if document[name]:
            _show(name, [document[name]])
    _show("configuration", document["config"])
    for name, text in (("foreign", "not in the store format"), ("strays", "unknown")):
        if document[name]:
            click.echo(f"\n{text}, ignored: {', '.join(document[name])}")


def _state(document: Mapping[str, Any]) -> str:
    if document["in_use"]:
        by = f" by process {document['owner']}" if document["owner"] else ""
        return f"in use{by}"
    return "stopped cleanly" if document["stopped_cleanly"] else "not stopped cleanly"


def _show(title: str, rows: list[dict[str, Any]]) -> None:
    if rows:
        click.echo(f"\n{title}")
        print_table(rows)
