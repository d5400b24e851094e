"""Filter pushdown: applies Spark's filters to the options. Pure.

    topic, tags, queueId     equal, in
    queueOffset              equal and bounds
    storeTimestamp           bounds

What is applied selects exactly the rows that Spark would keep, so that Spark leaves the filter to
the source. With `endpoints` only filters on topic are applied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from ..selection import NO_END, TopicFilter
from .options import SourceOptions

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
#: Filter -> bounds [start, end) of whole numbers.
_BOUNDS: Final[dict[type[Filter], Callable[[int], tuple[int, int]]]] = {
    EqualTo: lambda value: (value, value + 1),
    GreaterThan: lambda value: (value + 1, NO_END),
    GreaterThanOrEqual: lambda value: (value, NO_END),
    LessThan: lambda value: (-NO_END, value),
    LessThanOrEqual: lambda value: (-NO_END, value + 1),
}


def apply_filter(options: SourceOptions, one: Filter) -> SourceOptions | None:
    """Return the options with the filter applied; None if the source does not support it."""
    column: tuple[str, ...] = getattr(one, "attribute", ())
    apply = _COLUMNS.get(column[0]) if len(column) == 1 else None
    if apply is None or (options.access is not None and column != ("topic",)):
        return None
    topics = apply(options.topics, one)
    return None if topics is None else replace(options, topics=topics)


def _values(one: Filter, kind: type) -> frozenset[Any] | None:
    if not isinstance(one, EqualTo | In):
        return None
    values = one.value if isinstance(one, In) else [one.value]
    fits = all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
    return frozenset(values) if fits else None


def _topic(topics: TopicFilter, one: Filter) -> TopicFilter | None:
    values = _values(one, str)
    if values is None:
        return None
    wanted = frozenset(value for value in values if topics.matches(value))
    # An impossible topic name selects nothing.
    return replace(topics, topics=wanted or frozenset(("",)), pattern=None)


def _tags(topics: TopicFilter, one: Filter) -> TopicFilter | None:
    values = _values(one, str)
    if values is None or "" in values:
        return None
    return replace(topics, tags=values if topics.tags is None else topics.tags & values)


def _queue_ids(topics: TopicFilter, one: Filter) -> TopicFilter | None:
    values = _values(one, int)
    if values is None:
        return None
    return replace(
        topics, queue_ids=values if topics.queue_ids is None else topics.queue_ids & values
    )


def _offsets(topics: TopicFilter, one: Filter) -> TopicFilter | None:
    bounds = _BOUNDS.get(type(one))
    value = getattr(one, "value", None)
    if bounds is None or not isinstance(value, int):
        return None
    return replace(topics, offsets=_inside(topics.offsets, bounds(value)))


def _times(topics: TopicFilter, one: Filter) -> TopicFilter | None:
    value = getattr(one, "value", None)
    bounds = _BOUNDS.get(type(one))
    if bounds is None or not isinstance(value, datetime) or value.tzinfo is None:
        return None
    ms, rest = divmod(value - _EPOCH, _MS)
    if not rest:
        return replace(topics, times_ms=_inside(topics.times_ms, bounds(ms)))
    # Stored times are whole milliseconds: none is equal to this one.
    start, end = bounds(ms)
    if type(one) in (EqualTo, GreaterThanOrEqual):
        start += 1
    elif type(one) is LessThan:
        end += 1
    return replace(topics, times_ms=_inside(topics.times_ms, (start, end)))


def _inside(known: tuple[int, int] | None, found: tuple[int, int]) -> tuple[int, int]:
    start, end = known or (-NO_END, NO_END)
    return min(max(start, found[0]), NO_END), max(min(end, found[1]), -NO_END)


_COLUMNS: Final[dict[str, Callable[[TopicFilter, Filter], TopicFilter | None]]] = {
    "topic": _topic,
    "tags": _tags,
    "queueId": _queue_ids,
    "queueOffset": _offsets,
    "storeTimestamp": _times,
}
