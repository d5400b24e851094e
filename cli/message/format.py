"""Formats of `cometmq consume -f`: the letters of kcat, and those of messages with more fields.

    %s body  %S its size  %k keys  %t topic  %p queue  %o offset  %T store time (ms)  %h properties
    %i message id  %G tag  %g message group  %a delivery attempt  %b broker group  %% a percent sign
    \\n \\t \\r \\0 \\\\ \\xHH    characters

Bodies are written as they are: a format may put any bytes around them.
"""

import re
from collections.abc import Callable, Sequence

import click

from ...client.message import Message

Part = bytes | Callable[[Message], bytes]

_FIELDS: dict[str, Callable[[Message], object]] = {
    "S": lambda message: len(message.body),
    "k": lambda message: ",".join(message.keys),
    "t": lambda message: message.topic,
    "p": lambda message: message.queue_id,
    "o": lambda message: message.offset,
    "T": lambda message: message.stored_ms,
    "h": lambda message: ",".join(f"{name}={text}" for name, text in message.properties.items()),
    "i": lambda message: message.message_id,
    "G": lambda message: message.tag,
    "g": lambda message: message.group,
    "a": lambda message: message.attempt,
    "b": lambda message: message.broker,
}
LETTERS = "".join(["s", *_FIELDS])
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(.?)|\\x([0-9A-Fa-f]{2})|\\(.?)|([^%\\]+)", re.DOTALL)


def parse(text: str) -> list[Part]:
    """Return the parts of a format. Raises click.BadParameter."""
    parts: list[Part] = []
    for found in _TOKEN.finditer(text):
        letter, code, escape, plain = found.groups()
        if plain is not None:
            parts.append(plain.encode("utf-8", "surrogateescape"))
        elif code is not None:
            parts.append(bytes.fromhex(code))
        elif escape is not None:
            if escape not in _ESCAPES:
                raise click.BadParameter(
                    f"'\\{escape}' is none of \\n, \\t, \\r, \\0, \\\\, \\xHH."
                )
            parts.append(_ESCAPES[escape])
        else:
            parts.append(_field(letter))
    return parts


def _field(letter: str) -> Part:
    if letter == "%":
        return b"%"
    if letter == "s":
        return lambda message: message.body
    if letter not in _FIELDS:
        raise click.BadParameter(f"'%{letter}' is none of the letters {LETTERS} behind a '%'.")
    read = _FIELDS[letter]
    return lambda message: str(read(message)).encode("utf-8", "surrogateescape")


def formatted(parts: Sequence[Part], message: Message) -> bytes:
    """Return the text of a message."""
    return b"".join(part if isinstance(part, bytes) else part(message) for part in parts)
