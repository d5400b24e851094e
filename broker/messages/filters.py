"""Filters: what a filter expression of the wire means, for receiving and for pulling.

Source: broker semantics, sections 4.1-4.3; gRPC API, section 5.6. Tags: the store compares the hash of a
tag while it walks a consume queue; the literal tag is compared when the record is read, because two tags
may share a hash. SQL: every record is read and its properties are looked at; they are decoded once a
record, whoever asks next. Promises: pure; the same expression gives the same (cached) object, a refused
one the same error.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.properties import property_value
from ...store.format.record import java_hash
from ..sql import Evaluate, SqlError, compile_sql
from .convert import decoded_properties

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...store.format.record import Delivery

_EVERYTHING = ("", "*")
_EXPRESSION_MAX = 8_192
"""Characters of an expression of tags; one of SQL has a limit of its own."""


class Filter(Protocol):
    """Which messages a consumer wants; None in its place lets everything through."""

    @property
    def codes(self) -> frozenset[int] | None:
        """Hashes of tags by which the store can leave messages out; None: it cannot."""
        ...

    def matches(self, record: Delivery) -> bool:
        """Whether the message is wanted."""
        ...


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A set of tags; a message passes if its one tag is among them."""

    tags: frozenset[bytes]
    """UTF-8, as they are stored."""
    codes: frozenset[int]
    """Their hashes, as consume queues hold them."""

    def matches(self, record: Delivery) -> bool:
        """Whether the message's tag is one of these, literally."""
        return property_value(record.properties, b"TAGS") in self.tags


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A condition on the message's properties; it passes if that is TRUE, not FALSE or NULL."""

    text: str
    evaluate: Evaluate
    codes: None = None

    def matches(self, record: Delivery) -> bool:
        """Whether the condition is true."""
        return self.evaluate(decoded_properties(record)) is True


def of_tags(tags: Iterable[str]) -> TagFilter:
    """The filter that lets these tags through."""
    names = frozenset(tags)
    return TagFilter(
        frozenset(name.encode() for name in names), frozenset(java_hash(name) for name in names)
    )


def parse_filter(expression: v2.FilterExpression) -> Filter | None:
    """The filter of a request; None lets everything through. Raises WireError."""
    found = _parse(expression.type, expression.expression)
    if isinstance(found, str):
        raise WireError(v2.ILLEGAL_FILTER_EXPRESSION, found)
    return found


@lru_cache(maxsize=1024)
def _parse(kind: int, text: str) -> Filter | str | None:
    """The filter, or why there is none."""
    if kind == v2.SQL:
        try:
            return SqlFilter(text, compile_sql(text))
        except SqlError as error:
            return f"the SQL expression cannot be used: {error}"
    if text.strip() in _EVERYTHING:
        return None
    if len(text) > _EXPRESSION_MAX:
        return f"the tags have more than {_EXPRESSION_MAX} characters"
    tags = [tag for tag in (part.strip() for part in text.split("||")) if tag]
    return of_tags(tags) if tags else f"no tag is left of {text!r}"
