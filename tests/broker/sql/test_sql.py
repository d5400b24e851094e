"""SQL filter expressions: results, errors with positions, and a model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.sql import SqlError, compile_sql
from cometmq.broker.sql.evaluator import number
from cometmq.broker.sql.parser import DEPTH_MAX, LENGTH_MAX, WORDS_MAX, parse

MESSAGE = {
    "a": "5", "d": "9.5", "s": "abc", "t": "TrUe", "f": "no", "big": "9007199254740993",
    "sp": " 7 ", "e": "", "q": "it's", "$x_1": "1", "TAGS": "red", "u": "用户",
}  # fmt: skip


def ask(expression: str, **properties: str) -> bool | None:
    """Evaluate the expression on MESSAGE."""
    everything = {**MESSAGE, **properties}
    return compile_sql(expression)(
        {name.encode(): value.encode() for name, value in everything.items()}
    )


@pytest.mark.parametrize(
    "expression",
    [
        "a = 5", "a = 5.0", "a <> 6", "a >= 5 AND a <= 5", "5 = a", "4 < a", "a > 4.99",
        "d < 10", "d > 9", "d BETWEEN 9 AND 10", "d NOT BETWEEN 1 AND 2", "sp = 7",
        "big = 9007199254740993", "big > 9007199254740992", "a = -(-5)", "a > - 5", "a > +4",
        "s = 'abc'", "'abc' = s", "s <> 'ABC'", "s IN ('x', 'abc')", "s NOT IN ('x')",
        "s CONTAINS 'b'", "s STARTSWITH 'ab'", "s ENDSWITH 'bc'", "s NOT CONTAINS 'z'",
        "s NOT STARTSWITH 'b'", "s NOT ENDSWITH 'b'", "q = 'it''s'", "u CONTAINS '户'",
        "a = a", "a < d", "missing IS NULL", "a IS NOT NULL", "(a = 6 AND missing = 1) IS NOT NULL",
        "t = TRUE", "TRUE = t", "f = FALSE", "f <> true", "TRUE", "NOT FALSE", "NOT a",
        "a = 5 OR missing = 1", "missing = 1 OR a = 5", "NOT (a = 6)", "$x_1 = 1",
        "a = 6 OR a = 5 AND s = 'abc'", "TAGS = 'red'", "a=5--c", "/* x */ a /*y*/ = 5",
        "A = 5 or a = 5", "a between 1 and 9 and s in ('abc')", "a > 0.0", "a = 5L", "a < 1e3",
        "a = 5 = TRUE", "(a = 5) = (d > 9)", "-a IS NULL", "5. = a", ".5 < a", "5 = 5.0",
        "1 <> TRUE",
    ],
)  # fmt: skip
def test_expressions_that_are_true(expression: str) -> None:
    assert ask(expression) is True


@pytest.mark.parametrize(
    "expression",
    [
        # NOT binds tighter than a comparison: (NOT a) = 1 compares a boolean with a number.
        "NOT a = 1", "NOT a = 5", "a = 6", "a <> 5", "s = 'ABC'", "s IN ('x')", "a", "s",
        "s CONTAINS ''", "s NOT CONTAINS ''", "FALSE", "a = 6 AND missing = 1",
        "missing = 1 AND a = 6", "NOT TRUE", "1 = TRUE", "(a = 5) = 1", "f = TRUE", "d > 10",
        "missing IS NOT NULL", "a IS NULL", "'5' = 5 AND FALSE", "a BETWEEN 6 AND 7",
    ],
)  # fmt: skip
def test_expressions_that_are_false(expression: str) -> None:
    assert ask(expression) is False


@pytest.mark.parametrize(
    "expression",
    [
        "missing = 1", "missing <> 1", "1 = missing", "missing = missing", "missing > 1",
        "missing IN ('a')", "missing NOT IN ('a')", "missing CONTAINS 'a'",
        "missing NOT CONTAINS 'a'", "NOT (missing CONTAINS 'a')", "missing = TRUE", "missing",
        "NOT missing", "missing BETWEEN 1 AND 2", "missing = 1 AND a = 5", "missing = 1 OR a = 6",
        "NOT (missing = 1)", "e = ''", "e IS NULL = missing",
        # A text that is not a number is not above, below, equal or unequal to one.
        "s > 5", "s = 5", "s <> 5", "NOT (s > 5)", "s < d", "-a > 1", "missing = s",
    ],
)  # fmt: skip
def test_expressions_that_are_null(expression: str) -> None:
    assert ask(expression) is None


@pytest.mark.parametrize(
    ("expression", "position"),
    [
        ("", 1), ("   ", 1), ("a =", 4), ("a = 1 garbage", 7), ("a = 1 )", 7), ("(a = 1", 7),
        ("a LIKE 'x%'", 3), ("a + 1 = 2", 3), ("a = 007", 6), ("a = 1;", 6), ("a != 1", 3),
        ("a == 1", 4), ("a * 2 = 4", 3), ("a.b = 1", 2), ("a = 'open", 5), ("1", 1), ("'x'", 1),
        ("NULL", 1), ("a = NULL", 1), ("a > 'x'", 1), ("a >= TRUE", 1), ("TRUE = 1", 1),
        ("a IN ()", 7), ("a IN (1)", 7), ("'x' IN ('x')", 1), ("a IN 'x'", 6),
        ("a CONTAINS 1", 12), ("a CONTAINS b", 12), ("1 CONTAINS 'x'", 1),
        ("a BETWEEN 5 AND 4", 1), ("a BETWEEN 'x' AND 'y'", 1), ("a BETWEEN 1", 12),
        ("9223372036854775808 = a", 1), ("a < 1e999", 5), ("a = 1 AND 1", 1), ("-'x' = a", 1),
        ("NOT 1", 1), ("a = -TRUE", 5), ("a = 1 OR", 9), ("用户 = 1", 1), ("or", 1),
    ],
)  # fmt: skip
def test_errors_contain_the_position(expression: str, position: int) -> None:
    with pytest.raises(SqlError) as caught:
        compile_sql(expression)
    assert caught.value.position == position, str(caught.value)
    assert str(caught.value).endswith(f"(at position {position})")


def test_each_error_of_an_expression_is_a_new_one_and_does_not_grow() -> None:
    caught = []
    for _ in range(3):
        with pytest.raises(SqlError) as error:
            compile_sql("a = = 1")
        caught.append(error.value)
    assert len({id(error) for error in caught}) == 3
    assert {str(error) for error in caught} == {"unexpected '=' (at position 5)"}


def test_length_and_depth_are_bounded_and_long_chains_are_fine() -> None:
    words = " OR ".join(f"a = {n}" for n in range(500))
    assert len(words) < LENGTH_MAX
    assert ask(words) is True
    assert ask(" AND ".join(["a = 5"] * 500)) is True
    assert ask("(" * 990 + "a = 5" + ")" * 990) is True
    for text in ("NOT " * (DEPTH_MAX + 1) + "a", "a " + "= a " * (DEPTH_MAX + 1)):
        with pytest.raises(SqlError, match="nested"):
            compile_sql(text)
    assert ask("NOT " * (DEPTH_MAX - 2) + "a") is False
    with pytest.raises(SqlError, match="longer"):
        compile_sql("a = 1" + " " * LENGTH_MAX)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5), ("-5", -5), ("+5", 5), ("5.0", 5.0), (" 5 ", 5), ("1e3", 1000.0), (".5", 0.5),
        ("5.", 5.0), ("1.5f", 1.5), ("2d", 2.0), ("007", 7), ("", None), ("abc", None),
        ("5a", None), ("1_000", None), ("0x10", None), ("1,5", None), ("--5", None), ("٣", None),
        ("9" * 401, None), ("inf", None), ("Infinity", float("inf")), ("5L", None), ("e5", None),
    ],
)  # fmt: skip
def test_texts_are_parsed_as_java_numbers(text: str, value: float | None) -> None:
    assert number(text.encode()) == value
    assert type(number(text.encode())) is type(value)


# A model: conditions are generated together with an equivalent function of a plain dict.

Truth = bool | None
Model = tuple[str, Callable[[dict[str, str]], Any]]

NAMES = ("a", "b", "c")
_texts = st.sampled_from(["", "x", "xy", "true", "1", "1.50", "-2", "abc"])
_messages = st.dictionaries(st.sampled_from(NAMES), _texts)
_numbers = st.one_of(
    st.integers(-3, 3).map(str), st.sampled_from(["1.5", "0.25", "1e1", "-2.0", "0.0"])
)


def _decimal(value: Any) -> Decimal | None:
    try:
        return None if value is None else Decimal(value)
    except InvalidOperation:
        return None


def _order(symbol: str, left: Any, right: Any) -> Truth:
    one, two = _decimal(left), _decimal(right)
    if one is None or two is None:
        return None
    answers: dict[str, bool] = {
        "=": one == two, "<>": one != two, "<": one < two,
        "<=": one <= two, ">": one > two, ">=": one >= two,
    }  # fmt: skip
    return answers[symbol]


def _and(left: Truth, right: Truth) -> Truth:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _negated(value: Truth) -> Truth:
    return None if value is None else not value


def _numeric(name: str, symbol: str, literal: str, swapped: bool) -> Model:
    if swapped:
        return f"{literal} {symbol} {name}", lambda m: _order(symbol, literal, m.get(name) or None)
    return f"{name} {symbol} {literal}", lambda m: _order(symbol, m.get(name) or None, literal)


def _textual(name: str, operator: str, text: str, negated: bool) -> Model:
    word = {"C": "CONTAINS", "S": "startswith", "E": "EndsWith"}[operator]

    def meaning(message: dict[str, str]) -> Truth:
        value = message.get(name)
        if not value:
            return None
        if not text:
            return False
        found = {
            "C": text in value, "S": value.startswith(text), "E": value.endswith(text)
        }[operator]  # fmt: skip
        return found is not negated

    return f"{name} {'NOT ' if negated else ''}{word} '{text}'", meaning


def _member(name: str, texts: list[str], negated: bool) -> Model:
    listed = ", ".join(f"'{text}'" for text in texts)

    def meaning(message: dict[str, str]) -> Truth:
        value = message.get(name)
        return (value in texts) is not negated if value else None

    return f"{name} {'not ' if negated else ''}in ({listed})", meaning


def _between(name: str, low: int, high: int, negated: bool) -> Model:
    def meaning(message: dict[str, str]) -> Truth:
        value = message.get(name) or None
        inside = _and(_order(">=", value, low), _order("<=", value, high))
        return _negated(inside) if negated else inside

    return f"{name} {'NOT ' if negated else ''}BETWEEN {low} AND {high}", meaning


_names = st.sampled_from(NAMES)
_leaves: st.SearchStrategy[Model] = st.one_of(
    st.builds(
        _numeric,
        _names,
        st.sampled_from(["=", "<>", "<", "<=", ">", ">="]),
        _numbers,
        st.booleans(),
    ),
    st.builds(_textual, _names, st.sampled_from("CSE"), _texts, st.booleans()),
    st.builds(_member, _names, st.lists(_texts, min_size=1, max_size=3), st.booleans()),
    st.builds(_between, _names, st.integers(-3, 0), st.integers(0, 3), st.booleans()),
    st.builds(lambda n: (f"{n} IS NULL", lambda m: not m.get(n)), _names),
    st.builds(lambda n: (n, lambda m: False if m.get(n) else None), _names),
)


def _joined(word: str, parts: list[Model]) -> Model:
    def meaning(message: dict[str, str]) -> Truth:
        truths = [part[1](message) for part in parts]
        flip = word == "OR"
        found: Truth = True
        for truth in truths:
            found = _and(found, _negated(truth) if flip else truth)
        return _negated(found) if flip else found

    return "(" + f" {word} ".join(part[0] for part in parts) + ")", meaning


_conditions = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(_joined, st.sampled_from(["AND", "OR"]), st.lists(inner, min_size=2, max_size=4)),
        st.builds(lambda i: (f"NOT ({i[0]})", lambda m: _negated(i[1](m))), inner),
    ),
    max_leaves=8,
)


@given(_conditions, _messages)
def test_random_conditions_equal_the_model(condition: Model, message: dict[str, str]) -> None:
    text, meaning = condition
    properties = {name.encode(): value.encode() for name, value in message.items()}
    assert compile_sql(text)(properties) is meaning(message), text


@given(st.text(st.sampled_from("ab '()=<>NOTANDRISULL0159.eE-+,$/*")))
def test_any_text_parses_or_raises_sql_error(text: str) -> None:
    try:
        compile_sql(text)
    except SqlError as error:
        assert 1 <= error.position <= len(text) + 1


def test_precedence_follows_the_grammar() -> None:
    same = [
        ("a = 1 OR b = 2 AND c = 3", "a = 1 OR (b = 2 AND c = 3)"),
        ("NOT a = 1", "(NOT a) = 1"),
        ("a > 1 = TRUE", "(a > 1) = TRUE"),
        ("a BETWEEN 1 AND 2 AND b = 1", "(a BETWEEN 1 AND 2) AND (b = 1)"),
        ("a = 1 IS NULL", "(a = 1) IS NULL"),
    ]
    for one, two in same:
        assert parse(one) == parse(two)


def test_the_number_of_words_is_limited() -> None:
    """Each word takes about 10 us of the event loop."""
    words = " OR ".join(["a=1"] * (WORDS_MAX // 4))
    compile_sql(words)
    with pytest.raises(SqlError, match=f"more than {WORDS_MAX} words"):
        compile_sql(f"{words} OR a=1 OR a=1")


def test_a_broker_starts_without_the_libraries_that_few_need() -> None:
    code = "import sys, cometmq.broker.lifecycle\nprint(*{'lark', 'cryptography'} & {*sys.modules})"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr
