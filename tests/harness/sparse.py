"""Files with holes in tests: compared and copied without a read of the holes.

A store has files of tens of megabytes that are mostly holes (timer wheel, index, last segment).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from cometmq.store.format.disk import data_ranges

_BLOCK = 1 << 16
_ZEROS = bytes(_BLOCK)


def sparse_bytes(path: Path) -> tuple[int, dict[int, bytes]]:
    """Return the size of a file and its blocks of 64 KiB that are not zeros, by offset: equal for
    files of equal content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        blocks = {}
        for begin, end in data_ranges(descriptor, 0, size):
            for offset in range(begin - begin % _BLOCK, end, _BLOCK):
                data = os.pread(descriptor, _BLOCK, offset)
                if data != _ZEROS[: len(data)]:
                    blocks[offset] = data
        return size, blocks
    finally:
        os.close(descriptor)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a directory that `target` does not hold yet."""
    shutil.copytree(source, target, copy_function=_copy)


def _copy(source: str, target: str) -> None:
    size, blocks = sparse_bytes(Path(source))
    with open(target, "wb") as file:
        for offset, data in blocks.items():
            file.seek(offset)
            file.write(data)
        file.truncate(size)
    shutil.copystat(source, target)
