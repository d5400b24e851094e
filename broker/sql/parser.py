"""Parser: turns the text of a filter expression into a syntax tree, by `grammar.lark`. Pure.

Syntax errors, and expressions that have no meaning for any message (a comparison with NULL, an
order of texts, a number alone), are rejected with their position. Length and depth are limited,
which bounds the cost of parsing and evaluation. The reference ignores what follows a complete
expression; this parser rejects it, because a half-read filter delivers the wrong messages. Source:
docs/formats/broker-semantics.md, section 4.3.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from lark import Lark, Token, UnexpectedCharacters, UnexpectedInput, UnexpectedToken
from lark.exceptions import VisitError
from lark.tree import Meta
from lark.visitors import Transformer_NonRecursive, v_args

from .errors import SqlError
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

#: Characters.
LENGTH_MAX = 8_192
#: Names, literals, operators and signs. Parsing runs on the broker's event loop and takes about 10
#: us per word.
WORDS_MAX = 2_000
#: Nested operators. Evaluation recurses as deep, and Python's stack is limited.
DEPTH_MAX = 100
_WORD = re.compile(r"'[^']*'|[\w$.]+|[<>=!]+|[^\s\w$.'<>=!]")
_INTEGER_MAX = (1 << 63) - 1
_DIGITS_MAX = len(str(_INTEGER_MAX))
_CONDITIONS = (Property, Not, And, Or, Compare, IsNull, In, Text)
_ORDERS = (Comparison.BELOW, Comparison.AT_MOST, Comparison.ABOVE, Comparison.AT_LEAST)


def parse(text: str) -> Node:
    """Return the syntax tree of an expression. Raises SqlError."""
    if len(text) > LENGTH_MAX:
        raise SqlError(LENGTH_MAX + 1, f"the expression is longer than {LENGTH_MAX} characters")
    if not text.strip():
        raise SqlError(1, "the expression is empty")
    if len(text) > WORDS_MAX and len(_WORD.findall(text)) > WORDS_MAX:
        raise SqlError(len(text), f"the expression has more than {WORDS_MAX} words")
    try:
        tree: Node = _BUILDER.transform(_PARSER.parse(text))
    except UnexpectedInput as error:
        raise _syntax_error(text, error) from None
    except VisitError as error:
        if isinstance(error.orig_exc, SqlError):
            raise error.orig_exc from None
        raise
    return _condition(tree, 0)


def _syntax_error(text: str, error: UnexpectedInput) -> SqlError:
    if isinstance(error, UnexpectedCharacters):
        at = error.pos_in_stream or 0
        if text[at] == "'":
            return SqlError(at + 1, "the text literal is not terminated")
        return SqlError(at + 1, f"unexpected character {text[at]!r}")
    if isinstance(error, UnexpectedToken) and error.token.type != "$END":
        at = error.token.start_pos or 0
        return SqlError(at + 1, f"unexpected {str(error.token)!r}")
    return SqlError(len(text) + 1, "the expression is incomplete")


def _condition(node: Node, at: int) -> Node:
    """Return `node` if it is a condition: a boolean expression, or a property (never TRUE)."""
    if isinstance(node, _CONDITIONS) or _is_truth(node):
        return node
    raise SqlError(at + 1, "a condition is expected, not a value")


def _is_truth(node: Node) -> bool:
    return isinstance(node, Literal) and isinstance(node.value, bool)


def _is_number(node: Node) -> bool:
    return isinstance(node, Literal) and type(node.value) in (int, float)


def _deeper(at: int, *nodes: Node) -> int:
    depth = 1 + max(node.depth for node in nodes)
    if depth > DEPTH_MAX:
        raise SqlError(at + 1, f"the expression is nested deeper than {DEPTH_MAX}")
    return depth


def _compare(at: int, operator: Comparison, left: Node, right: Node) -> Compare:
    for node in (left, right):
        if isinstance(node, Literal) and node.value is None:
            raise SqlError(at + 1, "comparison with NULL: use IS NULL or IS NOT NULL")
        if operator in _ORDERS and not (isinstance(node, Property) or _is_number(node)):
            raise SqlError(at + 1, f"{operator.value} compares numbers and properties only")
    if _is_truth(left) and isinstance(right, Literal) and not _is_truth(right):
        raise SqlError(at + 1, "TRUE and FALSE compare with a condition or a property")
    return Compare(operator, left, right, _deeper(at, left, right))


def _between(at: int, value: Node, low: Node, high: Node, inside: bool) -> Node:
    """Build `value >= low AND value <= high`, or `value < low OR value > high`."""
    if inside:
        above = _compare(at, Comparison.AT_LEAST, value, low)
        below = _compare(at, Comparison.AT_MOST, value, high)
        if isinstance(low, Literal) and isinstance(high, Literal):
            assert isinstance(low.value, int | float) and isinstance(high.value, int | float)
            if low.value > high.value:
                raise SqlError(at + 1, "the lower bound of BETWEEN is above the upper bound")
        return And((above, below), _deeper(at, above, below))
    below = _compare(at, Comparison.BELOW, value, low)
    above = _compare(at, Comparison.ABOVE, value, high)
    return Or((below, above), _deeper(at, below, above))


def _name(node: Node, at: int, operator: str) -> bytes:
    if not isinstance(node, Property):
        raise SqlError(at + 1, f"{operator} needs a property, not a value")
    return node.name


def _unquoted(token: Token) -> bytes:
    return token[1:-1].replace("''", "'").encode("utf-8", "surrogatepass")


@v_args(meta=True)
class _Builder(Transformer_NonRecursive[Token, Node]):
    """Tree builder with one method per grammar rule."""

    def either(self, meta: Meta, parts: list[Node]) -> Node:
        operands = tuple([_condition(part, meta.start_pos) for part in parts])
        return Or(operands, _deeper(meta.start_pos, *operands))

    def both(self, meta: Meta, parts: list[Node]) -> Node:
        operands = tuple([_condition(part, meta.start_pos) for part in parts])
        return And(operands, _deeper(meta.start_pos, *operands))

    def negation(self, meta: Meta, parts: list[Node]) -> Node:
        operand = _condition(parts[0], meta.start_pos)
        return Not(operand, _deeper(meta.start_pos, operand))

    def equal(self, meta: Meta, parts: list[Node]) -> Node:
        return _compare(meta.start_pos, Comparison.EQUAL, parts[0], parts[1])

    def unequal(self, meta: Meta, parts: list[Node]) -> Node:
        return _compare(meta.start_pos, Comparison.UNEQUAL, parts[0], parts[1])

    def above(self, meta: Meta, parts: list[Node]) -> Node:
        return _compare(meta.start_pos, Comparison.ABOVE, parts[0], parts[1])

    def at_least(self, meta: Meta, parts: list[Node]) -> Node:
        return _compare(meta.start_pos, Comparison.AT_LEAST, parts[0], parts[1])

    def below(self, meta: Meta, parts: list[Node]) -> Node:
        return _compare(meta.start_pos, Comparison.BELOW, parts[0], parts[1])

    def at_most(self, meta: Meta, parts: list[Node]) -> Node:
        return _compare(meta.start_pos, Comparison.AT_MOST, parts[0], parts[1])

    def between(self, meta: Meta, parts: list[Node]) -> Node:
        return _between(meta.start_pos, parts[0], parts[1], parts[2], inside=True)

    def not_between(self, meta: Meta, parts: list[Node]) -> Node:
        return _between(meta.start_pos, parts[0], parts[1], parts[2], inside=False)

    def is_null(self, meta: Meta, parts: list[Node]) -> Node:
        return IsNull(parts[0], False, _deeper(meta.start_pos, parts[0]))

    def is_not_null(self, meta: Meta, parts: list[Node]) -> Node:
        return IsNull(parts[0], True, _deeper(meta.start_pos, parts[0]))

    def strings(self, meta: Meta, tokens: list[Token]) -> frozenset[bytes]:
        return frozenset(_unquoted(token) for token in tokens)

    def in_(self, meta: Meta, parts: list[Any]) -> Node:
        return In(_name(parts[0], meta.start_pos, "IN"), parts[1], False)

    def not_in(self, meta: Meta, parts: list[Any]) -> Node:
        return In(_name(parts[0], meta.start_pos, "NOT IN"), parts[1], True)

    def text(self, meta: Meta, parts: list[Any]) -> Node:
        return self._text(meta, parts, False)

    def not_text(self, meta: Meta, parts: list[Any]) -> Node:
        return self._text(meta, parts, True)

    def _text(self, meta: Meta, parts: list[Any], negated: bool) -> Node:
        subject, word, text = parts
        operator = TextOperator(word.upper())
        name = _name(subject, meta.start_pos, operator.value)
        return Text(operator, name, _unquoted(text), negated)

    def plus(self, meta: Meta, parts: list[Node]) -> Node:
        return self._signed(meta, parts[0], 1)

    def minus(self, meta: Meta, parts: list[Node]) -> Node:
        return self._signed(meta, parts[0], -1)

    def _signed(self, meta: Meta, operand: Node, sign: int) -> Node:
        if isinstance(operand, Property):
            # The reference evaluates the negative of a property to NULL: a property without a name
            # does too.
            return operand if sign > 0 else Property(b"")
        if not _is_number(operand):
            raise SqlError(meta.start_pos + 1, "a sign is allowed only before a number")
        assert isinstance(operand, Literal) and isinstance(operand.value, int | float)
        return Literal(sign * operand.value)

    def property(self, meta: Meta, tokens: list[Token]) -> Node:
        return Property(tokens[0].encode())

    def string(self, meta: Meta, tokens: list[Token]) -> Node:
        return Literal(_unquoted(tokens[0]))

    def integer(self, meta: Meta, tokens: list[Token]) -> Node:
        digits = tokens[0].rstrip("lL").lstrip("0") or "0"
        # Python raises ValueError for an integer of over 4,300 digits.
        value = int(digits) if len(digits) <= _DIGITS_MAX else _INTEGER_MAX + 1
        if value > _INTEGER_MAX:
            raise SqlError(meta.start_pos + 1, "the integer has more than 64 bits")
        return Literal(value)

    def decimal(self, meta: Meta, tokens: list[Token]) -> Node:
        value = float(tokens[0])
        if value == float("inf"):
            raise SqlError(meta.start_pos + 1, "the number is too large")
        return Literal(value)

    def true(self, meta: Meta, _: list[Token]) -> Node:
        return Literal(True)

    def false(self, meta: Meta, _: list[Token]) -> Node:
        return Literal(False)

    def null(self, meta: Meta, _: list[Token]) -> Node:
        return Literal(None)


_PARSER = Lark(
    files(__package__).joinpath("grammar.lark").read_text(encoding="utf-8"),
    parser="lalr",
    lexer="basic",
    propagate_positions=True,
    maybe_placeholders=False,
)
_BUILDER = _Builder()
