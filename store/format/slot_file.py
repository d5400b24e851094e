"""Slot of a small state file that survives a crash at any moment: two slots, written in turn.

offset  size  field      meaning
     0    12  magic      b"cometmq-ha1 "
    12    20  sequence   decimal; of two valid slots the larger one counts
    32     1  space
    33     8  crc        CRC-32 over sequence, length and body, hexadecimal
    41     1  space
    42     6  length     of the body, decimal
    48     1  newline
    49     n  body       JSON, UTF-8
  ....        padding    newlines up to the slot's size, 4096 by default

Slots are text: `cat` shows both. A torn write damages one slot and leaves the other, which holds
the previous state. Format: docs/formats/ha.md, section 6.5. Pure: `ha/state/slots.py` reads and
writes the files.
"""

import json
import zlib
from typing import Any, Final

SLOT_BYTES: Final = 4096
_MAGIC: Final = b"cometmq-ha1 "
_HEADER_BYTES: Final = 49


def encode_slot(sequence: int, state: dict[str, Any], slot_bytes: int = SLOT_BYTES) -> bytes:
    """Return one slot. Raises ValueError for a state that does not fit."""
    body = json.dumps(state, sort_keys=True).encode()
    body_bytes_max = slot_bytes - _HEADER_BYTES
    if len(body) > body_bytes_max:
        raise ValueError(f"{len(body)} bytes of state do not fit into {body_bytes_max}")
    crc = _crc(sequence, body)
    header = _MAGIC + b"%020d %08x %06d\n" % (sequence, crc, len(body))
    return (header + body).ljust(slot_bytes, b"\n")


def decode_slot(slot: bytes, slot_bytes: int = SLOT_BYTES) -> tuple[int, dict[str, Any]] | None:
    """Return sequence and state, or None for a slot that is damaged or was never written."""
    if len(slot) != slot_bytes or not slot.startswith(_MAGIC):
        return None
    try:
        sequence, crc, length = int(slot[12:32]), int(slot[33:41], 16), int(slot[42:48])
    except ValueError:
        return None
    body = slot[_HEADER_BYTES : _HEADER_BYTES + length]
    if crc != _crc(sequence, body):
        return None
    state = json.loads(body)
    return (sequence, state) if isinstance(state, dict) else None


def newest_slot(content: bytes, slot_bytes: int = SLOT_BYTES) -> tuple[int, dict[str, Any]] | None:
    """Return the valid slot of a file with the larger sequence; None if no slot is valid."""
    slots = [
        decode_slot(content[start : start + slot_bytes], slot_bytes) for start in (0, slot_bytes)
    ]
    return max((slot for slot in slots if slot is not None), key=lambda s: s[0], default=None)


def _crc(sequence: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(b"%020d %06d" % (sequence, len(body))))
