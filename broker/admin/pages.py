"""Pages of lists: names in ascending order, after the last name of the previous page."""

from __future__ import annotations

from collections.abc import Iterable

#: Names in one answer: below the 4 MiB that clients accept, and 20 ms of the event loop.
PAGE_MAX = 5_000


def page_of(names: Iterable[str], after: str, limit: int) -> tuple[list[str], bool]:
    """Return the first names behind `after`, and whether more follow; `limit` 0 means PAGE_MAX."""
    count = size_of(limit)
    found = names_behind(names, after)
    return found[:count], len(found) > count


def size_of(limit: int) -> int:
    """Return the number of names on a page."""
    return min(limit, PAGE_MAX) if limit > 0 else PAGE_MAX


def names_behind(names: Iterable[str], after: str) -> list[str]:
    """Return all names behind `after`, in order."""
    return sorted(name for name in names if name > after)
