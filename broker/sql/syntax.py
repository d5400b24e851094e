"""Syntax tree of a filter expression. Pure.

Every node is frozen and stores its depth, by which the parser limits nesting.
"""

from __future__ import annotations

import enum

from msgspec import Struct


class Comparison(enum.Enum):
    """Comparison operators between two values."""

    EQUAL = "="
    UNEQUAL = "<>"
    BELOW = "<"
    AT_MOST = "<="
    ABOVE = ">"
    AT_LEAST = ">="


class TextOperator(enum.Enum):
    """Operators between a property and a text literal."""

    CONTAINS = "CONTAINS"
    STARTSWITH = "STARTSWITH"
    ENDSWITH = "ENDSWITH"


class Literal(Struct, frozen=True):
    """A number, a text (UTF-8, as properties are stored), a boolean, or NULL."""

    value: int | float | bytes | bool | None
    depth: int = 1


class Property(Struct, frozen=True):
    """The text of a property; NULL if the message does not have it."""

    name: bytes
    depth: int = 1


class Not(Struct, frozen=True):
    """Negation: swaps TRUE and FALSE, keeps NULL."""

    operand: Node
    depth: int


class And(Struct, frozen=True):
    """Conjunction of two or more conditions."""

    operands: tuple[Node, ...]
    depth: int


class Or(Struct, frozen=True):
    """Disjunction of two or more conditions."""

    operands: tuple[Node, ...]
    depth: int


class Compare(Struct, frozen=True):
    """A comparison of two values."""

    operator: Comparison
    left: Node
    right: Node
    depth: int


class IsNull(Struct, frozen=True):
    """A test for NULL; its result is never NULL."""

    operand: Node
    negated: bool
    depth: int


class In(Struct, frozen=True):
    """A test whether a property equals one of several texts."""

    name: bytes
    texts: frozenset[bytes]
    negated: bool
    depth: int = 1


class Text(Struct, frozen=True):
    """A test whether a property contains, begins with or ends with a text."""

    operator: TextOperator
    name: bytes
    text: bytes
    negated: bool
    depth: int = 1


Node = Literal | Property | Not | And | Or | Compare | IsNull | In | Text
