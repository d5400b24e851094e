"""Decompression of message bodies for consumers that lack the codec. Pure.

The store keeps the body as sent; a consumer gets it decompressed, because not every official client
has every codec (docs/formats/grpc-api.md, section 10.1 and pitfalls 42 and 47). The first bytes
determine the codec, not the flag: the official C++ client flags zlib data as GZIP, and remoting
producers write LZ4 frames and Zstandard frames (docs/formats/broker-semantics.md, section 9.2).
Damaged or truncated data and bodies above the limit are not decompressed; memory use never exceeds
the limit.
"""

from __future__ import annotations

import zlib

import lz4.frame
import zstandard

DECOMPRESSED_BYTES_MAX = 64 << 20
"""Larger bodies are delivered as stored: the sender must not decide the broker's memory use."""

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ANY_ZLIB_HEADER = 32 + zlib.MAX_WBITS
_PART_BYTES = 1 << 20


def decompressed(body: bytes, limit: int = DECOMPRESSED_BYTES_MAX) -> bytes | None:
    """Return the decompressed body, or None if that fails."""
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
    """Two steps: a reader enforces a limit but misses a truncated frame, a decompressor the
    reverse.
    """
    room = limit
    try:
        codec = zstandard.ZstdDecompressor(max_window_size=DECOMPRESSED_BYTES_MAX)
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
