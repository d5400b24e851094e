"""Text of Java properties: configuration in the bodies of admin requests.

RocketMQ writes one `key=value` a line, and reads with Java's rules: a backslash escapes. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

#: A file of all settings with their comments; more is no change of settings.
_BYTES_MAX = 64 << 10

_ESCAPE = re.compile(r"\\(.)")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}


def dumps(values: Mapping[str, str]) -> bytes:
    """Return the text of the values, by key."""
    lines = [f"{key}={_escaped(values[key])}\n" for key in sorted(values)]
    return "".join(lines).encode()


def loads(body: bytes, entries_max: int) -> dict[str, str]:
    """Return the values of a text, by key. Raises ValueError.

    Lines without a key, comments and blank lines are skipped; a line that ends with a backslash
    goes on in the next one. A key that is repeated counts each time.
    """
    if len(body) > _BYTES_MAX:
        raise ValueError(f"more than {_BYTES_MAX} bytes of settings in one request")
    properties: dict[str, str] = {}
    entries = 0
    text = body.decode().replace("\r\n", "\n").replace("\\\n", "")
    for line in map(str.strip, text.split("\n")):
        if not line or line[0] in "#!":
            continue
        key, _, value = line.partition("=")
        entries += 1
        if entries > entries_max:
            raise ValueError(f"more than {entries_max} settings in one request")
        if key.strip():
            properties[key.strip()] = _plain(value.strip())
    return properties


def _plain(value: str) -> str:
    return _ESCAPE.sub(lambda match: _LETTERS.get(match[1], match[1]), value)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
