"""Rows of the benchmark table: a figure with a bound and a target."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """One figure; `bound` was measured in the same run, `target` is its goal."""

    name: str
    value: float
    unit: str
    bound: str = ""
    ratio: float | None = None
    target: str = ""
    met: bool | None = None


def table(rows: Iterable[Row]) -> Table:
    """Return the rows as a table."""
    found = Table(title="Benchmarks")
    for heading in ("what", "figure", "bound", "ratio", "target", "met"):
        found.add_column(heading, justify="right" if heading in ("figure", "ratio") else "left")
    words = {True: "yes", False: "[bold red]NO[/]", None: ""}
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        figure = f"{row.value:,.2f} {row.unit}".strip()
        found.add_row(row.name, figure, row.bound, ratio, row.target, words[row.met])
    return found


def as_json(rows: Iterable[Row]) -> str:
    """Return the rows as JSON."""
    return json.dumps([asdict(row) for row in rows])


def show(rows: list[Row], console: Console | None = None) -> None:
    """Print the table, then the JSON."""
    (console or Console(width=180)).print(table(rows))
    print(as_json(rows))


def from_json(found: Any) -> list[Row]:
    """Read the output of a benchmark: rows, or the figures of the two that print figures."""
    if isinstance(found, list):
        return [Row(**one) for one in found]
    if found.get("benchmark") == "store_append":
        return _store_rows(found)
    return [
        Row(f"handler without a door: {name}", figure, "us CPU")
        for name, figure in found["cpu_us_per_message"].items()
    ]


def _store_rows(found: dict[str, Any]) -> list[Row]:
    codec, append = found["codec_us"], found["append_us"]
    return [
        Row(
            "store: append and dispatch 1 KiB",
            append,
            "us",
            f"record codec {codec} us",
            found["ratio"],
            "at least 45 % of the codec's rate",
            found["ratio"] >= found["ratio_target"],
        ),
        Row(
            "store: the same against a bare copy",
            append,
            "us",
            f"copy into the same map {found['copy_us']} us",
            found["copy_ratio"],
        ),
        Row(
            "store: records for each fdatasync, 64 senders",
            found["records_per_fdatasync"],
            "",
            f"{found['sync_flushes']} fdatasync",
            None,
            "at least 8",
            found["records_per_fdatasync"] >= found["records_per_fdatasync_target"],
        ),
    ]


def main() -> None:
    """Read the output of several benchmarks as a JSON list; print one table."""
    show([row for found in json.load(sys.stdin) for row in from_json(found)])


if __name__ == "__main__":
    main()
