"""CRC-32 of large amounts of bytes, as fast as what is installed here can.

An archive digests every byte of the log once and every body once more; with zlib that is a seventh of all
that archiving costs, with ISA-L's carry-less multiplication next to nothing. Both give the same number
(a test compares), so that it never matters which of them wrote a record.
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


#: `crc32(data, before)`: of `data`, going on from the sum of what came before it.
crc32 = _fastest()
