"""Layouts of the log and the queues as NumPy types: fields of a record, the unit."""

from typing import Any, Final

import numpy as np

from ..format.record_layout import AT, CODES, FIXED_V4, UNIT

_KINDS: Final = {"i": ">i4", "I": ">u4", "q": ">i8"}

#: The unit of a consume queue (`record_layout.py`).
QUEUE_UNIT: Final = np.dtype([("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
assert QUEUE_UNIT.itemsize == UNIT.size


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
