"""Subscription filters: tags, or an SQL92 expression over the properties. Pure.

"*"                      every message
"new || paid"            messages with one of these tags
sql("price > 10")        SQL92 over the properties (docs/formats/broker-semantics.md, section 4.3)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..proto import v2


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter expression and its language."""

    expression: str = "*"
    is_sql: bool = False

    def proto(self) -> v2.FilterExpression:
        """Return the filter as a protobuf message."""
        kind = v2.SQL if self.is_sql else v2.TAG
        return v2.FilterExpression(type=kind, expression=self.expression)


def sql(expression: str) -> Filter:
    """Return a filter for messages for which the SQL92 expression is true."""
    return Filter(expression, is_sql=True)


#: Topics of a consumer: one name, several names, or names with their filters.
Topics = Mapping[str, "str | Filter"] | list[str] | tuple[str, ...] | str


def subscriptions(topics: Topics) -> dict[str, Filter]:
    """Return the filter of each topic. Raises ValueError for no topic."""
    if isinstance(topics, str):
        topics = [topics]
    if not isinstance(topics, Mapping):
        topics = dict.fromkeys(topics, "*")
    by_topic = {
        topic: wanted if isinstance(wanted, Filter) else Filter(wanted)
        for topic, wanted in topics.items()
    }
    if not by_topic:
        raise ValueError("a consumer needs at least one topic")
    return by_topic
