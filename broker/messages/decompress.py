"""Bodies that were sent compressed, made readable for consumers that could not read them.

Stored is what was sent; a consumer gets the body inflated, because not every official client knows every
codec (gRPC API, section 10.1 and pitfalls 42 and 47). The codec is told by the first bytes, whatever the
flag says: the official C++ client flags zlib data as GZIP, and remoting producers write LZ4 frames and
Zstandard frames (broker semantics, section 9.2). Promises: what is damaged, cut off or grows beyond the
limit is not inflated; never more than the limit is held. Pure.
"""

from __future__ import annotations

import zlib

import lz4.frame
import zstandard

INFLATED_BYTES_MAX = 64 << 20
"""A body that inflates to more is passed on as it is stored: memory must not be the sender's to spend."""

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ANY_ZLIB_HEADER = 32 + zlib.MAX_WBITS
_PART_BYTES = 1 << 20


def inflated(body: bytes, limit: int = INFLATED_BYTES_MAX) -> bytes | None:
    """The body before it was compressed, or None when it cannot be had."""
    magic = body[:4]
    if magic == _ZSTD_MAGIC:
        return _zstandard(body, limit)
    found: bytes
    try:
        if magic == _LZ4_MAGIC:
            frame = lz4.frame.LZ4FrameDecompressor()
            found = frame.decompress(body, max_length=limit)
            return found if frame.eof else None
        stream = zlib.decompressobj(_ANY_ZLIB_HEADER)
        found = stream.decompress(body, limit)
        return found if stream.eof else None
    except (zlib.error, RuntimeError):
        return None


def _zstandard(body: bytes, limit: int) -> bytes | None:
    """Twice: a reader knows a limit but not a frame that is cut off, a decompressor the reverse."""
    room = limit
    try:
        codec = zstandard.ZstdDecompressor(max_window_size=INFLATED_BYTES_MAX)
        with codec.stream_reader(body) as stream:
            while part := stream.read(_PART_BYTES):
                room -= len(part)
                if room < 0:
                    return None
        whole = codec.decompressobj()
        found = whole.decompress(body)
        return found if whole.eof else None
    except zstandard.ZstdError:
        return None
