"""Columns of variable length from raw bytes: one C++ gather per column, no Python object per row.

Arrow's binary arrays have no gaps between values, a log has. So the values and the gaps form one
array of twice the length over the mapped bytes, and `take` copies every second element. Values must
not overlap; their order is free. All offsets must be below 2 GiB, as in a segment.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers = npt.NDArray[np.int64]
_HEX: Final = np.frombuffer(
    b"".join(b"%02X" % byte for byte in range(256)), np.uint16
)  # the two digits of every byte value


def slices(buffer: pa.Buffer, starts: Integers, lengths: Integers, kind: pa.DataType) -> pa.Array:
    """Return the bytes [start, start + length) of each row."""
    count = len(starts)
    if not count:
        return pa.array([], kind)
    wanted = np.arange(0, 2 * count, 2, dtype=np.int32)
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, lengths = starts[order], lengths[order]
        wanted[order] = wanted.copy()
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = starts
    np.add(starts, lengths, out=offsets[1::2], casting="unsafe")
    both = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(offsets), buffer])
    return both.take(pa.array(wanted))


def some_slices(
    buffer: pa.Buffer, starts: Integers, lengths: Integers, valid: npt.NDArray[np.bool_]
) -> pa.Array:
    """Return strings, null where `valid` is false (`starts` must be valid there, too)."""
    found = slices(buffer, starts, np.where(valid, lengths, 0), pa.string())
    if valid.all() or not len(starts):
        return found
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), len(found), [bits, *found.buffers()[1:]])


def chosen(texts: list[str], numbers: Integers) -> pa.Array:
    """Return the text of each row by its number."""
    return pa.array(texts, pa.string()).take(pa.array(numbers))


def hex_text(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """Return every row of a byte matrix as upper-case hexadecimal digits."""
    digits: Any = _HEX[rows]
    count, width = rows.shape
    offsets = np.arange(0, (count + 1) * width * 2, width * 2, dtype=np.int32)[: count + 1]
    data = pa.py_buffer(np.ascontiguousarray(digits))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), data])
