"""Tag filters: what a filter expression of the wire means.

Source: broker semantics, section 4.1; gRPC API, section 5.6. The store compares the hash of a tag
while it walks a consume queue; the literal tag is compared when the record is read, because two tags
may share a hash. Promises: pure; the same expression gives the same (cached) object.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ..proto import v2
from ..proto.errors import WireError
from ..store.record import java_hash

if TYPE_CHECKING:
    from collections.abc import Iterable

_EVERYTHING = ("", "*")


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A set of tags; a message passes if its one tag is among them."""

    tags: frozenset[bytes]
    """UTF-8, as they are stored."""
    codes: frozenset[int]
    """Their hashes, as consume queues hold them."""


def of_tags(tags: Iterable[str]) -> TagFilter:
    """The filter that lets these tags through."""
    names = frozenset(tags)
    return TagFilter(
        frozenset(name.encode() for name in names), frozenset(java_hash(name) for name in names)
    )


def parse_filter(expression: v2.FilterExpression) -> TagFilter | None:
    """The filter of a request; None lets everything through. Raises WireError."""
    return _parse(expression.type, expression.expression)


@lru_cache(maxsize=1024)
def _parse(kind: int, text: str) -> TagFilter | None:
    if kind == v2.SQL:
        if not text.strip():
            raise WireError(v2.ILLEGAL_FILTER_EXPRESSION, "the SQL expression is empty")
        raise WireError(v2.UNSUPPORTED, "SQL filters are not supported yet: filter by tag")
    if text.strip() in _EVERYTHING:
        return None
    tags = [tag for tag in (part.strip() for part in text.split("||")) if tag]
    if not tags:
        raise WireError(v2.ILLEGAL_FILTER_EXPRESSION, f"no tag is left of {text!r}")
    return of_tags(tags)
