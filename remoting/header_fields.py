"""Fields of request headers: how a dataclass names and converts the values of `Command.fields`.

Every value travels as text. `read` converts the fields of a request; it raises `HeaderError`, whose
text is the remark of the SYSTEM_ERROR response, for a missing or malformed value. Fields that a
class does not name are ignored: clients send many (docs/formats/remoting.md, sections 8 to 13).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from functools import lru_cache
from typing import Any, TypeVar

_Header = TypeVar("_Header")
_LONG_DIGITS_MAX = 20
#: Every number with fewer digits has 32 bits.
_SHORT_DIGITS = 10


class HeaderError(ValueError):
    """A required field is missing, or a value does not have the type of its field."""


def _number(bits: int) -> Callable[[str], int]:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def parse(text: str) -> int:
        if len(text) < _SHORT_DIGITS and text.isdigit() and text.isascii():
            return int(text)
        # Java's parser: digits with a sign; Python's would accept blanks and underscores.
        digits = text[1:] if text[:1] in ("-", "+") else text
        if digits.isascii() and digits.isdigit() and len(text) <= _LONG_DIGITS_MAX:
            value = int(text)
            if low <= value <= high:
                return value
        raise HeaderError(f'For input string: "{text[:100]}"')

    return parse


def text(name: str, default: Any = MISSING, letter: str = "") -> Any:
    return field(default=default, metadata={"name": name, "letter": letter, "parse": str})


def integer(name: str, default: Any = MISSING, letter: str = "") -> Any:
    return field(default=default, metadata={"name": name, "letter": letter, "parse": _number(32)})


def long(name: str, default: Any = MISSING, letter: str = "") -> Any:
    return field(default=default, metadata={"name": name, "letter": letter, "parse": _number(64)})


def boolean(name: str, default: Any = MISSING, letter: str = "") -> Any:
    def parse(text: str) -> bool:
        return text.lower() == "true"

    return field(default=default, metadata={"name": name, "letter": letter, "parse": parse})


def read(header: type[_Header], fields: Mapping[str, str], *, letters: bool = False) -> _Header:
    """Return the header that the fields of a request hold; `letters` takes the short names (V2).

    Raises HeaderError.
    """
    values = {}
    layout: Any = header
    for attribute, name, parse, required in _plan(layout, letters):
        value = fields.get(name)
        if value is not None:
            values[attribute] = parse(value)
        elif required:
            raise HeaderError(f"the custom field <{name}> is null")
    return header(**values)


@lru_cache(maxsize=256)
def _plan(header: Any, letters: bool) -> list[tuple[str, str, Callable[[str], Any], bool]]:
    name = "letter" if letters else "name"
    return [
        (each.name, each.metadata[name], each.metadata["parse"], each.default is MISSING)
        for each in fields(header)
    ]
