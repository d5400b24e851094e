"""Codec of remoting frames: length, both header layouts (JSON and ROCKETMQ), limits.

A frame is `length(4) layout(1) header length(3) header body`, big-endian; `length` counts all that
follows it. Pure. Promises: `FrameReader` holds at most one unfinished frame; a frame that breaks a
limit raises `FrameError`, upon which the connection must be closed, because the position of the
next frame is unknown or the peer does not speak the protocol. Text that is not UTF-8 is replaced,
as Java does.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from .bare_json import as_enum, as_int
from .command import Command

#: Largest frame with its length field: the limit of the Netty decoder in RocketMQ.
FRAME_BYTES_MAX = 16 << 20
#: Properties of a message have at most 32 KiB, up to six times as much in JSON.
HEADER_BYTES_MAX = 512 << 10
#: The longest known header (reply push) has 20 fields; clients and hooks add their own.
FIELDS_MAX = 256

_LENGTH_BYTES = 4
_JSON, _BINARY = 0, 1
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_SHORT_MAX = 0x7FFF
_LANGUAGES = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO"),
    *("PHP", "OMS", "RUST", "NODE_JS"),
)
_LANGUAGE_CODES = {name: code for code, name in enumerate(_LANGUAGES)}
_OTHER = _LANGUAGE_CODES["OTHER"]
_FIXED = struct.Struct(">hBhiii")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_PREFIX = struct.Struct(">iI")
_encode_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class FrameError(ValueError):
    """Bytes that are no frame, or a frame beyond a limit."""


class FrameReader:
    """Cuts the bytes of one connection into commands."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def unfinished(self) -> int:
        """Number of bytes of the frame that is not complete."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[Command]:
        """Yield the commands that `data` completes. Raises FrameError."""
        return map(decode, self.frames(data))

    def frames(self, data: bytes) -> Iterator[bytes]:
        """Yield the frames that `data` completes, without their length. Raises FrameError."""
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            while len(buffer) - at >= _LENGTH_BYTES:
                length = check_length(_INT.unpack_from(buffer, at)[0])
                end = at + _LENGTH_BYTES + length
                if len(buffer) < end:
                    return
                frame = bytes(memoryview(buffer)[at + _LENGTH_BYTES : end])
                at = end
                yield frame
        finally:
            del buffer[:at]


def check_length(length: int) -> int:
    """Return the value of a length field. Raises FrameError outside of the limits."""
    if not 4 <= length <= FRAME_BYTES_MAX - _LENGTH_BYTES:
        raise FrameError(f"a frame length of {length} is outside of 4 to {FRAME_BYTES_MAX - 4}")
    return length


def decode(frame: bytes) -> Command:
    """Return the command of a frame without its length field. Raises FrameError."""
    if len(frame) < 4:
        raise FrameError(f"a frame of {len(frame)} bytes has no header length")
    layout = frame[0]
    size = int.from_bytes(frame[1:4], "big")
    if size > len(frame) - 4:
        raise FrameError(f"a header of {size} bytes exceeds the frame of {len(frame)} bytes")
    if size > HEADER_BYTES_MAX:
        raise FrameError(f"a header of {size} bytes exceeds the limit of {HEADER_BYTES_MAX}")
    header = frame[4 : 4 + size]
    if layout == _JSON:
        command = _decode_json(header)
    elif layout == _BINARY:
        command = _decode_binary(header)
    else:
        raise FrameError(f"{layout} is no header layout: use 0 (JSON) or 1 (ROCKETMQ)")
    command.body = frame[4 + size :]
    return command


def encode(command: Command) -> bytes:
    """Return the frame of a command, with its length field. Raises FrameError beyond a limit."""
    header = _encode_binary(command) if command.binary else _encode_json(command)
    length = 4 + len(header) + len(command.body)
    if len(header) > HEADER_BYTES_MAX or length > FRAME_BYTES_MAX - _LENGTH_BYTES:
        raise FrameError(f"a frame of {length} bytes (header {len(header)}) exceeds the limit")
    word = (_BINARY if command.binary else _JSON) << 24 | len(header)
    return b"".join((_PREFIX.pack(length, word), header, command.body))


# -- JSON ---------------------------------------------------------------------------------------


def _decode_json(header: bytes) -> Command:
    text = header.decode("utf-8", "replace")
    # Bytes cannot express a lone surrogate, the escapes from \ud800 to \udfff can.
    surrogates = "\\ud" in text or "\\uD" in text
    try:
        # RecursionError: nesting beyond the limit of the interpreter.
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"the header is not JSON: {error}") from None
    if type(document) is not dict:
        raise FrameError("the header is not a JSON object")
    remark, language = document.get("remark"), document.get("language")
    return Command(
        _integer(document, "code"),
        _json_fields(document.get("extFields"), surrogates),
        b"",
        _integer(document, "flag"),
        _integer(document, "opaque"),
        _well_formed(remark) if isinstance(remark, str) else None,
        _well_formed(as_enum(language, _LANGUAGES)) or "OTHER",
        _integer(document, "version"),
    )


def _integer(document: dict[str, Any], name: str) -> int:
    value = as_int(document.get(name, 0))
    if value is None or not _INT_MIN <= value <= _INT_MAX:
        raise FrameError(f"the header field {name} is not a 32-bit integer")
    return value


def _json_fields(found: object, surrogates: bool) -> dict[str, str]:
    if found is None:
        return {}
    if type(found) is not dict:
        raise FrameError("extFields is not a JSON object")
    if len(found) > FIELDS_MAX:  # before they are converted: a header has room for 40,000
        raise FrameError(f"{len(found)} header fields exceed the limit of {FIELDS_MAX}")
    if not surrogates and set(map(type, found.values())) <= {str}:
        return found
    fields = {}
    for name, value in found.items():
        if type(value) is str:
            fields[_well_formed(name)] = _well_formed(value)
        elif type(value) in (int, float, bool):
            fields[_well_formed(name)] = json.dumps(value)
        elif value is not None:
            raise FrameError("a value of extFields is neither text nor a number")
    return fields


def _well_formed(text: str) -> str:
    """Replace the lone surrogates that JSON can express and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _encode_json(command: Command) -> bytes:
    # The names in Java's order: recorded frames are encoded to the same bytes.
    parts = [f'{{"code":{command.code}']
    if command.fields or not command.is_response:
        parts.append(f'"extFields":{_encode_text(command.fields)}')
    parts.append(f'"flag":{command.flag},"language":{_encode_text(command.language)}')
    parts.append(f'"opaque":{command.opaque}')
    if command.remark is not None:
        parts.append(f'"remark":{_encode_text(command.remark)}')
    parts.append(f'"serializeTypeCurrentRPC":"JSON","version":{command.version}}}')
    return ",".join(parts).encode()


# -- ROCKETMQ -----------------------------------------------------------------------------------


def _decode_binary(header: bytes) -> Command:
    try:
        code, language, version, opaque, flag, size = _FIXED.unpack_from(header)
        remark, at = _text(header, _FIXED.size, size)
        (size,) = _INT.unpack_from(header, at)
        at += 4
        end = at + size
        if size < 0 or end > len(header):
            raise FrameError(f"header fields of {size} bytes exceed the header")
        fields: dict[str, str] = {}
        entries = 0
        while at < end:
            entries += 1
            if entries > FIELDS_MAX:
                raise FrameError(f"there are more than {FIELDS_MAX} header fields")
            name, at = _text(header, at + 2, _SHORT.unpack_from(header, at)[0])
            fields[name], at = _text(header, at + 4, _INT.unpack_from(header, at)[0])
        if at != end:
            raise FrameError("a header field exceeds the length of the fields")
    except struct.error as error:
        raise FrameError(f"the header is too short: {error}") from None
    name = _LANGUAGES[language] if language < len(_LANGUAGES) else "OTHER"
    return Command(code, fields, b"", flag, opaque, remark or None, name, version, True)


def _text(header: bytes, at: int, size: int) -> tuple[str, int]:
    """Return the text of `size` bytes at `at`, and the position behind it. Raises FrameError."""
    end = at + size
    if size < 0 or end > len(header):
        raise FrameError(f"a text of {size} bytes exceeds the header")
    return header[at:end].decode("utf-8", "replace"), end


def _encode_binary(command: Command) -> bytes:
    remark = (command.remark or "").encode()
    entries = []
    for name, value in command.fields.items():
        key, text = name.encode(), value.encode()
        if len(key) > _SHORT_MAX:
            raise FrameError(f"the name of a header field has {len(key)} bytes")
        entries.append(_SHORT.pack(len(key)) + key + _INT.pack(len(text)) + text)
    fields = b"".join(entries)
    # Codes above 32767 lose their upper half, as in RocketMQ.
    code = (command.code & 0xFFFF ^ 0x8000) - 0x8000
    language = _LANGUAGE_CODES.get(command.language, _OTHER)
    version = min(command.version, _SHORT_MAX)
    fixed = _FIXED.pack(code, language, version, command.opaque, command.flag, len(remark))
    return b"".join((fixed, remark, _INT.pack(len(fields)), fields))
