"""Message bodies, decompressed.

The system flag tells whether and how a body is compressed (docs/formats/store-format.md, section
2.3): zlib streams, LZ4 frames, Zstandard frames without a content size. Damaged or foreign bodies
raise ValueError.
"""

import sys
import zlib
from typing import Any, Final

COMPRESSED: Final = 0x1
_TYPE_MASK: Final = 0x700
_LZ4: Final = 0x100
_ZSTD: Final = 0x200
_ZLIB: Final = (0x000, 0x300)
#: Limit against small bodies that decompress to huge ones; no valid body is larger.
BODY_BYTES_MAX: Final = 1 << 30


def decompress(body: bytes, sys_flag: int, limit: int = BODY_BYTES_MAX) -> bytes:
    """Return the decompressed body, at most `limit` bytes; `body` itself if it is not compressed.
    Raises ValueError."""
    if not sys_flag & COMPRESSED:
        return body
    kind = sys_flag & _TYPE_MASK
    if kind in _ZLIB:
        return _zlib(body, limit)
    if kind == _LZ4:
        return _lz4(body, limit)
    if kind == _ZSTD:
        return _zstd(body, limit)
    raise ValueError(f"Compression type {kind >> 8} is unknown.")


def _zlib(body: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(body, limit)
    except zlib.error as error:
        raise ValueError(f"The zlib stream is damaged: {error}.") from error
    if not stream.eof:
        raise ValueError(f"The zlib stream is cut off, or holds more than {limit} bytes.")
    return inflated


def _lz4(body: bytes, limit: int) -> bytes:
    import lz4.frame

    stream = lz4.frame.LZ4FrameDecompressor()
    try:
        inflated: bytes = stream.decompress(body, max_length=limit)
    except RuntimeError as error:
        raise ValueError(f"The LZ4 frame is damaged: {error}.") from error
    if not stream.eof:
        raise ValueError(f"The LZ4 frame is cut off, or holds more than {limit} bytes.")
    return inflated


def _zstd(body: bytes, limit: int) -> bytes:
    codec = zstd()
    stream = codec.ZstdDecompressor()
    try:
        inflated: bytes = stream.decompress(body, max_length=limit)
    except codec.ZstdError as error:
        raise ValueError(f"The Zstandard frame is damaged: {error}.") from error
    if not stream.eof:
        raise ValueError(f"The Zstandard frame is cut off, or holds more than {limit} bytes.")
    return inflated


def zstd() -> Any:
    """Return the module `compression.zstd`, before Python 3.14 its backport."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd
