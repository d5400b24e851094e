"""`cometmq store export`: the messages of a topic, read from the files of a store."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from ...operations.errors import CliError, Exit
from .dump import report_lost
from .lines import write_rows
from .options import open_layout, store_argument


@click.command()
@store_argument
@click.option("--topic", required=True, help="The topic.")
@click.option("--queue", type=click.IntRange(0), help="Only this queue.")
@click.option("--from", "begin", type=click.IntRange(0), default=0, help="First queue offset.")
@click.option("--to", "end", type=click.IntRange(0), help="Queue offset after the last one.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Output file, written atomically (default: standard output).",
)
@click.option(
    "--bodies",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write each body, decompressed, to a file in this folder.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["jsonl", "json"]),
    default="jsonl",
    show_default=True,
    help="jsonl: one object on each line; json: one array.",
)
def export(
    *,
    directory: Path,
    config: Path | None,
    index_slots: int | None,
    index_entries: int | None,
    topic: str,
    queue: int | None,
    begin: int,
    end: int | None,
    out: Path | None,
    bodies: Path | None,
    output: str,
) -> int:
    """Write the messages of TOPIC in DIR in log order, as objects like those of `store dump`.

    Exit code 4 if the store has no message of the topic, 5 if damaged messages were skipped.

    \b
    cometmq store export data/master/store --topic orders --out orders.jsonl
    """
    from ...store.doctor import dump as rows

    layout = open_layout(directory, config, index_slots, index_entries)
    chosen = rows.Selection(topic, queue, begin, rows.NO_END if end is None else end)
    state = rows.DumpState()
    found: Iterator[Mapping[str, Any]] = rows.messages(layout, chosen, state, by_number=True)
    if bodies is not None:
        found = _with_files(found, bodies)
    count = write_rows(found, output) if out is None else _to_file(found, output, out)
    code = report_lost(state)
    if not count and not code:
        raise CliError(f"The store has no matching message of topic {topic}.", Exit.NOT_FOUND)
    if out is not None and count:
        click.echo(f"Wrote {count} messages to {out}.", err=True)
    return code


def _to_file(found: Iterator[Mapping[str, Any]], output: str, out: Path) -> int:
    part = out.with_name(f"{out.name}.part")
    try:
        with open(part, "w", encoding="utf-8") as file:
            count = write_rows(found, output, file)
            file.flush()
            os.fsync(file.fileno())
        if count:  # an empty result does not replace an existing file
            os.replace(part, out)
    except OSError as error:
        raise CliError(f"Cannot write {out}: {error.strerror}.") from error
    finally:
        part.unlink(missing_ok=True)
    return count


def _with_files(found: Iterator[Mapping[str, Any]], folder: Path) -> Iterator[Mapping[str, Any]]:
    """Write the bodies and yield the rows with the names of their body files."""
    import base64

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for row in found:
            # Topic names may not be valid file names: use numbers only.
            path = folder / f"{row['queue_id']:05d}-{row['queue_offset']:020d}.body"
            body = row["body_b64"] if row["body_b64"] is not None else row["stored_body_b64"]
            path.write_bytes(base64.b64decode(body))
            yield {**row, "body_file": str(path)}
    except OSError as error:
        raise CliError(f"Cannot write into {folder}: {error.strerror}.") from error
