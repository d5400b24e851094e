"""JSON as Java's fastjson writes it: maps whose keys are numbers or objects, without quotes.

RocketMQ writes `{0:"10.0.0.1:10911"}` for a map from broker ids, and a map from queues with keys
like `{"brokerName":"b","queueId":0,"topic":"T"}`. Pure. Such keys are `int` and `QueueKey` in
Python; all other values are those of the module `json`. Standard JSON is read by that module.
fastjson also reads names without quotes, texts in single quotes, comments, a comma before the end
of an object, `+1` and `1L`, and converts values to the type that it needs: so do `loads` and
`as_int`, `as_text`, `as_bool`, `as_enum`, because clients in other languages write numbers as texts
and enums as numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

#: Documents of RocketMQ have at most five levels.
NESTING_MAX = 32

#: Space and comments.
_SPACE = re.compile(r"(?:[ \t\r\n]+|/\*.*?\*/|//[^\n]*)*", re.DOTALL)
#: With a sign, and the suffix of a Java long.
_NUMBER = re.compile(r"[-+]?\d{1,300}(\.\d{1,300})?([eE][-+]?\d{1,4})?")
_LONG = "L"
_WORDS = {"true": True, "false": False, "null": None}
_WORD = re.compile("true|false|null")
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]{0,254}")
_QUOTED = {
    quote: re.compile(rf"{quote}((?:[^{quote}\\]|\\.)*){quote}", re.DOTALL) for quote in "'\""
}
#: An escape that standard JSON has not, and a quote that it escapes.
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|[0-7]|.)|\"", re.DOTALL)
_ESCAPED = {"v": "\\u000b", **{one: one for one in "'#&-@():"}}
_NUMBER_TEXT = re.compile(r"[-+]?[0-9]{1,19}(\.[0-9]{0,300})?([eE][-+]?[0-9]{1,2})?", re.ASCII)
#: Characters that fastjson skips in the name of an enum's value.
_SKIPPED = str.maketrans("", "", "_- ")
_TRUE = frozenset(("true", "1", "y", "t"))
_decoder = json.JSONDecoder(strict=False)
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class BareJsonError(ValueError):
    """A text is no JSON, with or without bare keys, or has too many levels."""


class QueueKey(NamedTuple):
    """A message queue as the key of a map."""

    broker: str
    queue_id: int
    topic: str

    def document(self) -> dict[str, Any]:
        """Return the queue as a JSON object, names in Java's order."""
        return {"brokerName": self.broker, "queueId": self.queue_id, "topic": self.topic}


def dumps(value: Any) -> bytes:
    """Return a document; `int` and `QueueKey` keys are written bare."""
    parts: list[str] = []
    _write(value, parts)
    return "".join(parts).encode()


def _write(value: Any, parts: list[str]) -> None:
    if isinstance(value, dict):
        before = "{"
        for key, item in value.items():
            parts.append(before)
            parts.append(_encode(key.document() if isinstance(key, QueueKey) else key))
            parts.append(":")
            _write(item, parts)
            before = ","
        parts.append("{}" if before == "{" else "}")
    elif isinstance(value, list):
        before = "["
        for item in value:
            parts.append(before)
            _write(item, parts)
            before = ","
        parts.append("[]" if before == "[" else "]")
    else:
        parts.append(_encode(value))


def loads(data: bytes) -> Any:
    """Return the value of a document. Raises BareJsonError."""
    text = data.decode("utf-8", "replace")
    reader = _Reader(text)
    try:
        value = reader.value(0)
    except (ValueError, IndexError) as error:
        if isinstance(error, BareJsonError):
            raise
        raise BareJsonError(f"not JSON: {error}") from None
    if reader.at < len(text):
        raise BareJsonError(f"not JSON: text follows at position {reader.at}")
    return value


class _Reader:
    """Position in a text; each method leaves it behind what it read and the space after that."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._skip("")

    def value(self, level: int) -> Any:
        if level > NESTING_MAX:
            raise BareJsonError(f"more than {NESTING_MAX} levels")
        first = self.text[self.at]
        if first == "{":
            return self._object(level)
        if first == "[":
            return self._array(level)
        if first in ('"', "'"):
            return self._string()
        word = _WORD.match(self.text, self.at)
        if word is not None:
            self._skip(word[0])
            return _WORDS[word[0]]
        return self._number()

    def _object(self, level: int) -> dict[Any, Any]:
        members: dict[Any, Any] = {}
        self._skip("{")
        while self.text[self.at] != "}":
            if members:
                self._skip(",")
                if self.text[self.at] == "}":
                    break
            key = self._key(level)
            self._skip(":")
            members[key] = self.value(level + 1)
        self._skip("}")
        return members

    def _key(self, level: int) -> str | int | QueueKey:
        first = self.text[self.at]
        if first in ('"', "'"):
            return self._string()
        name = _NAME.match(self.text, self.at)
        if name is not None:
            self._skip(name[0])
            return name[0]
        if first != "{":
            number = self._number()
            if isinstance(number, int):
                return number
            raise BareJsonError("a bare key is not an integer")
        if level >= NESTING_MAX:
            raise BareJsonError(f"more than {NESTING_MAX} levels")
        return queue_key(self._object(level + 1))

    def _array(self, level: int) -> list[Any]:
        items: list[Any] = []
        self._skip("[")
        while self.text[self.at] != "]":
            if items:
                self._skip(",")
            items.append(self.value(level + 1))
        self._skip("]")
        return items

    def _string(self) -> str:
        text: str
        quote = self.text[self.at]
        if quote == '"':
            with suppress(ValueError):  # an escape that standard JSON has not
                text, self.at = _decoder.raw_decode(self.text, self.at)
                self._skip("")
                return text if text.isascii() else text.encode("utf-8", "replace").decode()
        match = _QUOTED[quote].match(self.text, self.at)
        if match is None:
            raise BareJsonError(f"a text does not end: position {self.at}")
        self._skip(match[0])
        text = _decoder.decode(f'"{_ESCAPE.sub(_standard, match[1])}"')
        return text if text.isascii() else text.encode("utf-8", "replace").decode()

    def _number(self) -> int | float:
        match = _NUMBER.match(self.text, self.at)
        if match is None:
            raise BareJsonError(f"not JSON at position {self.at}")
        is_long = self.text.startswith(_LONG, match.end()) and not (match[1] or match[2])
        self._skip(match[0] + _LONG * is_long)
        value = float(match[0]) if match[1] or match[2] else int(match[0])
        if value in (inf, -inf):
            raise BareJsonError(f"a number is too large: {match[0][:20]}")
        return value

    def _skip(self, expected: str) -> None:
        if not self.text.startswith(expected, self.at):
            raise BareJsonError(f"{expected!r} is missing at position {self.at}")
        space = _SPACE.match(self.text, self.at + len(expected))
        assert space is not None
        self.at = space.end()


def _standard(match: re.Match[str]) -> str:
    """Return an escape of fastjson as one of standard JSON."""
    escaped = match[1]
    if escaped is None:
        return '\\"'  # a quote within single quotes
    if escaped in _ESCAPED:
        return _ESCAPED[escaped]
    if len(escaped) > 1 or escaped.isdecimal():
        return f"\\u{escaped.removeprefix('x'):0>4}"
    return match[0]


def queue_key(key: Any) -> QueueKey:
    """Return the queue that a JSON object names. Raises BareJsonError."""
    if not isinstance(key, dict):
        raise BareJsonError("a message queue is not an object")
    broker, topic = as_text(key.get("brokerName")), as_text(key.get("topic"))
    queue_id = as_int(key.get("queueId"))
    if broker is None or queue_id is None or topic is None:
        raise BareJsonError("an object is not a message queue: brokerName, queueId, topic")
    return QueueKey(broker, queue_id, topic)


def as_int(value: Any) -> int | None:
    """Return a number as fastjson converts a value to a Java long; None if there is none."""
    if isinstance(value, str) and (match := _NUMBER_TEXT.fullmatch(value.replace(",", ""))):
        value = float(match[0]) if match[1] or match[2] else int(match[0])
    if isinstance(value, int | float) and abs(value) < 1 << 63:
        return int(value)
    return None


def as_text(value: Any) -> str | None:
    """Return a text as fastjson converts a value to a Java string; None for null and documents."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, int | float) else None


def as_bool(value: Any) -> bool | None:
    """Return a truth value as fastjson converts a value to a Java boolean; None for null."""
    if isinstance(value, str):
        return value.lower() in _TRUE if value not in ("", "null") else None
    if isinstance(value, float):
        return False
    return abs(value) == 1 if isinstance(value, int) else None


def _plain(name: str) -> str:
    return name.lower().translate(_SKIPPED)


def as_enum(value: Any, names: Sequence[str]) -> str:
    """Return the name of an enum's value, given as name, in any case, or as ordinal; "" for
    anything else."""
    if isinstance(value, str) and not value.isdecimal():
        wanted = {value.lower(), value.lower().translate(_SKIPPED)}
        return next((n for n in names if n.lower() in wanted or _plain(n) in wanted), "")
    at = as_int(value)
    return names[at] if at is not None and 0 <= at < len(names) else ""
