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
_ZSTD_WINDOW_LOG_MAX = 26  # 64 MiB

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ANY_ZLIB_HEADER = 32 + zlib.MAX_WBITS
_PART_BYTES = 1 << 20


def decompressed(body: bytes, limit: int = DECOMPRESSED_BYTES_MAX) -> tuple[bytes | None, int]:
    """Return the decompressed body, None if that fails, and the number of decompressed bytes."""
    stream, damage = _stream(body[:4])
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
    except damage:
        return None, size
    return parts[0] if len(parts) == 1 else b"".join(parts), size


def _stream(magic: bytes) -> tuple[Any, type[Exception]]:
    """Return a decompressor, and what it raises for damaged data."""
    if magic == _ZSTD_MAGIC:
        from ...store.format.bodies import zstd

        codec = zstd()
        options = {codec.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG_MAX}
        return codec.ZstdDecompressor(options=options), codec.ZstdError
    if magic == _LZ4_MAGIC:
        import lz4.frame

        return lz4.frame.LZ4FrameDecompressor(), RuntimeError
    return _Zlib(), zlib.error


class _Zlib:
    """Decompressor of zlib and gzip with the interface of LZ4's, which keeps its unread input."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_ANY_ZLIB_HEADER)

    @property
    def eof(self) -> bool:
        return self._stream.eof

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._stream.decompress(data or self._stream.unconsumed_tail, max_length)
