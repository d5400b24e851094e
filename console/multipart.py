"""Forms with a file, as browsers send them (RFC 7578): few parts, each with a short head. Pure."""

from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser

#: The content type of such forms.
KIND = "multipart/form-data"
PARTS_MAX = 16
_HEAD_BYTES_MAX = 2 << 10
_BOUNDARY_MAX = 70


@dataclass(frozen=True, slots=True)
class File:
    """A file of a form; a browser without a chosen one sends it without name and content."""

    name: str
    data: bytes


def parse(kind: str, body: bytes) -> tuple[list[tuple[str, str]], dict[str, File]]:
    """Return the fields and the files of a form with this content type. Raises ValueError."""
    head = Message()
    head["Content-Type"] = kind
    boundary = _parameter(head, "boundary", "Content-Type")
    if head.get_content_type() != KIND or not 0 < len(boundary) <= _BOUNDARY_MAX:
        raise ValueError("no boundary")
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode(), PARTS_MAX + 1)
    if parts[0] or not parts[-1].startswith(b"--"):
        raise ValueError("no begin, no end, or too many parts")
    fields: list[tuple[str, str]] = []
    files: dict[str, File] = {}
    for part in parts[1:-1]:
        text, separator, content = part.partition(b"\r\n\r\n")
        if not separator or len(text) > _HEAD_BYTES_MAX or not text.startswith(b"\r\n"):
            raise ValueError("a part without a head")
        found = HeaderParser().parsestr(text[2:].decode())
        name = _parameter(found, "name")
        if found.get_param("filename", header="Content-Disposition") is None:
            fields.append((name, content.decode()))
        else:
            files[name] = File(_parameter(found, "filename"), content)
    return fields, files


def _parameter(head: Message, name: str, header: str = "Content-Disposition") -> str:
    found = head.get_param(name, header=header)
    if not isinstance(found, str):
        raise ValueError(f"no {name}")
    return found
