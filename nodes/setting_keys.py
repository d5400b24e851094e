"""Keys and values of configuration classes, as configuration files and tools show them.

Secrets are never listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field, fields
from typing import Any

_SECRET_WORDS = ("token", "password", "secret")
_HIDDEN = "(hidden)"


def key_of(field: Field[Any]) -> str:
    """Return the key of a field in a configuration file."""
    if "key" in field.metadata:
        return str(field.metadata["key"])
    head, *rest = field.name.split("_")
    return "".join([head, *(part.capitalize() for part in rest)])


def entries(
    configurations: Iterable[Any], origins: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Return every key with its value and origin."""
    entries: dict[str, tuple[str, str]] = {}
    for configuration in configurations:
        for field in fields(configuration):
            key = key_of(field)
            value = getattr(configuration, field.name)
            default = "default" if value == field.default else "set"
            hidden = "secret" in field.metadata
            if hidden or key.lower().endswith(_SECRET_WORDS):
                value = _HIDDEN if value else ""
            text = str(value).lower() if isinstance(value, bool) else str(value)
            entries[key] = (text, origins.get(key, default))
    return entries
