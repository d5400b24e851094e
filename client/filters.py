"""Which messages of a topic a consumer wants: tags, or an SQL92 expression over the properties. Pure.

"*"                      everything
"new || paid"            one of these tags
sql("price > 10")        SQL92 over the message's properties (broker semantics, section 4.3)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..proto import v2


@dataclass(frozen=True, slots=True)
class Filter:
    """An expression and its language."""

    expression: str = "*"
    is_sql: bool = False

    def proto(self) -> v2.FilterExpression:
        """As it is sent."""
        kind = v2.SQL if self.is_sql else v2.TAG
        return v2.FilterExpression(type=kind, expression=self.expression)


def sql(expression: str) -> Filter:
    """Messages for which the expression is true."""
    return Filter(expression, is_sql=True)


Topics = Mapping[str, "str | Filter"] | list[str] | tuple[str, ...] | str
"""What consumers take: one topic, several, or each with its filter."""


def subscriptions(topics: Topics) -> dict[str, Filter]:
    """By topic. Raises ValueError when there is none."""
    if isinstance(topics, str):
        topics = [topics]
    if not isinstance(topics, Mapping):
        topics = dict.fromkeys(topics, "*")
    found = {
        topic: wanted if isinstance(wanted, Filter) else Filter(wanted)
        for topic, wanted in topics.items()
    }
    if not found:
        raise ValueError("a consumer needs at least one topic")
    return found
