"""Evaluator: compiles the syntax tree of a filter expression into one function. Pure.

Three-valued logic: TRUE, FALSE and NULL (None). A missing property is NULL; so is a comparison with
it, and a comparison between a number and a text that is not a number. A message matches only if the
result is TRUE. Properties are texts: compared with a number they are parsed as a number (`9.5` is
below 10), compared with TRUE or FALSE they are TRUE if they equal `true` in any case, compared with
a text they are compared as texts. A property alone is FALSE, or NULL if it is missing. Source:
docs/formats/broker-semantics.md, section 4.3; docs/compatibility.md lists the differences.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from .syntax import (
    And,
    Compare,
    Comparison,
    In,
    IsNull,
    Literal,
    Node,
    Not,
    Or,
    Property,
    Text,
    TextOperator,
)

Truth = bool | None
Value = bytes | int | float | bool | None
#: Stored properties, UTF-8. An empty value counts as missing, as everywhere in the store.
Properties = Mapping[bytes, bytes]
Evaluate = Callable[[Properties], Truth]
_Operand = Callable[[Properties], Value]

_NUMBER = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?|[+-]?Infinity|NaN")
_SPACE = b" \t\n\r\f\x0b"
#: Longer texts are not parsed as numbers: parsing a long integer takes quadratic time.
_DIGITS_MAX = 400
_ORDER: dict[Comparison, Callable[[float, float], bool]] = {
    Comparison.EQUAL: operator.eq,
    Comparison.UNEQUAL: operator.ne,
    Comparison.BELOW: operator.lt,
    Comparison.AT_MOST: operator.le,
    Comparison.ABOVE: operator.gt,
    Comparison.AT_LEAST: operator.ge,
}
_TEXT: dict[TextOperator, Callable[[bytes, bytes], bool]] = {
    TextOperator.CONTAINS: bytes.__contains__,
    TextOperator.STARTSWITH: bytes.startswith,
    TextOperator.ENDSWITH: bytes.endswith,
}
_SWAPPED = {
    Comparison.EQUAL: Comparison.EQUAL,
    Comparison.UNEQUAL: Comparison.UNEQUAL,
    Comparison.BELOW: Comparison.ABOVE,
    Comparison.AT_MOST: Comparison.AT_LEAST,
    Comparison.ABOVE: Comparison.BELOW,
    Comparison.AT_LEAST: Comparison.AT_MOST,
}


def compiled(node: Node) -> Evaluate:
    """Return the condition as a function."""
    match node:
        case Literal(value):
            truth = value if isinstance(value, bool) else None
            return lambda properties: truth
        case Property(name):
            return lambda properties: False if properties.get(name) else None
        case Not(operand):
            return _not(compiled(operand))
        case And(operands):
            return _and(tuple(compiled(each) for each in operands))
        case Or(operands):
            return _or(tuple(compiled(each) for each in operands))
        case Compare():
            return _compare(node)
        case IsNull(operand, negated):
            value_of = _operand(operand)
            if negated:
                return lambda properties: value_of(properties) is not None
            return lambda properties: value_of(properties) is None
        case In(name, texts, negated):
            return _in(name, texts, negated)
        case Text():
            return _text(node)


@lru_cache(maxsize=8_192)
def number(text: bytes) -> int | float | None:
    """Return the number in a property's text, in Java's notation, or None."""
    text = text.strip(_SPACE)
    if len(text) > _DIGITS_MAX or not _NUMBER.fullmatch(text):
        return None
    try:
        return int(text)
    except ValueError:
        return float(text.rstrip(b"fFdD") if text[-1:] in b"fFdD" else text)


def _operand(node: Node) -> _Operand:
    """Return a function for the value of a literal, a property or a condition."""
    if isinstance(node, Property):
        name = node.name
        return lambda properties: properties.get(name) or None
    if isinstance(node, Literal):
        value = node.value
        return lambda properties: value
    return compiled(node)


def _not(evaluate: Evaluate) -> Evaluate:
    def found(properties: Properties) -> Truth:
        truth = evaluate(properties)
        return None if truth is None else not truth

    return found


def _and(parts: tuple[Evaluate, ...]) -> Evaluate:
    def found(properties: Properties) -> Truth:
        truth: Truth = True
        for part in parts:
            each = part(properties)
            if each is False:
                return False
            if each is None:
                truth = None
        return truth

    return found


def _or(parts: tuple[Evaluate, ...]) -> Evaluate:
    def found(properties: Properties) -> Truth:
        truth: Truth = False
        for part in parts:
            each = part(properties)
            if each is True:
                return True
            if each is None:
                truth = None
        return truth

    return found


def _in(name: bytes, texts: frozenset[bytes], negated: bool) -> Evaluate:
    def found(properties: Properties) -> Truth:
        value = properties.get(name)
        return (value in texts) is not negated if value else None

    return found


def _text(node: Text) -> Evaluate:
    name, text, negated = node.name, node.text, node.negated
    if not text:
        # With an empty text the reference returns FALSE for the operator and for its negation.
        return lambda properties: False if properties.get(name) else None
    matches = _TEXT[node.operator]

    def found(properties: Properties) -> Truth:
        value = properties.get(name)
        return matches(value, text) is not negated if value else None

    return found


def _compare(node: Compare) -> Evaluate:
    left, right = node.left, node.right
    if isinstance(left, Literal) and isinstance(right, Property):
        return _compare(Compare(_SWAPPED[node.operator], right, left, node.depth))
    if isinstance(left, Property) and isinstance(right, Literal):
        return _property_with(node.operator, left.name, right.value)
    if node.operator in (Comparison.EQUAL, Comparison.UNEQUAL):
        return _equal(_operand(left), _operand(right), node.operator is Comparison.EQUAL)
    return _ordered(_operand(left), _operand(right), _ORDER[node.operator])


def _property_with(kind: Comparison, name: bytes, value: Value) -> Evaluate:
    """Compare a property with a literal: the common case, specialized by the literal's type."""
    if isinstance(value, bool):
        wanted = value is (kind is Comparison.EQUAL)

        def as_truth(properties: Properties) -> Truth:
            text = properties.get(name)
            return (text.lower() == b"true") is wanted if text else None

        return as_truth
    if isinstance(value, bytes):
        same = kind is Comparison.EQUAL

        def as_text(properties: Properties) -> Truth:
            text = properties.get(name)
            return (text == value) is same if text else None

        return as_text
    assert value is not None, "the parser refuses comparisons with NULL"
    limit, holds = value, _ORDER[kind]

    def as_number(properties: Properties) -> Truth:
        text = properties.get(name)
        if not text:
            return None
        parsed = number(text)
        return None if parsed is None else holds(parsed, limit)

    return as_number


def _equal(left_of: _Operand, right_of: _Operand, equal: bool) -> Evaluate:
    """Compare values of any type: different types are unequal unless a text parses to the other
    value.
    """

    def found(properties: Properties) -> Truth:
        left, right = left_of(properties), right_of(properties)
        if left is None or right is None:
            return None
        if isinstance(left, bytes) is not isinstance(right, bytes):
            if isinstance(left, bytes):
                left, right = right, left
            assert isinstance(right, bytes)
            said = right.lower() == b"true" if isinstance(left, bool) else number(right)
            return None if said is None else (left == said) is equal
        # In Python True == 1; in SQL they differ.
        same = isinstance(left, bool) is isinstance(right, bool) and left == right
        return same is equal

    return found


def _ordered(
    left_of: _Operand, right_of: _Operand, holds: Callable[[float, float], bool]
) -> Evaluate:
    """Compare numbers, or properties that parse as numbers."""

    def found(properties: Properties) -> Truth:
        left, right = left_of(properties), right_of(properties)
        if isinstance(left, bytes):
            left = number(left)
        if isinstance(right, bytes):
            right = number(right)
        return None if left is None or right is None else holds(left, right)

    return found
