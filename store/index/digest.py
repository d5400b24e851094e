"""Digest of an index file: checksums of its head (header and slots) and of its entries.

The format has no checksum. The writer has the digest in memory (`format/index_writer.py`), so that
damage shows that was done before the file was complete. Free entries are not covered: a reader
never follows a chain to them.
"""

import os
import zlib
from typing import Final

from ..format.index_file import HEADER, SLOT, IndexDigest, IndexHeader, IndexLayout

_READ_BYTES: Final = 1 << 20


def read_digest(path: str, layout: IndexLayout) -> IndexDigest:
    """Return the digest of a file. Any thread. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        descriptor = file.fileno()
        header = os.pread(descriptor, HEADER.size, 0)
        count = IndexHeader.decode(header.ljust(HEADER.size, b"\0")).count
        head = _checksum(descriptor, HEADER.size, layout.slots * SLOT.size, zlib.crc32(header))
        entries = _entries(descriptor, layout, min(count, layout.entries))
        return IndexDigest(head, entries, os.fstat(descriptor).st_size)


def read_entries(path: str, layout: IndexLayout, count: int) -> int:
    """Return the checksum of the entries before number `count`. Any thread. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        return _entries(file.fileno(), layout, count)


def _entries(descriptor: int, layout: IndexLayout, count: int) -> int:
    begin = layout.entry_at(1)
    return _checksum(descriptor, begin, layout.entry_at(count) - begin, 0)


def _checksum(descriptor: int, position: int, size: int, crc: int) -> int:
    end = position + size
    while position < end:
        data = os.pread(descriptor, min(_READ_BYTES, end - position), position)
        if not data:
            break
        crc = zlib.crc32(data, crc)
        position += len(data)
    return crc
