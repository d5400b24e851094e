"""Varint: protobuf's encoding of a number, for messages that are encoded by hand."""


def encode_varint(number: int) -> bytes:
    """Return a number of at least 0 in groups of seven bits, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
