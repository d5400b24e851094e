"""The first message of a TLS client: does it name HTTP/2? Pure.

Clients of gRPC always do (ALPN, RFC 7301; gRPC over HTTP/2, "Security"), clients of the remoting
protocol name no protocol. Layout: RFC 8446, sections 5.1 and 4.1.2.
"""

from __future__ import annotations

#: The first byte of a TLS handshake.
HANDSHAKE = 0x16
#: Bytes of a record before its content.
HEAD = 5
#: Largest content of a record in plaintext.
RECORD_MAX = 1 << 14

_CLIENT_HELLO = 1
_ALPN = 16
_HTTP2 = b"h2"
# Type and length of the message, version, random bytes.
_FIXED = 1 + 3 + 2 + 32


def record_size(head: bytes) -> int:
    """Return the size of a record from its first five bytes, `HEAD` + at most `RECORD_MAX`."""
    return HEAD + min(int.from_bytes(head[3:HEAD]), RECORD_MAX)


def names_no_http2(record: bytes) -> bool:
    """Return True if `record` is a complete ClientHello without HTTP/2 in it.

    Anything else is False: the handshake refuses it.
    """
    try:
        return _HTTP2 not in _protocols(record)
    except (IndexError, ValueError):
        return False


def _protocols(record: bytes) -> list[bytes]:
    """Return the protocols that the client names. Raises IndexError, ValueError."""
    if record[0] != HANDSHAKE or record[HEAD] != _CLIENT_HELLO:
        raise ValueError("not a ClientHello")
    rest = record[HEAD + _FIXED :]
    for width in (1, 2, 1):  # session id, cipher suites, compression methods
        _, rest = _vector(rest, width)
    if not rest:
        return []
    extensions, _ = _vector(rest, 2)
    while extensions:
        kind = int.from_bytes(extensions[:2])
        content, extensions = _vector(extensions[2:], 2)
        if kind == _ALPN:
            return _names(_vector(content, 2)[0])
    return []


def _names(listed: bytes) -> list[bytes]:
    names = []
    while listed:
        name, listed = _vector(listed, 1)
        names.append(name)
    return names


def _vector(data: bytes, width: int) -> tuple[bytes, bytes]:
    """Split a vector with a length of `width` bytes from what follows it. Raises ValueError."""
    end = width + int.from_bytes(data[:width])
    if len(data) < max(width, end):
        raise ValueError("a field ends behind the record")
    return data[width:end], data[end:]
