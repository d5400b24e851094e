"""SQL92 filter expressions: compile an expression into a function of a message's properties. Pure.

`compile_sql` is the entry point. `grammar.lark` defines the syntax, `parser.py` builds a syntax
tree and rejects meaningless expressions with their position, `evaluator.py` compiles the tree.
Source: docs/formats/broker-semantics.md, section 4.3.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .errors import SqlError

if TYPE_CHECKING:
    from .evaluator import Evaluate

__all__ = ["Evaluate", "SqlError", "compile_sql", "load_parser"]


def compile_sql(text: str) -> Evaluate:
    """Return the expression as a function of a message's properties. Raises SqlError.

    Takes milliseconds: callers keep the result.
    """
    from .evaluator import compiled  # see `load_parser`
    from .parser import parse

    return compiled(parse(text))


def load_parser() -> None:
    """Load the parser, its library and its grammar: about 50 ms, which the start of a broker saves.

    Without this the first expression loads it.
    """
    for module in (".parser", ".evaluator"):
        importlib.import_module(module, __name__)
