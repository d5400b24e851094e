"""Text of Java properties: configuration in the bodies of admin requests.

RocketMQ writes one `key=value` a line, and reads with Java's rules: a backslash escapes. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping


def dumps(values: Mapping[str, str]) -> bytes:
    """Return the text of the values, by key."""
    lines = [f"{key}={_escaped(values[key])}\n" for key in sorted(values)]
    return "".join(lines).encode()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
