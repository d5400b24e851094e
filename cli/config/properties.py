r"""Java properties, the format of `broker.conf`: pure functions between text and ordered entries.

    # comment          a line whose first visible character is '#' or '!'
    key=value          the key ends at the first '=', ':' or blank without a backslash before it
    a\                 an odd number of backslashes at a line's end continues it;
       b               the next line's leading blanks are dropped: "ab"
    \t \n \r \f \\     the usual escapes; \uXXXX one UTF-16 unit; before any other character the
                       backslash is dropped

The last value of a repeated key is used. Files are decoded as UTF-8, or as ISO-8859-1 (Java's
default) if they are not valid UTF-8. Format: the documentation of java.util.Properties.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

_BLANKS = " \t\f"
_SEPARATORS = "=:"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "\\": "\\\\"}
_HEX_DIGITS = 4
# A larger file is not a configuration file (a segment or a device named by mistake).
FILE_SIZE_MAX = 1 << 20


class PropertiesError(ValueError):
    """The text is not a properties file; the message names the line."""


class Entry(Struct, frozen=True):
    """One key of a file and its first line, counted from 1."""

    key: str
    value: str
    line: int


def parse(text: str) -> list[Entry]:
    """Return all entries in file order. Raises PropertiesError."""
    return [_entry(logical, line) for line, logical in _logical_lines(text)]


def read(path: Path) -> list[Entry]:
    """Return the entries of a file. Raises OSError, PropertiesError."""
    with path.open("rb") as file:
        data = file.read(FILE_SIZE_MAX + 1)
    if len(data) > FILE_SIZE_MAX:
        raise PropertiesError(f"{path} is larger than 1 MiB and not a configuration file.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("iso-8859-1")
    try:
        return parse(text)
    except PropertiesError as error:
        raise PropertiesError(f"{path}, {error}") from None


def dump(values: Mapping[str, str], comments: Iterable[str] = ()) -> str:
    """Return the text of a file that `parse` reads back as `values`."""
    lines = [f"# {comment}" for comment in comments]
    lines += [f"{_escape(key, is_key=True)}={_escape(value)}" for key, value in values.items()]
    return "".join(line + "\n" for line in lines)


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """Yield lines with continuations joined, without comments and empty lines."""
    natural = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    number = 0
    while number < len(natural):
        start = number
        line = natural[number].lstrip(_BLANKS)
        number += 1
        if not line or line[0] in "#!":
            continue
        while _is_continued(line):
            following = natural[number].lstrip(_BLANKS) if number < len(natural) else ""
            line = line[:-1] + following
            number += 1
        yield start + 1, line


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _entry(line: str, number: int) -> Entry:
    end = 0
    while end < len(line) and line[end] not in _BLANKS + _SEPARATORS:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANKS)
    if rest and rest[0] in _SEPARATORS:
        rest = rest[1:].lstrip(_BLANKS)
    return Entry(_unescape(line[:end], number), _unescape(rest, number), number)


def _unescape(text: str, line: int) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\\":
            parts.append(text[at])
            at += 1
            continue
        letter = text[at + 1 : at + 2]
        if letter == "u":
            parts.append(_unit(text[at + 2 : at + 2 + _HEX_DIGITS], line))
            at += 2 + _HEX_DIGITS
        else:
            parts.append(_ESCAPES.get(letter, letter))
            at += 2
    # Two \u units may be a surrogate pair.
    return "".join(parts).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _unit(digits: str, line: int) -> str:
    if len(digits) != _HEX_DIGITS or not all(c in "0123456789abcdefABCDEF" for c in digits):
        raise PropertiesError(f"line {line}: \\u needs four hexadecimal digits, not '{digits}'.")
    return chr(int(digits, 16))


def _escape(text: str, *, is_key: bool = False) -> str:
    parts: list[str] = []
    for at, character in enumerate(text):
        if character in _ESCAPED:
            parts.append(_ESCAPED[character])
        elif (character == " " and (is_key or at == 0)) or (is_key and character in "=:#!"):
            parts.append("\\" + character)
        elif ord(character) < 0x20 or "\x7f" <= character <= "\xa0" or character in "\u2028\u2029":
            parts.append(f"\\u{ord(character):04x}")
        else:
            parts.append(character)
    return "".join(parts)
