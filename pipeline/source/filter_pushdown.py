"""Filters of Spark as narrower options: topic equal to, or one of, some names. Pure."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql.datasource import EqualTo, In

from .options import SourceOptions


def apply_filter(options: SourceOptions, one: EqualTo | In) -> SourceOptions | None:
    """The options with this filter in them; None where it is nothing for the source."""
    if one.attribute != ("topic",):
        return None
    values = one.value if isinstance(one, In) else [one.value]
    if not all(isinstance(value, str) for value in values):
        return None
    wanted = frozenset(value for value in values if options.topics.wants(value))
    # A topic that cannot be: nothing is wanted.
    topics = replace(options.topics, topics=wanted or frozenset(("",)), pattern=None)
    return replace(options, topics=topics)
