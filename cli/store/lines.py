"""Streaming output of long lists: table, JSON, JSON lines, YAML.

The first rows determine a table's column widths; later rows may be wider. JSON and YAML are written
element by element.
"""

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

import click

from ..yaml import yaml_lines

Row = Mapping[str, Any]
_ROWS_MEASURED = 200
_CELL_MAX = 60


def write_rows(rows: Iterable[Row], output: str, file: TextIO | None = None) -> int:
    """Write all rows to `file` or stdout; returns their number."""
    if output == "table":
        return _table(rows, file)
    if output == "yaml":
        return _yaml(rows, file)
    count = 0
    if output == "json":
        click.echo("[", file=file, nl=False)
    for row in rows:
        text = json.dumps(row, ensure_ascii=False)
        if output == "json":
            text = ("," if count else "") + "\n  " + text
        click.echo(text, file=file, nl=output == "jsonl")
        count += 1
    if output == "json":
        click.echo("\n]" if count else "]", file=file)
    return count


def _yaml(rows: Iterable[Row], file: TextIO | None) -> int:
    count = 0
    for row in rows:
        for line in yaml_lines([row]):
            click.echo(line, file=file)
        count += 1
    if not count:
        click.echo("[]", file=file)
    return count


def _table(rows: Iterable[Row], file: TextIO | None) -> int:
    iterator = iter(rows)
    first = list(itertools.islice(iterator, _ROWS_MEASURED))
    if not first:
        return 0
    names = list(first[0])
    widths = {n: max(len(n), *(len(_cell(row.get(n))) for row in first)) for n in names}
    right = {n for n in names if isinstance(first[0][n], int)}
    click.echo(_line({n: n.replace("_", " ") for n in names}, widths, right), file=file)
    count = 0
    for row in itertools.chain(first, iterator):
        click.echo(_line({n: _cell(row.get(n)) for n in names}, widths, right), file=file)
        count += 1
    return count


def _line(cells: Mapping[str, str], widths: Mapping[str, int], right: set[str]) -> str:
    parts = [
        text.rjust(widths[name]) if name in right else text.ljust(widths[name])
        for name, text in cells.items()
    ]
    return "  ".join(parts).rstrip()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
    text = "".join(c if c.isprintable() else "." for c in text)
    return text if len(text) <= _CELL_MAX else text[: _CELL_MAX - 1] + "…"
