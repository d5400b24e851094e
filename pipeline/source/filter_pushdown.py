"""Filter pushdown: applies Spark's filters on `topic` (equal, in) to the options. Pure."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql.datasource import EqualTo, Filter, In

from .options import SourceOptions


def apply_filter(options: SourceOptions, one: Filter) -> SourceOptions | None:
    """Return the options with the filter applied; None if the source does not support it."""
    if not isinstance(one, EqualTo | In) or one.attribute != ("topic",):
        return None
    values = one.value if isinstance(one, In) else [one.value]
    if not all(isinstance(value, str) for value in values):
        return None
    wanted = frozenset(value for value in values if options.topics.matches(value))
    # An impossible topic name selects nothing.
    topics = replace(options.topics, topics=wanted or frozenset(("",)), pattern=None)
    return replace(options, topics=topics)
