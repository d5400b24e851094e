"""YAML of JSON documents: block style, strings quoted as in JSON unless they are plainly text.

What is quoted and what is not is the same in YAML 1.1 and 1.2, so every reader gets the values of
the JSON document. Only this direction is needed, so there is no YAML library.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_INDENT = "  "
# Starts with a letter or "/", has no character with a meaning in YAML, and no blank at its end.
_PLAIN = re.compile(r"[A-Za-z/](?:[\w./@+-]| (?=[\w./@+-]))*", re.ASCII)
#: Words that YAML 1.1 or 1.2 reads as a boolean or null.
_RESERVED = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null"})
# Characters that JSON leaves as they are and YAML does not allow or takes for line ends.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def yaml_lines(document: Any) -> Iterator[str]:
    """Yield the lines of a document of mappings, lists, strings, numbers, booleans and None."""
    if isinstance(document, Mapping) and document:
        for key, value in document.items():
            yield from _entry(f"{_scalar(str(key))}:", value, is_item=False)
    elif isinstance(document, Sequence) and not isinstance(document, str) and document:
        for value in document:
            yield from _entry("-", value, is_item=True)
    else:
        yield _scalar(document)


def _entry(start: str, value: Any, *, is_item: bool) -> Iterator[str]:
    """Yield `key: value` or `- value`; a collection goes to the following lines, indented, and that
    of an item starts in its line."""
    if not isinstance(value, Mapping | list | tuple) or not value:
        yield f"{start} {_scalar(value)}"
        return
    lines = yaml_lines(value)
    if is_item:
        yield f"{start} {next(lines)}"
    else:
        yield start
    yield from (_INDENT + line for line in lines)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _RESERVED
        return value if is_plain else _quoted(value)
    return "[]" if value == () else json.dumps(value)


def _quoted(text: str) -> str:
    found = json.dumps(text, ensure_ascii=False)
    return _ESCAPED.sub(lambda char: f"\\u{ord(char[0]):04x}", found)
