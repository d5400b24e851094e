"""JSON bodies of requests: objects, lists and names, read as fastjson reads them, with limits.
Raises RemotingError.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...remoting.bare_json import as_bool, as_int, as_text, loads
from ...remoting.codes import Reply
from ...remoting.connection import RemotingError

#: A heartbeat or a list of queues: 1,000 subscriptions take about 200 KiB.
BODY_BYTES_MAX = 512 << 10
ITEMS_MAX = 1_000
NAME_CHARS_MAX = 255
#: The longest document that only fastjson can read: 30 ms of the event loop at most.
_BARE_BYTES_MAX = 32 << 10
#: Converts a value as fastjson does, by the type that is needed.
_CONVERTERS = {int: as_int, str: as_text, bool: as_bool}


def json_object(body: bytes) -> dict[Any, Any]:
    """Return the JSON object of a body."""
    if len(body) > BODY_BYTES_MAX:
        raise malformed(f"it is over {BODY_BYTES_MAX} bytes")
    try:
        text = body.decode("utf-8", "replace")
        try:
            found = json.loads(text)
        except ValueError:
            if len(body) > _BARE_BYTES_MAX:
                raise
            found = loads(body)
        if "\\u" in text:  # half of a surrogate pair: it cannot be encoded
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # RecursionError: too many levels
        raise malformed(str(error)) from None
    if not isinstance(found, dict):
        raise malformed("it is not a JSON object")
    return found


def items_of(found: Any, name: str, limit: int = ITEMS_MAX) -> list[Any]:
    """Return a list of an object; empty if it is absent."""
    items = found.get(name) if isinstance(found, dict) else None
    if items is None:
        return []
    if not isinstance(items, list) or len(items) > limit:
        raise malformed(f"{name} is not a list of at most {limit} items")
    return items


def name_of(found: Any, name: str) -> str:
    """Return a text of an object that is a name."""
    text = as_text(found.get(name)) if isinstance(found, dict) else None
    if text is None or not 0 < len(text) <= NAME_CHARS_MAX:
        raise malformed(f"{name} is not a text of 1 to {NAME_CHARS_MAX} characters")
    return text


def value_of(found: Any, name: str, kind: type, default: Any) -> Any:
    """Return a value of an object; the default if it is absent or null."""
    value = found.get(name) if isinstance(found, dict) else None
    if value is None:
        return default
    if type(value) is not kind:
        value = _CONVERTERS[kind](value) if kind in _CONVERTERS else None
        if value is None:
            raise malformed(f"{name} is not of type {kind.__name__}")
    return value


@contextmanager
def in_range() -> Iterator[None]:
    """Let a request of the gRPC protocol be built of a body's values: a number that its field
    cannot hold raises RemotingError."""
    try:
        yield
    except ValueError as error:
        raise malformed(str(error)) from None


def malformed(reason: str) -> RemotingError:
    """Return the error for a body that cannot be read."""
    return RemotingError(Reply.SYSTEM_ERROR, f"the body cannot be read: {reason}")
