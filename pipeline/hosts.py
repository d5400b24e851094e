"""Columns of hosts and offset ids. Hosts repeat, so each distinct one is formatted once.

Hosts are `ADDRESS:PORT` or `[ADDRESS]:PORT`. The offset id is the store host and the physical
offset in hexadecimal (docs/formats/store-format.md, sections 2.2 and 13).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from ..nodes.addresses import host_port
from ..store.format.record import (
    BORN_HOST_V6,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    STORE_HOST_V6,
    unpack_host,
)
from ..store.scan.columns import Columns
from ..store.scan.raw import BytesTable, Integers, RawBytes
from .slices import chosen, hex_text

#: Distinct hosts held in memory; every connection has another port. Beyond, the table is cleared.
_HOSTS_MAX: Final = 50_000
_OFFSET_BYTES: Final = 8


def host_text(packed: bytes) -> str:
    """Return the text of a packed host."""
    address, port = unpack_host(packed)
    return host_port(address, port)


class Hosts:
    """The columns `bornHost` and `storeHost`."""

    def __init__(self) -> None:
        self._table = BytesTable()
        self._texts: list[str] = []

    def born(self, raw: RawBytes, columns: Columns) -> pa.Array:
        return self._of(raw, columns.born_host_start, columns.sys_flag & BORN_HOST_V6)

    def store(self, raw: RawBytes, columns: Columns) -> pa.Array:
        return self._of(raw, columns.store_host_start, columns.sys_flag & STORE_HOST_V6)

    def _of(self, raw: RawBytes, starts: Integers, long: Integers) -> pa.Array:
        if not long.any() and len(starts):
            packed = raw.blocks(starts, HOST_V4_BYTES).view(np.uint64)
            if (packed == packed[0]).all():  # one broker, or one producer
                text = host_text(packed[:1].tobytes())
                return pa.repeat(pa.scalar(text, pa.string()), len(starts))
        if len(self._table) > _HOSTS_MAX:
            self._table, self._texts = BytesTable(), []
        lengths = np.where(long, HOST_V6_BYTES, HOST_V4_BYTES)
        numbers = self._table.numbers(raw, starts, lengths)
        self._texts += [host_text(one) for one in self._table.values[len(self._texts) :]]
        return chosen(self._texts, numbers)


def offset_ids(raw: RawBytes, columns: Columns) -> pa.Array:
    """Return the offset id of every record."""
    long = (columns.sys_flag & STORE_HOST_V6) != 0
    if long.any():
        return pa.array([_offset_id(raw, columns, at) for at in range(len(columns))], pa.string())
    rows = np.empty((len(columns), HOST_V4_BYTES + _OFFSET_BYTES), np.uint8)
    hosts = raw.blocks(columns.store_host_start, HOST_V4_BYTES)
    rows[:, :HOST_V4_BYTES] = hosts.view(np.uint8).reshape(-1, HOST_V4_BYTES)
    offsets = columns.physical_offset.astype(">i8")
    rows[:, HOST_V4_BYTES:] = offsets.view(np.uint8).reshape(-1, _OFFSET_BYTES)
    return hex_text(rows)


def _offset_id(raw: RawBytes, columns: Columns, at: int) -> str:
    size = HOST_V6_BYTES if int(columns.sys_flag[at]) & STORE_HOST_V6 else HOST_V4_BYTES
    host = raw.bytes_at(int(columns.store_host_start[at]), size)
    return (host + int(columns.physical_offset[at]).to_bytes(8, "big")).hex().upper()
