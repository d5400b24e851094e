"""The layout of a record of the commit log, and of its unit in a consume queue. Pure.

bh, sh are 8 bytes for an IPv4 host and 20 for an IPv6 host; T is 1 (version 1) or 2 (version 2).

offset     size  field
     0        4  total size of the record, this field included; 0 = nothing written here yet
     4        4  magic: version 1, version 2, or blank (the rest of the segment is unused)
     8        4  CRC-32 of the body with the top bit cleared
    12        4  queue id
    16        4  flag of the user, opaque
    20        8  queue offset (index of the unit; 0 for prepared and rollback records)
    28        8  physical offset of this record
    36        4  system flag (bits 4 and 5: born host, store host is IPv6)
    40        8  born timestamp, ms
    48       bh  born host: address, port
 48+bh        8  store timestamp, ms
 56+bh       sh  store host: address, port
            4    reconsume times
            8    prepared transaction offset
            4    body length, then the body
            T    topic length, then the topic (UTF-8)
            2    properties length, then the properties

All integers are big-endian (docs/formats/store-format.md, sections 2.1-2.5; blank: 2.6). A field
is named by its index in the unpacked fixed part (`FIXED`); `AT` has its position with IPv4 hosts,
which is that of every record for the fields before the born host. `part` reads some of the fields.

A unit has the position of one record, in 20 bytes. A filler is a unit without a record; its size is
`FILLER_SIZE`.

    physical offset i64 | total size i32 | tags code i64
"""

import struct
from itertools import accumulate
from typing import Final

MAGIC_V1: Final = 0xDAA320A7 - (1 << 32)
MAGIC_V2: Final = 0xDAA320AB - (1 << 32)
MAGIC_BLANK: Final = 0xCBD43194 - (1 << 32)
BLANK: Final = struct.Struct(">ii")  # bytes that remain in the segment, magic
BLANK_BYTES: Final = 8
CRC_MASK: Final = 0x7FFFFFFF
TOPIC_BYTES_V1_MAX: Final = 127
TOPIC_BYTES_MAX: Final = 255

BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
TRANSACTION_MASK: Final = 0xC
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_ROLLBACK: Final = 0xC
HOST_V4_BYTES: Final = 8
HOST_V6_BYTES: Final = 20
#: How many more bytes an IPv6 host has.
HOST_V6_MORE: Final = HOST_V6_BYTES - HOST_V4_BYTES

#: Indices of the fields in the unpacked fixed part.
SIZE: Final = 0
MAGIC: Final = 1
BODY_CRC: Final = 2
QUEUE_ID: Final = 3
FLAG: Final = 4
QUEUE_OFFSET: Final = 5
PHYSICAL_OFFSET: Final = 6
SYS_FLAG: Final = 7
BORN_TIMESTAMP: Final = 8
BORN_HOST: Final = 9
STORE_TIMESTAMP: Final = 10
STORE_HOST: Final = 11
RECONSUME_TIMES: Final = 12
PREPARED_TRANSACTION_OFFSET: Final = 13
BODY_LENGTH: Final = 14
#: Their types, as in `struct`; hosts are bytes.
CODES: Final = ("i", "i", "I", "i", "i", "q", "q", "i", "q", "8s", "q", "8s", "i", "q", "i")
#: Their positions in a record with IPv4 hosts.
AT: Final = (0, *accumulate(struct.calcsize(f">{code}") for code in CODES[:-1]))


def _fixed_part(born_host_bytes: int, store_host_bytes: int) -> struct.Struct:
    codes = list(CODES)
    codes[BORN_HOST], codes[STORE_HOST] = f"{born_host_bytes}s", f"{store_host_bytes}s"
    return struct.Struct(">" + "".join(codes))


#: Everything before the body, by (system flag >> 4) & 3.
FIXED: Final = tuple(
    _fixed_part(
        HOST_V6_BYTES if bits & 1 else HOST_V4_BYTES, HOST_V6_BYTES if bits & 2 else HOST_V4_BYTES
    )
    for bits in range(4)
)
FIXED_V4: Final = FIXED[0]
assert [fixed.size for fixed in FIXED] == [88, 100, 100, 112]
#: The fields before the born timestamp.
HEAD: Final = struct.Struct(">" + "".join(CODES[:BORN_TIMESTAMP]))
RECORD_BYTES_MIN: Final = FIXED_V4.size + 1 + 2


def part(*fields: int) -> struct.Struct:
    """Return a `Struct` of these fields of a record with IPv4 hosts, given in their order; it ends
    behind the last one."""
    form, end = ">", 0
    for field in fields:
        form += f"{AT[field] - end}x{CODES[field]}"
        end = AT[field] + struct.calcsize(f">{CODES[field]}")
    return struct.Struct(form)


#: A record's own size and physical offset: those of its unit.
SIZE_AND_OFFSET: Final = part(SIZE, PHYSICAL_OFFSET)
#: A record's size, queue id, queue offset and physical offset: what its unit's place determines.
UNIT_FIELDS: Final = part(SIZE, QUEUE_ID, QUEUE_OFFSET, PHYSICAL_OFFSET)
#: What a record must have besides: for IPv4 hosts.
CHECKED_FIELDS: Final = part(MAGIC, BODY_CRC, SYS_FLAG, STORE_TIMESTAMP, BODY_LENGTH)
#: Place of the lowest byte of the system flag. Its host bits tell IPv4 from IPv6 addresses.
HOSTS_AT: Final = AT[SYS_FLAG] + 3
#: Bytes of a record up to its store timestamp, of any host.
STORE_TIMESTAMP_END_MAX: Final = AT[STORE_TIMESTAMP] + HOST_V6_MORE + 8

_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_QUEUE_END: Final = AT[QUEUE_OFFSET] + _LONG.size


def physical_offset(record: bytes) -> int:
    """Return the record's own position in the log."""
    found: int = _LONG.unpack_from(record, AT[PHYSICAL_OFFSET])[0]
    return found


def store_timestamp(head: bytes) -> int:
    """Return the store time of the record that begins with these STORE_TIMESTAMP_END_MAX bytes, or
    fewer if its hosts are IPv4."""
    at = AT[STORE_TIMESTAMP] + (HOST_V6_MORE if head[HOSTS_AT] & BORN_HOST_V6 else 0)
    found: int = _LONG.unpack_from(head, at)[0]
    return found


def with_place(record: bytes, queue_id: int, queue_offset: int) -> bytes:
    """Return the record with another queue id and queue offset."""
    flag = record[AT[FLAG] : AT[QUEUE_OFFSET]]
    place = _INT.pack(queue_id) + flag + _LONG.pack(queue_offset)
    return record[: AT[QUEUE_ID]] + place + record[_QUEUE_END:]


UNIT: Final = struct.Struct(">qiq")
UNIT_BYTES: Final = UNIT.size
FILLER_SIZE: Final = 0x7FFFFFFF
FILLER: Final = (0, FILLER_SIZE, 0)
#: Transaction states (`sysFlag & TRANSACTION_MASK`) of records that enter no consume queue.
UNQUEUED: Final = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
