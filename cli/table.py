"""Rows and fields as lines for a terminal. Pure.

The name of a column says what its values are: `_ms` a point in time (a float: milliseconds),
`_age_ms` and `_ms_ago` a span, `_bytes` and `size` bytes, `_per_s` a rate. Documents for programs
keep the raw numbers.

A table that is wider than the terminal loses its details, the first of them first; where it still
does not fit, each row becomes a record with one field on a line. Lines break between words only;
a body is cut.
"""

import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from ..operations import words

Row = Mapping[str, Any]

_GAP = "  "
#: A column of sentences, or of bodies, is not made narrower than this.
_PROSE_CELLS_MIN = 20
_BODY = "body"
#: A body is one line; all of it is in the document for programs.
_BODY_CELLS_MAX = 60
_BYTES = "_bytes"
_SIZES = ("size", "bytes")
#: What a list can do without: the columns in the order in which they are omitted.
_DETAILS = (
    "offset_id",
    "sent_again_as",
    "sent_again_by",
    "born_ms",
    "first_ms",
    "last_ms",
    "physical_offset",
    "min_offset",
    "flushed",
    "confirm",
    "tails",
    "put_p99_us",
    "log_bytes",
    "client_us",
    "server_us",
    "variable",
    "protocol",
    "language",
    "attributes",
    "permission",
    "read_queues",
    "write_queues",
    "retry_queues",
    "order",
    "consume_enable",
    "max_attempts",
    "last_store_ms",
    "max_offset",
    "stored_ms",
    "size",
    "keys",
    "tag",
    "version",
    "epoch",
    "address",
    "log_end",
    "consumer_offset",
    "in_flight",
    "in_flight_dropped",
    "to_consume",
    "process",
    "ports",
)
_NUMBERS = (int, float)


def table_lines(
    rows: Sequence[Row], width: int, time_text: Callable[[int], str]
) -> tuple[list[str], list[str]]:
    """Return the lines of a table, the first the titles, and the titles of omitted columns.

    `width` 0 is no limit. Without room for a table, the lines are those of records.
    """
    names = list(rows[0])
    texts = {name: [_cell(name, row[name], time_text) for row in rows] for name in names}
    omitted: list[str] = []
    waiting = [name for name in _DETAILS if name in names]
    while True:
        widths = _widths({name: texts[name] for name in names}, width)
        if widths:
            right = {n for n in names if any(_is_number(n, row[n]) for row in rows)}
            return _drawn(texts, widths, right), [title(name) for name in omitted]
        if not waiting:
            return _records(rows, width, time_text), []
        omitted.append(waiting.pop(0))
        names.remove(omitted[-1])


def field_lines(fields: Row, width: int, time_text: Callable[[int], str]) -> list[str]:
    """Return one object, one field on a line; long values continue below themselves."""
    titles = max(map(len, map(title, fields)), default=0)
    lines = []
    for name, value in fields.items():
        below = map(_plain, _text(name, value, time_text).split("\n"))
        room = width - titles - len(_GAP)
        parts = [part for text in below for part in (_wrapped(text, room) if width else [text])]
        for head, part in zip_longest([title(name)], parts, fillvalue=""):
            lines.append(f"{head:<{titles}}{_GAP}{part}".rstrip())
    return lines


def _records(rows: Sequence[Row], width: int, time_text: Callable[[int], str]) -> list[str]:
    lines: list[str] = []
    for row in rows:
        lines += [*([""] if lines else []), *field_lines(row, width, time_text)]
    return lines


def _widths(texts: Mapping[str, Sequence[str]], width: int) -> dict[str, int]:
    """Return the width of each column; empty: they do not fit."""
    widths = {name: max(cells(title(name)), *map(cells, column)) for name, column in texts.items()}
    over = sum(widths.values()) + len(_GAP) * (len(widths) - 1) - width
    if not width or over <= 0:
        return widths
    for name in sorted(texts, key=lambda name: -widths[name]):
        if over > 0 and _is_prose(name, texts[name]):
            pieces = [] if name == _BODY else [word for t in texts[name] for word in t.split()]
            least = max(_PROSE_CELLS_MIN, cells(title(name)), max(map(cells, pieces), default=0))
            given = min(over, max(0, widths[name] - least))
            widths[name] -= given
            over -= given
    return {} if over > 0 else widths


def _drawn(
    texts: Mapping[str, Sequence[str]], widths: Mapping[str, int], right: set[str]
) -> list[str]:
    def line(values: Iterable[str]) -> str:
        pairs = zip(widths.items(), values, strict=True)
        return _GAP.join(_padded(text, n, name in right) for (name, n), text in pairs).rstrip()

    total = sum(widths.values()) + len(_GAP) * (len(widths) - 1)
    lines = [line(title(name) for name in widths), "─" * total]
    for values in zip(*(texts[name] for name in widths), strict=True):
        columns = [
            [_cut(text, n)] if name == _BODY else _wrapped(text, n)
            for (name, n), text in zip(widths.items(), values, strict=True)
        ]
        lines += [line(parts) for parts in zip_longest(*columns, fillvalue="")]
    return lines


def _padded(text: str, width: int, is_right: bool) -> str:
    space = " " * (width - cells(text))
    return space + text if is_right else text + space


def _wrapped(text: str, width: int) -> list[str]:
    if cells(text) <= width:
        return [text]
    return textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False) or [
        ""
    ]


def _cut(text: str, width: int) -> str:
    if cells(text) <= width:
        return text
    while text and cells(text) > width - 3:
        text = text[:-1]
    return f"{text}..."


def cells(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )


def _is_prose(name: str, column: Sequence[str]) -> bool:
    """Whether a column's lines may be broken, or cut."""
    return name == _BODY or (not name.endswith("_ms") and any(" " in text for text in column))


def _is_number(name: str, value: Any) -> bool:
    is_time = name.endswith("_ms") and not name.endswith("_age_ms") and isinstance(value, int)
    return isinstance(value, _NUMBERS) and not isinstance(value, bool) and not is_time


def title(name: str) -> str:
    """Return the title of a column or field."""
    for suffix in ("_ms_ago", _BYTES, "_ms"):
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def _cell(name: str, value: Any, time_text: Callable[[int], str]) -> str:
    text = _plain(_text(name, value, time_text))
    return _cut(text, _BODY_CELLS_MAX) if name == _BODY else text


def _text(name: str, value: Any, time_text: Callable[[int], str]) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, _NUMBERS):
        return _number(name, value, time_text)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={each}" for key, each in value.items())
    return str(value)


def _number(name: str, value: float, time_text: Callable[[int], str]) -> str:
    if name.endswith("_ms_ago"):
        return f"{words.span(value)} ago"
    if name.endswith("_age_ms"):
        return words.span(value)
    if name.endswith("_ms"):
        return time_text(value) if isinstance(value, int) else f"{value:g} ms"
    if name.endswith(_BYTES) or name in _SIZES:
        return words.size(value)
    return words.short(value) if name.endswith("_per_s") else str(value)


def _plain(text: str) -> str:
    """Return a text whose characters cannot move the cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
