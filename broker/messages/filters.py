"""Filter expressions of receives and pulls. Pure.

Source: docs/formats/broker-semantics.md, sections 4.1-4.3; docs/formats/grpc-api.md, section 5.6.
Tags: the store compares tag hashes while it walks a consume queue; the literal tag is compared when
the record is read, because tags may share a hash. SQL: every record is read and its properties are
evaluated; they are decoded once per record. The same expression returns the same cached filter or
error.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.properties import property_value
from ...store.format.record import java_hash
from ..sql import SqlError, compile_sql
from .convert import decoded_properties

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...store.format.record import Delivery
    from ..sql import Evaluate

_EVERYTHING = ("", "*")
#: Characters of a tag expression; SQL expressions have their own limit.
_EXPRESSION_MAX = 16_384
#: Characters up to which many expressions are kept.
_SHORT = 256


class Filter(Protocol):
    """The messages that a consumer subscribes to; None instead of a filter matches all."""

    @property
    def codes(self) -> frozenset[int] | None:
        """Tag hashes by which the store can skip messages; None if it cannot."""
        ...

    def matches(self, record: Delivery) -> bool:
        """Return whether the message matches."""
        ...


class TagFilter(Struct, frozen=True):
    """A set of tags; a message matches if its tag is among them."""

    #: UTF-8, as stored.
    tags: frozenset[bytes]
    #: Their hashes, as in consume queues.
    codes: frozenset[int]

    def matches(self, record: Delivery) -> bool:
        """Return whether the message's tag literally equals one of these."""
        return property_value(record.properties, b"TAGS") in self.tags


class SqlFilter(Struct, frozen=True):
    """A condition on the message's properties; a message matches if the result is TRUE."""

    text: str
    evaluate: Evaluate
    codes: None = None

    def matches(self, record: Delivery) -> bool:
        """Return whether the condition is TRUE."""
        return self.evaluate(decoded_properties(record)) is True


def of_tags(tags: Iterable[str]) -> TagFilter:
    """Return the filter for a set of tags."""
    names = frozenset(tags)
    return TagFilter(
        frozenset(name.encode() for name in names), frozenset(java_hash(name) for name in names)
    )


def parse_filter(expression: v2.FilterExpression) -> Filter | None:
    """Return the filter of a request; None matches everything. Raises WireError."""
    text = expression.expression
    parse = _parse if len(text) <= _SHORT else _parse_long
    found = parse(expression.type, text)
    if isinstance(found, str):
        raise WireError(v2.ILLEGAL_FILTER_EXPRESSION, found)
    return found


@lru_cache(maxsize=1024)
def _parse(kind: int, text: str) -> Filter | str | None:
    """Return the filter or an error sentence."""
    if kind == v2.SQL:
        try:
            return SqlFilter(text, compile_sql(text))
        except SqlError as error:
            return f"invalid SQL expression: {error}"
    if text.strip() in _EVERYTHING:
        return None
    if len(text) > _EXPRESSION_MAX:
        return f"the tag expression is longer than {_EXPRESSION_MAX} characters"
    tags = [tag for tag in (part.strip() for part in text.split("||")) if tag]
    return of_tags(tags) if tags else f"{text!r} contains no tag"


@lru_cache(maxsize=128)
def _parse_long(kind: int, text: str) -> Filter | str | None:
    """Parse a long expression: its filter takes up to a megabyte, so fewer are kept."""
    return _parse.__wrapped__(kind, text)
