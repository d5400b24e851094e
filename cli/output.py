"""Results on stdout: a table for people, a document in JSON or YAML for programs.

A command knows two forms, `table` and `json`; with `-o yaml` it prints the document of `json` in
YAML. There is one document for each command, or one for each message where messages stream (in JSON
a line, in YAML behind `---`). `rich` is imported only when a table is drawn.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from .times import time_text

Row = Mapping[str, Any]
# Wide enough to cut nothing: a narrow terminal wraps the line, and names stay whole.
_WIDTH = 10_000
_YAML_KEY = "cometmq.yaml"


def keep_form(ctx: click.Context, _parameter: click.Parameter, form: str) -> str:
    """Return the form of `-o` that the command sees; keep whether documents are YAML."""
    ctx.meta[_YAML_KEY] = form == "yaml"
    return "json" if form == "yaml" else form


def _is_yaml() -> bool:
    ctx = click.get_current_context(silent=True)
    return ctx is not None and bool(ctx.meta.get(_YAML_KEY))


def show_document(document: Any) -> None:
    """Print one document."""
    if _is_yaml():
        from .yaml import yaml_lines

        click.echo("\n".join(yaml_lines(document)))
    else:
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def note(sentence: str) -> None:
    """Print a sentence on stderr, beside the result."""
    click.echo(f"cometmq: {sentence}", err=True)


def show_streamed(document: Any) -> None:
    """Print one document of a stream."""
    if _is_yaml():
        click.echo("---")
        show_document(document)
    else:
        click.echo(json.dumps(document, ensure_ascii=False))


def show_rows(rows: Sequence[Row], output: str, *, empty: str) -> None:
    """Print a list with the first row's keys as columns; print `empty` for an empty table."""
    if output == "json":
        show_document(list(rows))
    elif rows:
        print_table(rows)
    else:
        click.echo(empty)


def show_fields(fields: Row, output: str) -> None:
    """Print one object, one field on each line."""
    if output == "json":
        show_document(dict(fields))
        return
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        click.echo(f"{_title(name):<{width}}  {_text(value)}")


def print_table(rows: Sequence[Row]) -> None:
    """Print a table with the rows' keys as columns; numbers are right-aligned."""
    print_page(table_of(rows))


def print_page(page: Any) -> None:
    """Print what `rich` can render, wide enough to cut nothing."""
    from rich.console import Console

    Console(width=_WIDTH, highlight=False).print(page)


def table_of(rows: Sequence[Row]) -> Any:
    """Return the table of `print_table`."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for name, value in rows[0].items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        table.add_column(_title(name), justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(Text(_text(value)) for value in row.values()))
    return table


def timed(row: Row) -> dict[str, Any]:
    """Return a row for a table: points in time as text, without `_ms` in their names."""
    return {
        name.removesuffix("_ms"): time_text(value) if name.endswith("_ms") else value
        for name, value in row.items()
    }


def _title(name: str) -> str:
    return name.replace("_", " ")


def _text(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return str(value)
