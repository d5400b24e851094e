"""Digest file `<store>/ha/digests`: checksums of the blocks of finished segments.

One line per segment, appended; a later line of the same segment replaces an earlier one:

    <start> <size> <kind> <CRC-32 of the blocks, 8 hexadecimal digits> <blocks>

`blocks` has the CRC-32 of every BLOCK_BYTES of the segment (the last block may be shorter), 8
hexadecimal digits each. `kind` is `s`, sealed: taken when the segment was finished, from bytes just
written; or `l`, late: taken from bytes on disk of unknown state. A damaged line is ignored. Derived
data: its loss costs certainty about which of two differing replicas is right (docs/formats/ha.md,
section 6.5 and R14).
"""

import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from ...store.format.disk import Disk

DIGESTS_NAME: Final = "digests"
BLOCK_BYTES: Final = 1 << 20
_SEALED: Final = "s"
_LATE: Final = "l"
_HEX: Final = 8


class SegmentDigest(Struct, frozen=True):
    """Checksums of the segment [start, start + size)."""

    start: int
    size: int
    sealed: bool
    blocks: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.start + self.size

    def block_at(self, offset: int) -> tuple[int, int, int]:
        """Return start, length and CRC-32 of the block that contains `offset`."""
        index = (offset - self.start) // BLOCK_BYTES
        position = index * BLOCK_BYTES
        return self.start + position, min(BLOCK_BYTES, self.size - position), self.blocks[index]

    def encode(self) -> bytes:
        blocks = "".join(f"{crc:08x}" for crc in self.blocks)
        kind = _SEALED if self.sealed else _LATE
        return (
            f"{self.start} {self.size} {kind} {zlib.crc32(blocks.encode()):08x} {blocks}\n".encode()
        )

    @classmethod
    def decode(cls, line: bytes) -> "SegmentDigest | None":
        """Return the digest, or None for a damaged line."""
        try:
            start, size, kind, crc, blocks = line.decode("ascii").split(" ")
            count = -(-int(size) // BLOCK_BYTES)
            if int(crc, 16) != zlib.crc32(blocks.encode()) or len(blocks) != count * _HEX:
                return None
            values = tuple(int(blocks[at : at + _HEX], 16) for at in range(0, len(blocks), _HEX))
            return cls(int(start), int(size), kind == _SEALED, values)
        except ValueError:
            return None


def blocks_of(data: memoryview) -> tuple[int, ...]:
    """Return the CRC-32 of every block. For a thread: a segment of 1 GiB takes about half a
    second."""
    return tuple(zlib.crc32(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES))


def block_crc(data: memoryview, position: int, length: int) -> int:
    """Return the current CRC-32 of the block."""
    return zlib.crc32(data[position : position + length])


def load(directory: Path) -> dict[int, SegmentDigest]:
    """Return every segment's digest by its start; `directory` is `<store>/ha`."""
    try:
        data = (directory / DIGESTS_NAME).read_bytes()
    except FileNotFoundError:
        return {}
    return {each.start: each for each in _decode_lines(data)}


def _decode_lines(data: bytes) -> Iterator[SegmentDigest]:
    for line in data.splitlines():
        digest = SegmentDigest.decode(line)
        if digest is not None:
            yield digest


def append(directory: Path, digest: SegmentDigest, disk: Disk) -> None:
    """Append a segment's line durably. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / DIGESTS_NAME
    descriptor = disk.open(str(path), os.O_RDWR | os.O_CREAT)
    try:
        end = os.fstat(descriptor).st_size
        # Terminate a line that a crash left incomplete.
        torn = end > 0 and disk.pread(descriptor, 1, end - 1) != b"\n"
        disk.pwrite(descriptor, b"\n" * torn + digest.encode(), end)
        disk.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    if not end:
        disk.sync_directory(str(directory))


def forget(directory: Path, end: int, disk: Disk, start: int = 0) -> None:
    """Keep only segments within [start, end), durably. Raises OSError."""
    known = load(directory)
    kept = [each for each in known.values() if start <= each.start and each.end <= end]
    if len(kept) < len(known):
        _rewrite(directory, kept, disk)


def _rewrite(directory: Path, digests: Iterable[SegmentDigest], disk: Disk) -> None:
    path = directory / DIGESTS_NAME
    temporary = path.with_name(path.name + ".tmp")
    descriptor = disk.open(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        disk.pwrite(descriptor, b"".join(each.encode() for each in digests), 0)
        disk.fsync(descriptor)
    finally:
        os.close(descriptor)
    disk.replace(str(temporary), str(path))
    disk.sync_directory(str(directory))
