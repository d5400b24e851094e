"""One index file: hash slots with chains of entries, newest first. Derived data.

    0               40                40 + 4 * slots        40 + 4 * slots + 20 * entries
    | header        | slot slot ...   | (unused) entry 1 entry 2 ...                     |

    header  0  i64  store time of the first entry       24  i64  log offset of the last entry
            8  i64  store time of the last entry        32  i32  slots in use
           16  i64  log offset of the first entry       36  i32  number of the next entry; 0 means 1
    slot    0  i32  number of the newest entry of its chain, 0 = none
    entry   0  i32  hash of the key                     12  i32  seconds since the first time
            4  i64  log offset of the record            16  i32  the next older entry of the chain

Big-endian; entries count from 1; a file of n entries holds n - 1 (docs/formats/store-format.md,
section 4). A file that follows a full one starts with that one's last time and offset in its header
("seed"); its first entry's seconds count from there, and the header is then overwritten.

Files are sparse: 420 MB by default, little of which a young file uses. They are written with pwrite
(a full disk is an error then; through a map it would be a SIGBUS) and mapped, read-only, only
during a query. Only entries are read through the map: slots may lie in holes, and a full tmpfs has
no page for a hole that is read.

A lost file costs time: it is rebuilt from the log. Readers trust nothing in it: a chain is only
followed towards smaller numbers, so it ends for any content.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from datetime import datetime
from typing import Final, Self

from msgspec import Struct

from .errors import UnsupportedLayoutError
from .properties import java_hash

HEADER: Final = struct.Struct(">qqqqii")
SLOT: Final = struct.Struct(">i")
ENTRY: Final = struct.Struct(">iqii")
#: Bytes of fields of the header: time of the last entry, log offsets of the first and the last,
#: slots in use, number of the next entry.
LAST_MS, FIRST_OFFSET, LAST_OFFSET = (8, 16), (16, 24), (24, 32)
SLOTS_USED, NEXT_NUMBER = (32, 36), (36, HEADER.size)
#: Positions in an entry.
SECONDS_AT: Final = 12
PREVIOUS_AT: Final = 16
_NAME_DIGITS: Final = 17
_INT_MAX: Final = (1 << 31) - 1
MS_PER_SECOND: Final = 1000
#: Ends the name of a file that is being created. Apache's broker ignores such names.
UNFINISHED: Final = ".tmp"
assert (HEADER.size, SLOT.size, ENTRY.size) == (40, 4, 20)

#: More keys do not fit the properties of a record: each takes two bytes of at most 32,767.
ENTRIES_A_RECORD_MAX: Final = 1 << 14
#: Entries of a chain before the range of a query, one behind the other, that end its search.
_OLDER_MAX: Final = 1_000
#: Size limit of `guess_layout`, which takes one step per entry.
GUESS_BYTES_MAX: Final = 64 << 20

#: Types that hold the bytes of a file.
Buffer = bytes | bytearray | memoryview | mmap.mmap


class IndexLayout(Struct, frozen=True):
    """Sizes of a file: `slots` is maxHashSlotNum, `entries` is maxIndexNum."""

    slots: int
    entries: int

    @property
    def entries_at(self) -> int:
        return HEADER.size + self.slots * SLOT.size

    @property
    def file_bytes(self) -> int:
        return self.entries_at + self.entries * ENTRY.size

    def slot_at(self, hash_: int) -> int:
        """Return the byte position of the slot of a key hash."""
        return HEADER.size + hash_ % self.slots * SLOT.size

    def slot_range(self, first: int, end: int) -> tuple[int, int]:
        """Return the byte range of the slots [first, end)."""
        return HEADER.size + first * SLOT.size, HEADER.size + end * SLOT.size

    def entry_at(self, number: int) -> int:
        return self.entries_at + number * ENTRY.size


USUAL_LAYOUT: Final = IndexLayout(5_000_000, 20_000_000)


class IndexHeader(Struct):
    """The range of a file; `count` is the number of the next entry, at least 1."""

    begin_timestamp_ms: int = 0
    end_timestamp_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slots_used: int = 0
    count: int = 1

    def encode(self) -> bytes:
        return HEADER.pack(
            self.begin_timestamp_ms,
            self.end_timestamp_ms,
            self.begin_offset,
            self.end_offset,
            self.slots_used,
            self.count,
        )

    @classmethod
    def decode(cls, data: Buffer) -> "IndexHeader":
        """Decode the first 40 bytes. Raises struct.error for fewer."""
        header = cls(*HEADER.unpack_from(data))
        header.count = max(header.count, 1)
        return header

    @property
    def is_empty(self) -> bool:
        return self.count <= 1

    def follower(self) -> "IndexHeader":
        """Return the header of the file after this full one."""
        return IndexHeader(
            self.end_timestamp_ms, self.end_timestamp_ms, self.end_offset, self.end_offset
        )

    def problem(self, layout: IndexLayout) -> str:
        """Return why this cannot be the header of such a file; "" if it can."""
        if self.count > layout.entries:
            return f"it counts {self.count} entries, the maximum is {layout.entries}."
        if not 0 <= self.begin_offset <= self.end_offset:
            return f"its offsets are {self.begin_offset} and {self.end_offset}."
        if not 0 <= self.slots_used <= min(layout.slots, self.count - 1):
            return f"it counts {self.slots_used} slots for {self.count - 1} entries."
        return ""


class IndexDigest(Struct, frozen=True):
    """Checksums of a file: of header and slots, and of the entries that the header counts."""

    head: int
    entries: int
    file_bytes: int

    def __str__(self) -> str:
        return f"{self.head:08x}-{self.entries:08x}-{self.file_bytes}"


def seconds_since(begin_ms: int, store_timestamp_ms: int) -> int:
    """Return the time field of an entry."""
    if begin_ms <= 0:
        return 0
    return min(max(store_timestamp_ms - begin_ms, 0) // MS_PER_SECOND, _INT_MAX)


def file_name(wall_ms: int, last: str) -> str:
    """Return a file name: local time of creation, yyyyMMddHHmmssSSS, always above the previous
    name."""
    name = datetime.fromtimestamp(wall_ms // MS_PER_SECOND).strftime("%Y%m%d%H%M%S")
    name += f"{wall_ms % MS_PER_SECOND:03d}"
    if last and int(name) <= int(last):
        return f"{int(last) + 1:0{_NAME_DIGITS}d}"
    return name


def key_hash(text: str) -> int:
    """Return the hash of a key string (`topic#key`): Math.abs of Java's hash, 0 for the minimum."""
    value = java_hash(text)
    return 0 if value == -(1 << 31) else abs(value)


def index_files(directory: str) -> list[str]:
    """Return the paths of the index files, oldest first; other names are ignored."""
    try:
        names = [
            entry.name
            for entry in os.scandir(directory)
            if entry.name.isascii() and entry.name.isdecimal() and entry.is_file()
        ]
    except FileNotFoundError:
        return []
    return [os.path.join(directory, name) for name in sorted(names, key=int)]


def unfinished_files(directory: str) -> list[str]:
    """Return the paths of files whose creation did not finish."""
    try:
        return [e.path for e in os.scandir(directory) if e.name.endswith(UNFINISHED)]
    except FileNotFoundError:
        return []


class IndexFile:
    """A file opened for reading, mapped until it is closed. Use it in a `with` statement."""

    def __init__(self, path: str, layout: IndexLayout) -> None:
        """Open the file. Raises OSError; UnsupportedLayoutError for another size."""
        self.path = path
        self.layout = layout
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(self._descriptor).st_size
            if size != layout.file_bytes:
                raise wrong_size(path, size, layout)
            self.data = mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(self._descriptor)
            raise
        self.header = IndexHeader.decode(os.pread(self._descriptor, HEADER.size, 0))
        self.header.count = min(self.header.count, layout.entries)

    def slot(self, hash_: int) -> int:
        """Return the number of the newest entry in the chain of this hash."""
        data = os.pread(self._descriptor, SLOT.size, self.layout.slot_at(hash_))
        return int(SLOT.unpack(data)[0])

    def find(
        self,
        hash_: int,
        begin_ms: int,
        end_ms: int,
        *,
        header: IndexHeader | None = None,
        first: int = -1,
    ) -> Iterator[int]:
        """Yield the log offsets of the entries with this hash, newest first; -1 for an entry that
        does not count (another hash, another time), so that the caller can limit the steps.

        Times of entries are whole seconds: the last second before `begin_ms` is included, and the
        caller compares the record's time. Where the clock was set back, an older time may precede a
        later one, so only a run of older entries ends the search; and an entry from before the
        file's first time has that one. For a file that is being filled the caller passes the header
        and the newest entry of the chain.
        """
        header = header or self.header
        number = self.slot(hash_) if first < 0 else first
        layout, data = self.layout, self.data
        older = 0
        while 0 < number < header.count:
            entry_hash, offset, seconds, previous = ENTRY.unpack_from(data, layout.entry_at(number))
            if seconds < 0:
                return
            if number == 1:
                seconds = 0  # it may count from the seed
            time_ms = header.begin_timestamp_ms + seconds * MS_PER_SECOND
            is_old = time_ms + MS_PER_SECOND <= begin_ms
            older = older + 1 if is_old else 0
            if older > _OLDER_MAX:
                return
            in_range = not is_old and (time_ms <= end_ms or seconds == 0)
            yield offset if entry_hash == hash_ and in_range else -1
            if previous >= number:
                return
            number = previous

    def entries_at_end(self, offset: int) -> int:
        """Return how many of the last entries belong to the record at this offset."""
        count = 0
        last = self.header.count - 1
        for number in range(last, max(last - ENTRIES_A_RECORD_MAX, 0), -1):
            if ENTRY.unpack_from(self.data, self.layout.entry_at(number))[1] != offset:
                break
            count += 1
        return count

    def close(self) -> None:
        self.data.close()
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_header(path: str, layout: IndexLayout) -> IndexHeader:
    """Return the header of the file. Raises OSError; UnsupportedLayoutError for another size."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size != layout.file_bytes:
            raise wrong_size(path, size, layout)
        return IndexHeader.decode(file.read(HEADER.size))


def wrong_size(path: str, size: int, layout: IndexLayout) -> UnsupportedLayoutError:
    cut = " It was cut, or made with other numbers." if size < layout.file_bytes else ""
    return UnsupportedLayoutError(
        f"{path} has {size} bytes; with maxHashSlotNum={layout.slots} and maxIndexNum="
        f"{layout.entries} it would have {layout.file_bytes}.{cut} Start with the numbers that "
        "this store was made with, or move its index folder away: it is then rebuilt from the "
        "log. Nothing was changed."
    )


def guess_layout(path: str) -> IndexLayout | None:
    """Return the sizes of an index file of which only the length is known; None if none fit, or if
    it is larger than GUESS_BYTES_MAX and not of a common size.

    Sizes fit if the header's first and last offset are those of the first and the last entry, the
    last entry is the newest of its chain, and the number of used slots equals the header's. Raises
    OSError.
    """
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size < HEADER.size + SLOT.size + 2 * ENTRY.size:
            return None
        if size == USUAL_LAYOUT.file_bytes:
            return USUAL_LAYOUT
        if size > GUESS_BYTES_MAX:
            return None
        data = file.readall() or b""
    header = IndexHeader.decode(data)
    units = (size - HEADER.size) // SLOT.size
    per_entry = ENTRY.size // SLOT.size
    for entries in range(max(header.count, 2), (units - 1) // per_entry + 1):
        layout = IndexLayout(units - entries * per_entry, entries)
        if layout.file_bytes == size == len(data) and _fits(data, layout, header):
            return layout
    return None


def _fits(data: bytes, layout: IndexLayout, header: IndexHeader) -> bool:
    if ENTRY.unpack_from(data, layout.entry_at(1))[1] != header.begin_offset:
        return False
    last = header.count - 1
    hash_, offset, _, _ = ENTRY.unpack_from(data, layout.entry_at(last))
    newest = SLOT.unpack_from(data, layout.slot_at(hash_))[0] if hash_ >= 0 else -1
    # The header of a file that is being filled may end behind its last record.
    if last <= 0 or header.end_offset - offset not in (0, 1) or newest != last:
        return False
    slots = SLOT.iter_unpack(data[HEADER.size : layout.entries_at])
    return sum(1 for (number,) in slots if number) == header.slots_used
