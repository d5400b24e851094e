"""Pages of a list of names: search, sort order and slice. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: Rows of a page: two screens, and 20 KB of HTML that a browser lays out in some milliseconds.
PAGE_ROWS = 50


@dataclass(frozen=True, slots=True)
class Slice(Generic[T]):
    """One page of the items that match."""

    items: Sequence[T]
    #: All items that match, and all items.
    found: int
    total: int
    #: From 1.
    page: int
    pages: int


def page_of(items: Sequence[T], wanted: str, page: str, text: Callable[[T], str]) -> Slice[T]:
    """Return the page (a number as text, from 1) of the items whose text contains `wanted`.

    Upper and lower case are equal; a page outside the list is the nearest one.
    """
    words = wanted.lower().split()
    matching = [one for one in items if all(word in text(one).lower() for word in words)]
    pages = max(1, -(-len(matching) // PAGE_ROWS))
    number = int(page) if page.isdecimal() and len(page) < 10 else 1
    number = min(max(number, 1), pages)
    first = (number - 1) * PAGE_ROWS
    return Slice(matching[first : first + PAGE_ROWS], len(matching), len(items), number, pages)


def sorted_by(items: Iterable[T], keys: Mapping[str, Callable[[T], Any]], wanted: str) -> list[T]:
    """Return items, which come in the order of the first column, by the column `wanted`.

    `-` in front reverses it. A column of numbers begins with the largest; equal items keep the
    order of the first column.
    """
    column = wanted.removeprefix("-")
    found = list(items)
    if column not in keys or wanted == next(iter(keys)):
        return found
    is_text = bool(found) and isinstance(keys[column](found[0]), str)
    return sorted(found, key=keys[column], reverse=is_text == wanted.startswith("-"))
