"""CRC-32 of large amounts of data, by ISA-L if it is installed, else by zlib.

An archive digests every byte of the log once and every body twice. With zlib that is a seventh of
the cost of archiving; with ISA-L's carry-less multiplication it is negligible. Both return the same
value (a test compares them).
"""

import zlib
from collections.abc import Callable
from typing import Any


def _fastest() -> Callable[[Any, int], int]:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.crc32
    return isal_zlib.crc32


#: `crc32(data, crc)`: CRC-32 of `data`, continued from `crc`.
crc32 = _fastest()
