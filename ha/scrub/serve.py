"""Answers to other replicas' scrubs: block digests and log bytes as messages (docs/formats/ha.md,
R14)."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Final

from ...proto import v1
from ...store.format.errors import CorruptLogError, OffsetOutOfRangeError
from ..state.digests import BLOCK_BYTES, SegmentDigest
from .api import ScrubbedStore

_READ_MAX: Final = 4 * BLOCK_BYTES
_PART_BYTES: Final = 256 << 10


async def log_bytes(
    store: ScrubbedStore, request: v1.ReadRangeRequest
) -> AsyncIterator[v1.LogBytes]:
    """Yield the log's bytes, at most 4 MiB, fewer at the log's end."""
    offset = request.offset
    end = min(offset + min(request.length, _READ_MAX), store.log_end)
    while offset < end:
        try:
            data = store.read_log(offset, min(_PART_BYTES, end - offset))
        except (OffsetOutOfRangeError, CorruptLogError):
            return
        if not data:
            return
        data = data[: end - offset]
        yield v1.LogBytes(offset=offset, data=data, crc32=zlib.crc32(data))
        offset += len(data)
        await asyncio.sleep(0)


def block_message(digest: SegmentDigest, offset: int, now: int) -> v1.BlockDigest:
    begin, length, crc = digest.block_at(offset)
    return v1.BlockDigest(offset=begin, length=length, crc32=crc, sealed=digest.sealed, now=now)
