"""`cometmq.v1.Admin`, ReadLog, LocateLog and ReadOffsets: raw ranges of the commit log and consumer
offsets, for readers that decode or copy them.

Promises: frames are whole records in log order, each range with a CRC-32, never beyond the readable
limit (`DispatchPump.readable_limit`; docs/formats/ha.md, rule R10). An offset that retention has
deleted is ILLEGAL_OFFSET unless `at_least` is set; nothing is skipped silently. The records of the
metadata log, which have the sealed secrets of users, have zeros in place of their bodies, except
in a `whole` log. At most one answer of `max_bytes` is prepared ahead of the client, and other calls
run between two answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final
from zlib import crc32

from ...proto import v1, v2
from ...proto.errors import WireError
from ...store.format.errors import OffsetOutOfRangeError, RecordFormatError
from ...store.format.record import decode, without_body
from ...store.format.record_layout import (
    BLANK,
    BLANK_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
)
from ...store.format.topic_names import META_TOPIC
from ..base.slices import Slices

if TYPE_CHECKING:
    from ...front.clock import Clock
    from ...front.context import RequestContext
    from ...store.message_store import MessageStore
    from ..base.cluster_view import ClusterView
    from ..offsets.consumer_offsets import ConsumerOffsets
    from ..visible.dispatch_pump import DispatchPump

_FRAME_BYTES: Final = 1 << 20
#: Limit of one answer; a single larger record is sent whole.
_FRAME_BYTES_MAX: Final = 4 << 20
#: Queues in one answer of LocateLog: about 3 MB.
_QUEUES_MAX: Final = 50_000
#: Offsets in one answer of ReadOffsets: about 300 KB, and 10 ms to encode.
_OFFSETS_MAX: Final = 4_000
_META: Final = META_TOPIC.encode()
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)


class LogReads:
    """Handlers of ReadLog, LocateLog and ReadOffsets."""

    def __init__(
        self,
        broker_name: str,
        clock: Clock,
        store: MessageStore,
        cluster: ClusterView,
        pump: DispatchPump,
        *,
        offsets: ConsumerOffsets,
    ) -> None:
        self._broker_name = broker_name
        self._clock = clock
        self._store = store
        self._cluster = cluster
        self._pump = pump
        self._offsets = offsets

    async def read_log(
        self, request: v1.ReadLogRequest, ctx: RequestContext
    ) -> AsyncIterator[v1.LogFrames]:
        """Stream the log from `offset` to `end`, or to the readable limit."""
        self._check_broker(request.broker)
        limit = self._pump.readable_limit()
        end = min(request.end or limit, limit)
        offset = self._first(request, limit)
        # At least a record header, which holds its length.
        size = max(min(request.max_bytes or _FRAME_BYTES, _FRAME_BYTES_MAX), BLANK_BYTES)
        while True:
            frames, following = b"", offset
            # Blanks are skipped here, so that only the last answer has no frames.
            while not frames and following < end:
                offset = following
                frames, following = self._frames(offset, (end, limit), size)
                if not request.whole:
                    frames = _public(frames, offset)
                if following == offset:
                    break
            yield self._answer(offset, frames, following)
            if following >= end or following == offset:
                return
            offset = following
            # Yield to other calls; a cancelled call ends here.
            await asyncio.sleep(0)

    async def locate_log(
        self, request: v1.LocateLogRequest, ctx: RequestContext
    ) -> v1.LocateLogResponse:
        """Return the bounds of queues and the physical offsets of messages."""
        self._check_broker(request.broker)
        self._pump.catch_up()
        slices = Slices(self._clock)
        answer = v1.LocateLogResponse(
            code=v2.OK,
            message="OK",
            broker=self._broker_name,
            log_start=self._store.log_start,
            confirm=self._pump.readable_limit(),
            brokers=sorted(self._cluster.groups),
        )
        wanted = frozenset(request.topics)
        for topic, queue_id in sorted(self._store.queues()):
            if not wanted or topic in wanted:
                if len(answer.queues) == _QUEUES_MAX:
                    text = f"there are more than {_QUEUES_MAX} queues: name fewer topics"
                    raise WireError(v2.PAYLOAD_TOO_LARGE, text)
                answer.queues.append(self._bounds(request, topic, queue_id))
                await slices.pause()
        for one in request.messages:
            location = self._store.reader.record_range(one.topic, one.queue_id, one.offset)
            place, size = location if location is not None else (-1, 0)
            answer.places.add(place=place, size=size)
            await slices.pause()
        return answer

    async def read_offsets(
        self, request: v1.ReadOffsetsRequest, ctx: RequestContext
    ) -> AsyncIterator[v1.OffsetsPart]:
        """Stream the consumer offsets. Each was in the table at some time of the call."""
        self._check_broker(request.broker)
        part = v1.OffsetsPart()
        for topic, group in self._offsets.pairs():
            for queue_id, offset in self._offsets.queues(topic, group):
                part.offsets.add(group=group, topic=topic, queue_id=queue_id, offset=offset)
                if len(part.offsets) >= _OFFSETS_MAX:
                    yield self._part(part)
                    part = v1.OffsetsPart()
                    await asyncio.sleep(0)
        yield self._part(part)

    # Inside.

    def _part(self, part: v1.OffsetsPart) -> v1.OffsetsPart:
        part.code, part.message, part.log_end = v2.OK, "OK", self._store.log_end
        part.segment_size = self._store.config.mapped_file_size_commit_log
        return part

    def _check_broker(self, name: str) -> None:
        own = self._broker_name
        if name and name != own:
            raise WireError(v2.NOT_FOUND, f"unknown broker {name}; this is {own}")

    def _first(self, request: v1.ReadLogRequest, limit: int) -> int:
        start = self._store.log_start
        offset = request.offset
        if offset < start:
            if not request.at_least:
                raise _taken(offset, start)
            offset = start
        if offset > limit:
            text = f"offset {offset} is beyond the confirmed end of the log, {limit}"
            raise WireError(v2.ILLEGAL_OFFSET, text)
        if request.inside and start < offset < limit:
            return min(self._store.log.next_record_start(offset), limit)
        return offset

    def _frames(self, offset: int, ends: tuple[int, int], size: int) -> tuple[bytes, int]:
        """Return whole records from `offset` on, and the offset behind them.

        They begin below `ends[0]` and end at or below `ends[1]`; the same offset means none.
        """
        store = self._store
        end, limit = ends
        try:
            data = store.read_log(offset, min(size, limit - offset))
            whole = _whole_end(data, end - offset)
            if not whole and len(data) >= BLANK_BYTES:
                length, magic = BLANK.unpack_from(data)
                if magic == MAGIC_BLANK:
                    return b"", offset + length
                if magic not in _MAGICS:
                    text = (
                        f"no record begins at offset {offset}: it lies inside of a record, or the "
                        "log is damaged there"
                    )
                    raise WireError(v2.INTERNAL_SERVER_ERROR, text)
                if offset + length <= limit:  # larger than one answer should be
                    data, whole = store.record_at(offset), length
        except OffsetOutOfRangeError as error:
            raise _taken(offset, error.first) from None
        return data[:whole] if whole < len(data) else data, offset + whole

    def _answer(self, offset: int, frames: bytes, following: int) -> v1.LogFrames:
        return v1.LogFrames(
            code=v2.OK,
            message="OK",
            offset=offset,
            frames=frames,
            crc32=crc32(frames),
            next_offset=following,
            log_start=self._store.log_start,
            confirm=self._pump.readable_limit(),
            broker=self._broker_name,
        )

    def _bounds(self, request: v1.LocateLogRequest, topic: str, queue_id: int) -> v1.QueueBounds:
        store = self._store
        offset = 0
        if request.HasField("place"):
            offset = store.reader.offset_by_position(topic, queue_id, request.place)
        elif request.HasField("timestamp_ms"):
            offset = store.reader.search_offset(topic, queue_id, request.timestamp_ms)
        return v1.QueueBounds(
            topic=topic,
            queue_id=queue_id,
            min_offset=store.min_offset(topic, queue_id),
            max_offset=store.max_offset(topic, queue_id),
            offset=offset,
        )


def _public(frames: bytes, offset: int) -> bytes:
    """Return whole records as readers of the cluster get them. Raises WireError."""
    try:
        return _without_secrets(frames)
    except RecordFormatError as error:
        text = f"the log is damaged between {offset} and {offset + len(frames)}: {error}"
        raise WireError(v2.INTERNAL_SERVER_ERROR, text) from None


def _without_secrets(frames: bytes) -> bytes:
    """Return whole records without the contents of those of the metadata log.

    Raises RecordFormatError for one that cannot be read.
    """
    if _META not in frames:
        return frames
    parts: list[bytes] = []
    start = at = 0
    while at < len(frames):
        size, _ = BLANK.unpack_from(frames, at)
        if frames.find(_META, at, at + size) >= 0:
            record = frames[at : at + size]
            if decode(record, check_crc=False).topic == META_TOPIC:
                parts += frames[start:at], without_body(record)
                start = at + size
        at += size
    return b"".join((*parts, frames[start:]))


def _whole_end(data: bytes, stop: int) -> int:
    """Return the end of the last whole record that begins before `stop`."""
    unpack, size = BLANK.unpack_from, len(data)
    position = 0
    while position < stop and position + BLANK_BYTES <= size:
        length, magic = unpack(data, position)
        if magic not in _MAGICS or length <= 0 or position + length > size:
            break
        position += length
    return position


def _taken(offset: int, start: int) -> WireError:
    return WireError(
        v2.ILLEGAL_OFFSET, f"the log begins at offset {start}: {offset} was deleted by retention"
    )
