"""Decompression of message bodies for consumers that lack the codec. Pure.

The store keeps the body as sent; a consumer gets it decompressed, because not every official client
has every codec (docs/formats/grpc-api.md, section 10.1 and pitfalls 42 and 47). The first bytes
determine the codec, not the flag: the official C++ client flags zlib data as GZIP, and remoting
producers write LZ4 frames and Zstandard frames (docs/formats/broker-semantics.md, section 9.2).
Damaged or truncated data and bodies above the limit are not decompressed; memory use never exceeds
the limit. A codec's library is imported by the first body that needs it.
"""

from __future__ import annotations

import zlib
from typing import Any

#: Larger bodies are delivered as stored, as the reference delivers all of them: the sender must not
#: decide the memory and the time of the broker, whose event loop decompresses (20 ms).
DECOMPRESSED_BYTES_MAX = 8 << 20
_WINDOW_BYTES_MAX = 64 << 20

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ANY_ZLIB_HEADER = 32 + zlib.MAX_WBITS
_PART_BYTES = 1 << 20


def decompressed(body: bytes, limit: int = DECOMPRESSED_BYTES_MAX) -> tuple[bytes | None, int]:
    """Return the decompressed body, None if that fails, and the number of decompressed bytes."""
    magic = body[:4]
    if magic == _ZSTD_MAGIC:
        return _zstandard(body, limit)
    stream = _lz4() if magic == _LZ4_MAGIC else _Zlib()
    parts: list[bytes] = []
    size, data = 0, body
    try:
        while not stream.eof:
            part = stream.decompress(data, max_length=min(_PART_BYTES, limit + 1 - size))
            size += len(part)
            if size > limit or (not part and not stream.eof):
                return None, size  # too large, or truncated
            parts.append(part)
            data = b""
    except (zlib.error, RuntimeError):
        return None, size
    return parts[0] if len(parts) == 1 else b"".join(parts), size


def _lz4() -> Any:
    import lz4.frame

    return lz4.frame.LZ4FrameDecompressor()


class _Zlib:
    """Decompressor of zlib and gzip with the interface of LZ4's, which keeps its unread input."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_ANY_ZLIB_HEADER)

    @property
    def eof(self) -> bool:
        return self._stream.eof

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._stream.decompress(data or self._stream.unconsumed_tail, max_length)


def _zstandard(body: bytes, limit: int) -> tuple[bytes | None, int]:
    """Two steps: a reader enforces a limit but misses a truncated frame, a decompressor the
    reverse.
    """
    import zstandard

    room = limit
    try:
        codec = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)
        with codec.stream_reader(body) as stream:
            while part := stream.read(_PART_BYTES):
                room -= len(part)
                if room < 0:
                    return None, limit - room
        whole = codec.decompressobj()
        inflated = whole.decompress(body)
        return inflated if whole.eof else None, len(inflated)
    except zstandard.ZstdError:
        return None, limit - room
