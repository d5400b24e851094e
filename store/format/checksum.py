"""CRC-32 of large amounts of data, by ISA-L if it is installed, else by zlib.

Both return the same value (a test compares them); ISA-L's carry-less multiplication is several
times as fast. Scans verify bodies with it, an archive digests every byte of the log.
"""

import zlib
from collections.abc import Callable


def _fastest() -> Callable[..., int]:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.crc32
    return isal_zlib.crc32


#: `crc32(data, crc=0)`: CRC-32 of `data`, continued from `crc`.
crc32 = _fastest()
