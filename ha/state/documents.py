"""Small JSON documents with a checksum, replaced atomically: the form of plans and descriptions.

    cometmq-doc1 <CRC-32 of the rest, 8 hexadecimal digits>
    { JSON }

Written to `.tmp`, flushed, renamed, and the directory is flushed: a crash leaves the previous
document or this one, and possibly an unused `.tmp`. The file is text.
"""

import json
import os
import zlib
from pathlib import Path
from typing import Any, Final

from ...store.format.disk import Disk
from ..errors import DamagedStateError

_MAGIC: Final = b"cometmq-doc1 "
_HEADER_BYTES: Final = len(_MAGIC) + 8 + 1


def encode(content: dict[str, Any]) -> bytes:
    body = json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"
    return _MAGIC + b"%08x\n" % zlib.crc32(body) + body


def decode(data: bytes) -> dict[str, Any] | None:
    """Return the content, or None for damaged bytes."""
    header, body = data[:_HEADER_BYTES], data[_HEADER_BYTES:]
    if header != _MAGIC + b"%08x\n" % zlib.crc32(body):
        return None
    content = json.loads(body)
    return content if isinstance(content, dict) else None


def write(path: Path, content: dict[str, Any], disk: Disk) -> None:
    """Write the document durably. Raises OSError, with the previous one in place."""
    new_folder = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    descriptor = disk.open(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        data = encode(content)
        if disk.pwrite(descriptor, data, 0) != len(data):
            raise OSError(f"{temporary} was not written in full.")
        disk.fsync(descriptor)
    finally:
        os.close(descriptor)
    disk.replace(str(temporary), str(path))
    disk.sync_directory(str(path.parent))
    if new_folder:
        disk.sync_directory(str(path.parent.parent))


def read(path: Path) -> dict[str, Any] | None:
    """Return the content, or None without a file. Raises DamagedStateError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    content = decode(data)
    if content is None:
        raise DamagedStateError(f"{path} is damaged: its checksum does not match.")
    return content
