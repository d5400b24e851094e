"""The store's layouts as NumPy types: a record's fields, the unit of a queue, the index entry."""

from typing import Any, Final

import numpy as np

from .index_file import ENTRY
from .queue_unit import UNIT
from .record_layout import AT, CODES, FIXED_V4

_KINDS: Final = {"i": ">i4", "I": ">u4", "q": ">i8"}

#: The unit of a consume queue (`queue_unit.py`).
QUEUE_UNIT: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
#: The entry of an index file (`index_file.py`).
INDEX_ENTRY: Final = np.dtype(
    [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
assert (QUEUE_UNIT.itemsize, INDEX_ENTRY.itemsize) == (UNIT.size, ENTRY.size)


def record_fields(**fields: int) -> "np.dtype[Any]":
    """Return the type of the fixed part of a record with IPv4 hosts, with these of its fields, by
    name."""
    return np.dtype(
        {
            "names": list(fields),
            "formats": [_KINDS[CODES[field]] for field in fields.values()],
            "offsets": [AT[field] for field in fields.values()],
            "itemsize": FIXED_V4.size,
        }
    )
