"""SQL92 filter expressions: compile an expression into a function of a message's properties. Pure.

`compile_sql` is the entry point. `grammar.lark` defines the syntax, `parser.py` builds a syntax
tree and rejects meaningless expressions with their position, `evaluator.py` compiles the tree.
Source: docs/formats/broker-semantics.md, section 4.3.
"""

from __future__ import annotations

from functools import lru_cache

from .evaluator import Evaluate, compiled
from .parser import SqlError, parse

__all__ = ["Evaluate", "SqlError", "compile_sql"]

_CACHE = 1_024
"""Cached expressions, including rejected ones: a consumer sends its expression with every poll."""


def compile_sql(text: str) -> Evaluate:
    """Return the expression as a function of a message's properties (cached). Raises SqlError."""
    found = _compiled(text)
    if isinstance(found, SqlError):
        raise found.again()
    return found


@lru_cache(maxsize=_CACHE)
def _compiled(text: str) -> Evaluate | SqlError:
    try:
        return compiled(parse(text))
    except SqlError as error:
        return error.again()
