"""Decompresses bodies and unwraps records that hold a batch of messages.

Few records need it, so they are handled one by one between runs of plain records. An unreadable
body is a `Failure`; the caller's policy leaves the record out or keeps it (null body, or not
unwrapped). A part holds at most about `batch_bytes` of decompressed bodies, a body at most
DECOMPRESSED_BYTES_MAX.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from ..store.format.bodies import COMPRESSED, decompress
from ..store.format.record_layout import (
    BORN_HOST_V6,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    STORE_HOST_V6,
)
from ..store.scan.columns import Columns
from ..store.scan.raw import Integers, RawBytes
from .inner_batch import WRAPPED, InnerMessage, unwrap
from .rows import LogBytes
from .slices import slices

#: The broker's limit for bodies that it decompresses for consumers.
DECOMPRESSED_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Failure:
    """A record whose body cannot be decompressed or unwrapped."""

    offset: int
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class BodyPart:
    """Records of one kind. `bodies` replaces the stored ones; `inner`: unwrapped from a batch."""

    view: LogBytes
    columns: Columns
    bodies: pa.Array | None = None
    inner: bool = False


class BodyDecoder:
    """Splits records into parts that `RowBuilder` can build."""

    def __init__(
        self, *, decompress: bool, bodies: bool, keep_unreadable: bool, batch_bytes: int
    ) -> None:
        self._unwrap_compressed = decompress  # also without bodies: batches hold several messages
        self._decompress_bodies = decompress and bodies
        self._keep = keep_unreadable
        self._batch_bytes = batch_bytes
        self.failures: list[Failure] = []

    def is_plain(self, columns: Columns) -> bool:
        """Whether all of these records can be built from the stored bytes."""
        special = WRAPPED | (COMPRESSED if self._decompress_bodies else 0)
        return not (columns.sys_flag & special).any()

    def parts(self, view: LogBytes, columns: Columns) -> Iterator[BodyPart]:
        """Yield the records in order, in parts of one kind."""
        wrapped = (columns.sys_flag & WRAPPED) == WRAPPED
        if not self._unwrap_compressed:
            wrapped &= (columns.sys_flag & COMPRESSED) == 0
        borders = np.flatnonzero(np.diff(wrapped)) + 1
        for begin, end in zip(
            [0, *borders.tolist()], [*borders.tolist(), len(columns)], strict=True
        ):
            run = columns.take(slice(begin, end))
            if wrapped[begin]:
                for at in range(len(run)):
                    yield from self._unwrapped(view, run.take(slice(at, at + 1)))
            elif self.is_plain(run) or not self._decompress_bodies:
                yield BodyPart(view, run)
            else:
                yield from self._decompressed_parts(view, run)

    def _read(self, view: LogBytes, columns: Columns, at: int) -> bytes | None:
        body = view.raw.bytes_at(int(columns.body_start[at]), int(columns.body_length[at]))
        try:
            return decompress(body, int(columns.sys_flag[at]), DECOMPRESSED_BYTES_MAX)
        except ValueError as error:
            self._fail(columns, at, str(error))
            return None

    def _fail(self, columns: Columns, at: int, reason: str) -> None:
        offset, size = int(columns.physical_offset[at]), int(columns.size[at])
        self.failures.append(Failure(offset, size, reason))

    # -- compressed ---------------------------------------------------------------------------

    def _decompressed_parts(self, view: LogBytes, columns: Columns) -> Iterator[BodyPart]:
        begin = size = 0
        bodies: dict[int, bytes | None] = {}
        for at in np.flatnonzero(columns.sys_flag & COMPRESSED).tolist():
            body = self._read(view, columns, at)
            length = len(body or b"")
            if bodies and size + length > self._batch_bytes:
                yield from self._replaced(view, columns, (begin, at), bodies)
                begin, size, bodies = at, 0, {}
            bodies[at] = body
            size += length
        yield from self._replaced(view, columns, (begin, len(columns)), bodies)

    def _replaced(
        self,
        view: LogBytes,
        columns: Columns,
        part: tuple[int, int],
        bodies: dict[int, bytes | None],
    ) -> Iterator[BodyPart]:
        begin, end = part
        rows = columns.take(slice(begin, end))
        stored = slices(view.buffer, rows.body_start, rows.body_length, pa.binary())
        index = np.arange(len(rows))
        index[[at - begin for at in bodies]] = len(rows) + np.arange(len(bodies))
        whole = pa.concat_arrays([stored, pa.array(list(bodies.values()), pa.binary())])
        found = whole.take(pa.array(index))
        if not self._keep and found.null_count:
            readable = found.is_valid()
            rows, found = rows.take(readable.to_numpy(zero_copy_only=False)), found.filter(readable)
        if len(rows):
            yield BodyPart(view, rows, found)

    # -- batches in one record ----------------------------------------------------------------

    def _unwrapped(self, view: LogBytes, record: Columns) -> Iterator[BodyPart]:
        body = self._read(view, record, 0)
        messages: list[InnerMessage] = []
        if body is not None:
            try:
                messages = list(unwrap(body))
            except ValueError as error:
                self._fail(record, 0, str(error))
                body = None
        if body is None:
            if self._keep:
                yield BodyPart(view, record)
        elif messages:
            yield _inner_part(view, record, messages)


def _inner_part(view: LogBytes, record: Columns, messages: list[InnerMessage]) -> BodyPart:
    """Return the messages as columns over a new buffer of hosts, bodies and properties."""
    flags = int(record.sys_flag[0])
    born_bytes = HOST_V6_BYTES if flags & BORN_HOST_V6 else HOST_V4_BYTES
    store_bytes = HOST_V6_BYTES if flags & STORE_HOST_V6 else HOST_V4_BYTES
    pieces = [
        view.raw.bytes_at(int(record.born_host_start[0]), born_bytes),
        view.raw.bytes_at(int(record.store_host_start[0]), store_bytes),
    ]
    for message in messages:
        pieces += (message.body, message.properties)
    lengths: Integers = np.array([len(piece) for piece in pieces], np.int64)
    starts = np.cumsum(lengths) - lengths
    many = record.take(np.zeros(len(messages), np.int64))
    count = np.arange(len(messages))
    columns = replace(
        many,
        flag=np.array([message.flag for message in messages], np.int64),
        # The store writes INNER_BASE as the record's queue offset.
        queue_offset=many.queue_offset + count,
        born_host_start=np.zeros(len(messages), np.int64) + starts[0],
        store_host_start=np.zeros(len(messages), np.int64) + starts[1],
        body_start=starts[2::2],
        body_length=lengths[2::2],
        properties_start=starts[3::2],
        properties_length=lengths[3::2],
    )
    return BodyPart(LogBytes(RawBytes(b"".join(pieces))), columns, inner=True)
