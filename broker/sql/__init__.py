"""SQL92 filter expressions: text in, a function over a message's properties out.

`compile_sql` is the face: `grammar.lark` says what can be written, `parser.py` makes a tree of it and
refuses what has no meaning, with the position, `evaluator.py` makes the tree callable. Source: broker
semantics, section 4.3. Pure.
"""

from __future__ import annotations

from functools import lru_cache

from .evaluator import Evaluate, compiled
from .parser import SqlError, parse

__all__ = ["Evaluate", "SqlError", "compile_sql"]

_CACHE = 1_024
"""Expressions kept, refused ones too: a consumer sends its own with every poll."""


def compile_sql(text: str) -> Evaluate:
    """The expression as a function of a message's properties; cached. Raises SqlError."""
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
