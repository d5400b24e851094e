"""The tree of a filter expression: what can be asked of a message, without how it is written.

Every node is frozen and knows how deep it is, so that the parser can bound what it builds. Pure.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Comparison(enum.Enum):
    """Operators between two values."""

    EQUAL = "="
    UNEQUAL = "<>"
    BELOW = "<"
    AT_MOST = "<="
    ABOVE = ">"
    AT_LEAST = ">="


class TextOperator(enum.Enum):
    """Operators between a property and a text."""

    CONTAINS = "CONTAINS"
    STARTSWITH = "STARTSWITH"
    ENDSWITH = "ENDSWITH"


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, a text (UTF-8, as properties are stored), a truth value, or NULL."""

    value: int | float | bytes | bool | None
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Property:
    """The text of a property; NULL when the message has none of this name."""

    name: bytes
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Not:
    """TRUE for FALSE and the other way round; NULL stays."""

    operand: Node
    depth: int


@dataclass(frozen=True, slots=True)
class Both:
    """AND of two or more."""

    operands: tuple[Node, ...]
    depth: int


@dataclass(frozen=True, slots=True)
class Either:
    """OR of two or more."""

    operands: tuple[Node, ...]
    depth: int


@dataclass(frozen=True, slots=True)
class Compare:
    """Two values."""

    operator: Comparison
    left: Node
    right: Node
    depth: int


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a value is NULL; never NULL itself."""

    operand: Node
    negated: bool
    depth: int


@dataclass(frozen=True, slots=True)
class In:
    """Whether a property is one of these texts."""

    name: bytes
    texts: frozenset[bytes]
    negated: bool
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Text:
    """Whether a property contains, begins or ends with a text."""

    operator: TextOperator
    name: bytes
    text: bytes
    negated: bool
    depth: int = 1


Node = Literal | Property | Not | Both | Either | Compare | IsNull | In | Text
