"""Results on stdout: a table for people, a document in JSON or YAML for programs.

A command knows two forms, `table` and `json`; with `-o yaml` it prints the document of `json` in
YAML, and with `-o wide` the table is as wide as its content. There is one document for each
command, or one for each message where messages stream (in JSON a line, in YAML behind `---`).
"""

import json
import shutil
from collections.abc import Sequence
from typing import Any

import click

from .table import Row, field_lines, table_lines
from .times import time_text

_FORM_KEY = "cometmq.form"
_YAML, _WIDE = "yaml", "wide"
#: The forms of `-o`, and the one that a command sees.
FORMS = {"table": "table", _WIDE: "table", "json": "json", _YAML: "json"}


def keep_form(ctx: click.Context, _parameter: click.Parameter, form: str) -> str:
    """Return the form of `-o` that the command sees; keep the one that was given."""
    ctx.meta[_FORM_KEY] = form
    return FORMS[form]


def _form() -> str:
    ctx = click.get_current_context(silent=True)
    return str(ctx.meta.get(_FORM_KEY, "")) if ctx is not None else ""


def show_document(document: Any) -> None:
    """Print one document."""
    if _form() == _YAML:
        from .yaml import yaml_lines

        click.echo("\n".join(yaml_lines(document)))
    else:
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def note(sentence: str) -> None:
    """Print a sentence on stderr, beside the result."""
    click.echo(f"cometmq: {sentence}", err=True)


def show_streamed(document: Any) -> None:
    """Print one document of a stream."""
    if _form() == _YAML:
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
    else:
        click.echo("\n".join(field_lines(fields, _width(), time_text)))


def print_table(rows: Sequence[Row]) -> None:
    """Print a table with the rows' keys as columns; a narrow terminal omits details (`table`)."""
    lines, omitted = table_lines(rows, _width(), time_text)
    click.echo("\n".join(lines))
    if omitted:
        note(f"Not shown: {', '.join(omitted)} (-o wide).")


def table_of(rows: Sequence[Row]) -> str:
    """Return the text of `print_table`."""
    return "\n".join(table_lines(rows, _width(), time_text)[0])


def _width() -> int:
    """Return the columns of the terminal; 0: no limit, as there is none, or for `-o wide`."""
    return 0 if _form() == _WIDE else shutil.get_terminal_size((0, 0)).columns
