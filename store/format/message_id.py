"""Message ids: offset id and unique key.

    offset id    host (4 or 16 bytes), port i32, log offset i64
    unique key   host (4 or 16 bytes), process u16, loader i32, milliseconds u32, counter u16

Both are upper-case hex of 32 digits (IPv4) or 56 (IPv6), so the length does not distinguish them:
an offset id is valid only if a record with this store host begins there. The broker creates offset
ids. The client creates unique keys (property UNIQ_KEY); their time is in milliseconds since the
client's local month began (docs/formats/store-format.md, section 13).
"""

import struct
from datetime import datetime
from typing import Final

from msgspec import Struct

_OFFSET: Final = struct.Struct(">q")
_UNIQUE_TAIL: Final = struct.Struct(">HiIH")
_LENGTHS: Final = (32, 56)
_MS: Final = 1000


class OffsetId(Struct, frozen=True):
    """Position of a record: the packed store host (`record.pack_host`) and the physical offset."""

    store_host: bytes
    physical_offset: int

    def __str__(self) -> str:
        return (self.store_host + _OFFSET.pack(self.physical_offset)).hex().upper()

    @classmethod
    def parse(cls, text: str) -> "OffsetId | None":
        """Parse the text; None for another form."""
        data = _unhex(text)
        if data is None:
            return None
        (offset,) = _OFFSET.unpack(data[-_OFFSET.size :])
        return cls(data[: -_OFFSET.size], offset)


class UniqueKey(Struct, frozen=True):
    """The UNIQ_KEY of a client of the remoting protocol."""

    address: bytes  #: 4 or 16 bytes
    process: int  #: low 16 bits of the process id
    loader: int  #: any constant of the process
    month_ms: int  #: milliseconds since the client's month began, modulo 2^32
    counter: int

    def __str__(self) -> str:
        tail = _UNIQUE_TAIL.pack(self.process, self.loader, self.month_ms, self.counter)
        return (self.address + tail).hex().upper()

    @classmethod
    def parse(cls, text: str) -> "UniqueKey | None":
        """Parse the text; None for another form."""
        data = _unhex(text)
        if data is None:
            return None
        address = data[: -_UNIQUE_TAIL.size]
        return cls(address, *_UNIQUE_TAIL.unpack(data[len(address) :]))

    def born_ms(self, near_ms: int) -> int:
        """Return the approximate creation time: the latest time not after `near_ms` (its store
        time, or now) that fits, if the client is in our time zone."""
        month = datetime.fromtimestamp(near_ms // _MS).replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        born = int(month.timestamp()) * _MS + self.month_ms
        if born <= near_ms:
            return born
        year, number = (month.year - 1, 12) if month.month == 1 else (month.year, month.month - 1)
        return int(month.replace(year=year, month=number).timestamp()) * _MS + self.month_ms


def _unhex(text: str) -> bytes | None:
    if len(text) not in _LENGTHS or not text.isascii() or not text.isalnum():
        return None
    try:
        return bytes.fromhex(text)
    except ValueError:
        return None
