"""The unit of a consume queue: the position of one record in the commit log, 20 bytes.

    physical offset i64 | total size i32 | tags code i64        big-endian

A filler is a unit without a record; its size is `FILLER_SIZE`.
"""

import struct
from typing import Final

from .record_layout import (
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)

UNIT: Final = struct.Struct(">qiq")
UNIT_BYTES: Final = UNIT.size
FILLER_SIZE: Final = 0x7FFFFFFF
FILLER: Final = (0, FILLER_SIZE, 0)
#: Transaction states (`sysFlag & TRANSACTION_MASK`) of records that enter no consume queue.
UNQUEUED: Final = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
