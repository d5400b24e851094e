"""Salvage of a damaged JSON file: its longest part from the start that can be completed.

A file that was cut, or is damaged in the middle, loses the entries from the damage on. A file of
ours whose content is valid JSON and does not match its checksum is kept as it is: one value of it
is wrong.
"""

from pathlib import Path
from typing import Final

from .json_file import CHECKSUM, ConfigSyntaxError, dumps, loads, unseal

#: Completed parts that are tried, from the longest on.
_TRIES_MAX: Final = 1000


def is_readable(path: Path) -> bool:
    """Return whether the file is whole."""
    try:
        loads(unseal(path.read_bytes().decode()))
    except (FileNotFoundError, UnicodeDecodeError, ConfigSyntaxError):
        return False
    return True


def readable_part(path: Path) -> str:
    """Return an object of what the file's longest readable part holds, as text; "" without any
    entry."""
    text = path.read_bytes().decode(errors="replace")
    damage = [at for at in (text.find("\ufffd"), text.find("\0")) if at >= 0]
    ends = _value_ends(text[: min(damage, default=len(text))])
    for end, closers in ends[: -_TRIES_MAX - 1 : -1]:
        try:
            document = loads(text[:end] + closers)
        except ConfigSyntaxError:
            continue
        document.pop(CHECKSUM, None)
        return dumps(document) if document else ""
    return ""


def _value_ends(text: str) -> list[tuple[int, str]]:
    """Return the positions behind which the text may end, and the brackets that close it."""
    ends: list[tuple[int, str]] = []
    stack: list[str] = []
    quoted = escaped = False
    for at, character in enumerate(text):
        if quoted:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                quoted = False
        elif character == '"':
            quoted = True
        elif character in "{[":
            stack.append("}" if character == "{" else "]")
        elif character in "}]":
            if not stack or stack.pop() != character:
                break
            ends.append((at + 1, "".join(reversed(stack))))
        elif character == "," and stack:
            ends.append((at, "".join(reversed(stack))))
    return ends
