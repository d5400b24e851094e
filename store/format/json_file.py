"""RocketMQ's JSON configuration files: a lenient reader, a writer of its dialect, the `.bak`
protocol.

Reads what fastjson 1 and 2 write, and hand-edited files; writes what fastjson 2 writes, so that a
file of Apache's 5.5 broker passes through `loads` and `dumps` unchanged
(docs/formats/store-format.md, section 12.2). A crash at any point of `persist` leaves at least one
whole file.

Dialect: tabs, no space after the colon, no newline at the end. Numeric keys have no quotes: they
are `int` here, all other keys `str`. An array of numbers is on one line, any other has a line per
element. The reader also accepts fastjson 1's inline maps, quoted numbers as keys (they stay `str`),
single quotes, bare names, comments, trailing commas, raw control characters and a byte order mark.
Floats are written in Python's shortest form; RocketMQ's files hold none.

Protocol: Apache renames the file to `.bak`, syncs the directory, then writes the file in place
(section 12.1): a crash in between leaves only `.bak`, and `load` on both sides falls back to it.
Here the new content is first written to `.tmp` and synced; then the file is renamed to `.bak` and
`.tmp` to the file. A crash leaves one of Apache's states (never the half-written file), and perhaps
a `.tmp`, which is not read and which the next write replaces.

The first field of a file of ours is a checksum of the rest, which Apache ignores and drops on
writing. A file that does not match it is damaged, or was edited by hand: it is renamed to `.broken`
and the backup is used. To edit a file, remove the checksum's line.

The content is derived from the log, or at most a few seconds old; see the owning modules.
"""

import json
import logging
import os
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from json.encoder import encode_basestring, encode_basestring_ascii
from math import isfinite
from pathlib import Path
from typing import Any, Final

from .disk import Disk
from .errors import StoreError

logger = logging.getLogger(__name__)

#: One part of the text that is invalid in strict JSON, or that may contain such parts (strings). An
#: unterminated string extends to the end of the text, so that one pass is enough.
_PARTS: Final = re.compile(
    r'(?P<string>"(?:[^"\\]++|\\.)*+(?:"|\\?\Z))'
    r"|(?P<single>'(?:[^'\\]++|\\.)*+(?:'|\\?\Z))"
    r"|(?P<comment>//[^\n]*+|/\*.*?(?:\*/|\Z))"
    r"|(?P<key>(?<![\w$])[A-Za-z_$][\w$]*+|-?(?<![\w$])\d++)(?=\s*+:)",
    re.DOTALL,
)
_STRING_OR_LAST_COMMA: Final = re.compile(
    r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|,(?=\s*+[}\]])', re.DOTALL
)
_NUMBER: Final = re.compile(r"-?\d+", re.ASCII)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
#: The first field of a file of ours: the CRC-32 of the text without it, 8 hexadecimal digits.
CHECKSUM: Final = "cometmqChecksum"
#: A field of files of ours: the id of their store (../holdings.py).
STORE_KEY: Final = "cometmqStore"
_SEAL: Final = re.compile(rf'\{{(\s*)"{CHECKSUM}":"([0-9a-f]{{8}})"(,?)')
#: Private characters, one of which marks unquoted keys during parsing.
_MARKS: Final = range(0xE000, 0xF900)


class ConfigFileError(StoreError):
    """A configuration file and its backup are both unreadable."""


class ConfigSyntaxError(ValueError):
    """Text that is not JSON in any dialect; `position` is the index of the failing character."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"{reason} at character {position}")
        self.reason = reason
        self.position = position


def loads(text: str) -> dict[str | int, Any]:
    """Parse an object. Raises ConfigSyntaxError."""
    text = text.removeprefix("\ufeff")
    try:
        value = json.loads(
            text, strict=False, parse_constant=_refuse_constant, parse_float=_finite_float
        )
    except json.JSONDecodeError:
        value = _loads_leniently(text)
    except RecursionError:
        raise ConfigSyntaxError("too deeply nested", 0) from None
    except ValueError as error:
        raise ConfigSyntaxError(str(error), 0) from None
    if not isinstance(value, dict):
        raise ConfigSyntaxError("not a JSON object", 0)
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not isfinite(value):
        raise ValueError("a number is out of range")
    return value


def _loads_leniently(text: str) -> Any:
    strict, places = _to_strict(text)
    mark = places.mark
    marked = f"{mark}-", *(f"{mark}{digit}" for digit in range(10))

    def pairs(items: list[tuple[str, Any]]) -> dict[str | int, Any]:
        return {int(key[1:]) if key.startswith(marked) else key: value for key, value in items}

    try:
        return json.loads(
            strict,
            strict=False,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
            object_pairs_hook=pairs,
        )
    except json.JSONDecodeError as error:
        raise ConfigSyntaxError(error.msg, places.original(error.pos)) from None
    except RecursionError:
        raise ConfigSyntaxError("too deeply nested", 0) from None
    except ValueError as error:
        raise ConfigSyntaxError(str(error), 0) from None


class _SourcePositions:
    """Maps positions of a rewritten text to the original."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self._changes: list[tuple[int, int]] = []  # position in the result, in the original

    def note(self, result: int, original: int) -> None:
        self._changes.append((result, original))

    def original(self, position: int) -> int:
        at = (0, 0)
        for change in self._changes:
            if change[0] > position:
                break
            at = change
        return at[1] + position - at[0]


def _to_strict(text: str) -> tuple[str, _SourcePositions]:
    """Return the text as strict JSON; unquoted numeric keys carry a mark."""
    lower = text.lower()
    mark = next(chr(c) for c in _MARKS if chr(c) not in text and f"\\u{c:04x}" not in lower)
    places = _SourcePositions(mark)
    result: list[str] = []
    length = 0
    end = 0
    for match in _PARTS.finditer(text):
        if match.lastgroup == "string":
            continue
        before = text[end : match.start()]
        part = _strict_part(match, mark)
        result += before, part
        length += len(before) + len(part)
        end = match.end()
        places.note(length, end)
    result.append(text[end:])
    return _STRING_OR_LAST_COMMA.sub(_keep_length, "".join(result)), places


def _strict_part(match: re.Match[str], mark: str) -> str:
    part = match.group()
    if match.lastgroup == "comment":
        return " "
    if match.lastgroup == "single":
        inside = part[1:-1].replace("\\'", "'")
        return '"' + re.sub(r'\\.|"', lambda m: m[0] if m[0] != '"' else '\\"', inside) + '"'
    return f'"{mark}{part}"' if _NUMBER.fullmatch(part) else f'"{part}"'


def _keep_length(match: re.Match[str]) -> str:
    return " " if match.group() == "," else match.group()


def dumps(value: dict[Any, Any], *, compact: bool = False) -> str:
    """Encode an object; the caller orders the fields. `compact` is the form of the metrics files:
    one line, ASCII only."""
    out: list[str] = []
    if compact:
        _write(value, out, "", "", encode_basestring_ascii)
    else:
        _write(value, out, "\n", "\t", _quoted)
    return "".join(out)


def ordered(bean: dict[Any, Any]) -> dict[Any, Any]:
    """Return the fields in Apache's order: alphabetical."""
    return dict(sorted(bean.items(), key=lambda item: str(item[0])))


def _quoted(text: str) -> str:
    if text.isascii() or _SURROGATE.search(text) is None:
        quoted: str = encode_basestring(text)
        return quoted
    # A lone surrogate has no UTF-8: it stays an escape, as in the source.
    return encode_basestring_ascii(text)


def _write(
    value: Any, out: list[str], line: str, indent: str, quoted: Callable[[str], str]
) -> None:
    if isinstance(value, str):
        out.append(quoted(value))
    elif value is True or value is False or value is None:
        out.append("null" if value is None else "true" if value else "false")
    elif isinstance(value, dict):
        _write_object(value, out, line, indent, quoted)
    elif isinstance(value, list | tuple):
        _write_array(value, out, line, indent, quoted)
    else:
        out.append(json.dumps(value, allow_nan=False))


def _write_object(
    value: dict[Any, Any], out: list[str], line: str, indent: str, quoted: Callable[[str], str]
) -> None:
    if not value:
        out.append("{}")
        return
    inner = line + indent
    separator = "{" + inner
    for key, item in value.items():
        name = key if isinstance(key, int) else quoted(key)
        # Fast path for the most common type: a file of ten thousand topics is encoded on the event
        # loop.
        if type(item) is str:
            out.append(f"{separator}{name}:{quoted(item)}")
        elif type(item) is int:
            out.append(f"{separator}{name}:{item}")
        else:
            out.append(f"{separator}{name}:")
            _write(item, out, inner, indent, quoted)
        separator = "," + inner
    out.append(line + "}")


def _write_array(
    value: list[Any] | tuple[Any, ...],
    out: list[str],
    line: str,
    indent: str,
    quoted: Callable[[str], str],
) -> None:
    inline = all(isinstance(item, int | float) for item in value)
    inner = "" if inline else line + indent
    separator = "[" + inner
    for item in value:
        out.append(separator)
        _write(item, out, line + indent, indent, quoted)
        separator = "," + inner
    out.append("[]" if not value else "]" if inline else line + "]")


def seal(text: str) -> str:
    """Return the text of an object with its checksum as the first field."""
    rest = text[1:]
    space = rest[: len(rest) - len(rest.lstrip())]
    comma = "" if rest.lstrip() == "}" else ","
    return f'{{{space}"{CHECKSUM}":"{zlib.crc32(text.encode()):08x}"{comma}{rest}'


def unseal(text: str) -> str:
    """Return the text without its checksum, if it has one. Raises ConfigSyntaxError when it does
    not match."""
    seal = _SEAL.match(text)
    if seal is None:
        if f'"{CHECKSUM}"' in text:
            raise ConfigSyntaxError(f"the field {CHECKSUM} is damaged", 0)
        return text
    rest = "{" + text[seal.end() :]
    if f"{zlib.crc32(rest.encode()):08x}" != seal[2]:
        reason = f"the content does not match {CHECKSUM}: damaged, or edited without removing it"
        raise ConfigSyntaxError(reason, 0)
    return rest


def backup_of(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def load(
    path: Path, decode: Callable[[dict[Any, Any]], object] | None = None
) -> dict[Any, Any] | None:
    """Return the file's object, or its backup's; None without both.

    `decode` is applied to the content: if it raises, the file counts as unreadable. Such a file is
    renamed to `.broken`, so that the next `persist` does not make it the backup. Raises
    ConfigFileError, with nothing changed, when the backup exists and is unreadable too.
    """
    document = _read(path, decode)
    if document is not None:
        return document
    backup = backup_of(path)
    if backup.exists():
        document = _read(backup, decode)
        if document is None:
            raise ConfigFileError(
                f"{path} and its backup are both unreadable: restore one of them, or delete the "
                "backup to start without it."
            )
        logger.warning("config_file.backup_used path=%s", path)
    if path.exists():
        os.replace(path, path.with_name(path.name + ".broken"))
    return document


def _read(path: Path, decode: Callable[[dict[Any, Any]], object] | None) -> dict[Any, Any] | None:
    try:
        text = path.read_bytes().decode()  # without translation of line ends
        if not text.strip():
            raise ConfigSyntaxError("the file is empty", 0)
        document = loads(unseal(text))
        if decode is not None:
            decode(document)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("config_file.unreadable path=%s error=%s", path, error)
        return None
    return document


def persist(path: Path, text: str, disk: Disk | None = None) -> None:
    """Write the file with a checksum; the previous one becomes `.bak`. Raises OSError."""
    disk = disk or Disk()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    descriptor = disk.open(str(fresh), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        data = memoryview(seal(text).encode())
        position = 0
        while position < len(data):
            position += disk.pwrite(descriptor, data[position:], position)
        disk.fsync(descriptor)
    except OSError:
        with suppress(OSError):  # a full disk needs the space
            os.unlink(fresh)
        raise
    finally:
        os.close(descriptor)
    if path.exists():
        disk.replace(str(path), str(backup_of(path)))
    disk.replace(str(fresh), str(path))
    disk.sync_directory(str(path.parent))
