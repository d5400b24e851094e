"""Bodies of messages for people: text, JSON, a hex dump; and the files of an export. Pure.

Bodies come from clients and are hostile: they are decoded with limits and escaped by the templates.
"""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..operations.message_document import message_document
from ..proto import v2

#: Characters of a body that a page shows; the whole body can be downloaded.
SHOWN_MAX = 64 << 10
#: Bytes of a hex dump: 256 lines.
_DUMPED_MAX = 4 << 10
_LINE_BYTES = 16
_PREVIEW_CHARS = 120
_PREVIEW_BYTES = 4 * _PREVIEW_CHARS
#: A compressed body becomes at most this large, as a broker accepts bodies of 4 MiB.
INFLATED_MAX = 4 << 20
# A spreadsheet takes a cell that starts with one of these for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class Shown:
    """A body in one form."""

    kind: str
    text: str
    #: Whether it is cut.
    is_cut: bool = False


def plain(message: v2.Message, bytes_max: int = INFLATED_MAX) -> bytes:
    """Return the body, decompressed if a client compressed it; damaged ones as they are.

    Only the start of a compressed one is returned, if it has more than `bytes_max`.
    """
    body = message.body
    if message.system_properties.body_encoding != v2.GZIP:
        return body
    try:
        if body[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
                return file.read(bytes_max)
        return zlib.decompressobj().decompress(body, bytes_max)
    except (OSError, EOFError, zlib.error):
        return body


def text_of(body: bytes) -> str | None:
    """Return a body as text; None if it is not UTF-8 or has control characters."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    if any(ord(c) < 32 and c not in "\t\n\r" for c in text[:SHOWN_MAX]):
        return None
    return text


def _json_of(body: bytes) -> Any:
    """Return the value of a JSON body; None if the body is not JSON."""
    if body.lstrip()[:1] not in (b"{", b"[") or len(body) > SHOWN_MAX:
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def start_of(document: Any) -> tuple[str, bool]:
    """Return a document as JSON with indentation, as much as a page shows, and whether it is cut.

    The whole text of deeply nested values is several hundred times as large as their bytes.
    """
    parts, length = [], 0
    for part in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(document):
        parts.append(part)
        length += len(part)
        if length > SHOWN_MAX:
            break
    # JSON may escape half of a surrogate pair, which is no text.
    text = "".join(parts)[:SHOWN_MAX].encode(errors="backslashreplace").decode()
    return text, length > SHOWN_MAX


def forms(body: bytes) -> list[str]:
    """Return the forms in which a body can be shown, the best first."""
    found = ["json"] if _json_of(body) is not None else []
    if text_of(body) is not None:
        found.append("text")
    return [*found, "hex"]


def shown(body: bytes, form: str) -> Shown:
    """Return a body in a form of `forms`; in another one, in the best."""
    possible = forms(body)
    kind = form if form in possible else possible[0]
    if kind == "hex":
        return Shown(kind, hex_dump(body[:_DUMPED_MAX]), len(body) > _DUMPED_MAX)
    if kind == "json":
        return Shown(kind, *start_of(_json_of(body)))
    text = text_of(body) or ""
    return Shown(kind, text[:SHOWN_MAX], len(text) > SHOWN_MAX)


def hex_dump(data: bytes) -> str:
    """Return lines of offset, bytes and characters, as `hexdump -C` prints them."""
    lines = []
    for start in range(0, len(data), _LINE_BYTES):
        part = data[start : start + _LINE_BYTES]
        digits = part.hex(" ").ljust(3 * _LINE_BYTES - 1)
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {digits}  {letters}")
    return "\n".join(lines)


def preview(message: v2.Message) -> str:
    """Return the start of the body as one line."""
    body = plain(message, _PREVIEW_BYTES + 1)
    start = body[:_PREVIEW_BYTES]
    text = text_of(start)
    if text is None and len(body) > len(start):  # the cut may be inside a character
        text = text_of(start.decode("utf-8", "ignore").encode())
    if text is None:
        return body[:24].hex(" ")
    line = " ".join(text.split())
    return line if len(line) <= _PREVIEW_CHARS else line[: _PREVIEW_CHARS - 1] + "…"


def as_json(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return an export as a JSON array."""
    return json.dumps(documents, indent=2, ensure_ascii=False) + "\n"


def as_csv(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return an export as CSV; a cell never starts a formula of a spreadsheet."""
    names = ("topic", "broker", "queue", "offset", "message_id", "tag", "keys", "stored_ms")
    file = io.StringIO()
    rows = csv.writer(file)
    rows.writerow([*names, "properties", "body", "body_base64"])
    for one in documents:
        keys = {**one, "keys": " ".join(one["keys"])}
        properties = json.dumps(one["properties"], ensure_ascii=False)
        cells = [*(keys.get(name, "") for name in names), properties]
        cells += [one.get("body", ""), one.get("body_base64", "")]
        rows.writerow([_cell(value) for value in cells])
    return file.getvalue()


def document(message: v2.Message, broker: str) -> dict[str, Any]:
    """Return a message of an export."""
    copy = v2.Message()
    copy.CopyFrom(message)
    copy.body = plain(message)
    return {**message_document(copy), "broker": broker}


def _cell(value: object) -> str:
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
