"""Results on stdout, as a table for people or as JSON for programs.

`rich` is imported only when a table is drawn. JSON output is one document for each command, or one
line for each message where messages stream.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

Row = Mapping[str, Any]
# Wide enough to cut nothing: a narrow terminal wraps the line, and names stay whole.
_WIDTH = 10_000


def show_json(document: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def show_rows(rows: Sequence[Row], output: str, *, empty: str) -> None:
    """Print a list with the first row's keys as columns; print `empty` for an empty table."""
    if output == "json":
        show_json(list(rows))
    elif rows:
        print_table(rows)
    else:
        click.echo(empty)


def show_fields(fields: Row, output: str) -> None:
    """Print one object, one field on each line."""
    if output == "json":
        show_json(dict(fields))
        return
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        click.echo(f"{_title(name):<{width}}  {_text(value)}")


def print_table(rows: Sequence[Row]) -> None:
    """Print a table with the rows' keys as columns; numbers are right-aligned."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for name, value in rows[0].items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        table.add_column(_title(name), justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(Text(_text(value)) for value in row.values()))
    Console(width=_WIDTH, highlight=False).print(table)


def timed(row: Row) -> dict[str, Any]:
    """Return a row for a table: points in time in local time, without `_ms` in their names."""
    return {
        name.removesuffix("_ms"): _local_time(value) if name.endswith("_ms") else value
        for name, value in row.items()
    }


def _local_time(ms: int) -> str:
    if ms <= 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(ms / 1_000).astimezone()
    except (OverflowError, ValueError, OSError):
        return str(ms)
    return moment.isoformat(" ", "milliseconds")


def _title(name: str) -> str:
    return name.replace("_", " ")


def _text(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
