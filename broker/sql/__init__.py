"""SQL92 filter expressions: compile an expression into a function of a message's properties. Pure.

`compile_sql` is the entry point. `grammar.lark` defines the syntax, `parser.py` builds a syntax
tree and rejects meaningless expressions with their position, `evaluator.py` compiles the tree.
Source: docs/formats/broker-semantics.md, section 4.3.
"""

from __future__ import annotations

from .evaluator import Evaluate, compiled
from .parser import SqlError, parse

__all__ = ["Evaluate", "SqlError", "compile_sql"]


def compile_sql(text: str) -> Evaluate:
    """Return the expression as a function of a message's properties. Raises SqlError.

    Takes milliseconds: callers keep the result.
    """
    return compiled(parse(text))
