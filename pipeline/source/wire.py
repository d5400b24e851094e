"""Logs of running brokers: raw frames by `Admin.ReadLog`, planned with `Admin.LocateLog`.

Every frame is verified with its CRC-32. A broken stream continues at its last offset, at another
replica if necessary, because physical offsets are common to a group. Brokers without these calls
are read by PullMessage (`pulled.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final
from zlib import crc32

from ...client.clock import steady_s
from ...proto import paths, v1, v2
from ..errors import OptionError, PipelineError, UnreachableError
from .channel import Channel, NotServedError, pause
from .cluster_topics import topic_exists, topic_names
from .log import AnySplit, BrokerLog, Log, QueueName, WireSplit
from .offsets import Offsets
from .options import Access, SourceOptions
from .pulled import PulledLog

#: Bytes of one response; larger ones are not faster and need more memory.
_FRAME_BYTES: Final = 2 << 20
_PLACES_MAX: Final = 4_000


def open_wire(options: SourceOptions) -> Log:
    """Open the cluster's logs by ReadLog if the brokers support it, else by PullMessage.

    Raises UnreachableError.
    """
    assert options.access is not None
    wire = Channel(options.access)
    try:
        if options.access.read_log != "never":
            log = WireLog(wire, options)
            log.snapshot()
            return log
    except NotServedError:
        if options.access.read_log == "always":
            wire.close()
            raise
    except BaseException:
        wire.close()
        raise
    return PulledLog(wire, options)


class WireLog:
    """Log of brokers that support ReadLog."""

    physical = True

    def __init__(self, wire: Channel, options: SourceOptions) -> None:
        self._wire = wire
        self._options = options
        topics = options.topics.topics
        self._topics = sorted(topics) if topics else []

    def snapshot(self) -> dict[str, BrokerLog]:
        """Return the logs of all brokers of the access point."""
        first = self._locate("")
        found = {first.broker: self._log_of(first)}
        for name in first.brokers:
            if name not in found:
                found[name] = self._log_of(self._locate(name))
        return found

    def offsets_at_position(self, broker: str, position: int) -> dict[QueueName, int]:
        return self._offsets(self._locate(broker, position=position))

    def offsets_at_time(self, broker: str, time_ms: int) -> dict[QueueName, int]:
        return self._offsets(self._locate(broker, timestamp_ms=time_ms))

    def positions(
        self, broker: str, messages: Sequence[tuple[str, int, int]]
    ) -> list[tuple[int, int] | None]:
        found: list[tuple[int, int] | None] = []
        for begin in range(0, len(messages), _PLACES_MAX):
            some = [
                v1.QueueOffset(topic=topic, queue_id=queue, offset=offset)
                for topic, queue, offset in messages[begin : begin + _PLACES_MAX]
            ]
            # An impossible topic name: bounds of queues are not needed.
            request = v1.LocateLogRequest(broker=broker, topics=["\0"], messages=some)
            answer = self._wire.call(paths.LOCATE_LOG, request, v1.LocateLogResponse)
            found += [(one.place, one.size) if one.place >= 0 else None for one in answer.places]
        return found

    def split_range(self, broker: str, start: int, end: int, split_bytes: int) -> list[AnySplit]:
        count = max(round((end - start) / max(split_bytes, 1)), 1)
        borders = [start + (end - start) * number // count for number in range(count + 1)]
        return [
            WireSplit(broker, begin, stop)
            for begin, stop in itertools.pairwise(borders)
            if begin < stop
        ]

    def missing_topics(self, topics: Sequence[str]) -> list[str]:
        return [topic for topic in topics if not topic_exists(self._wire, topic)]

    def topic_names(self) -> list[str]:
        return topic_names(self._wire)

    def close(self) -> None:
        self._wire.close()

    def _locate(
        self, broker: str, *, position: int | None = None, timestamp_ms: int | None = None
    ) -> v1.LocateLogResponse:
        request = v1.LocateLogRequest(
            broker=broker, topics=self._topics, place=position, timestamp_ms=timestamp_ms
        )
        return self._wire.call(paths.LOCATE_LOG, request, v1.LocateLogResponse)

    def _wanted(self, answer: v1.LocateLogResponse) -> Iterator[v1.QueueBounds]:
        chosen = self._options.queue_filter(answer.broker)
        return (one for one in answer.queues if chosen.matches_queue(one.topic, one.queue_id))

    def _log_of(self, answer: v1.LocateLogResponse) -> BrokerLog:
        queues = {
            (one.topic, one.queue_id): (one.min_offset, one.max_offset)
            for one in self._wanted(answer)
        }
        return BrokerLog(answer.log_start, answer.confirm, queues)

    def _offsets(self, answer: v1.LocateLogResponse) -> dict[QueueName, int]:
        return {(one.topic, one.queue_id): one.offset for one in self._wanted(answer)}


def frames(access: Access, split: WireSplit) -> Iterator[tuple[bytes, int, int]]:
    """Yield whole records of the split: bytes, their first offset, and the end of the split's."""
    offset, inside = split.start, True
    with Channel(access) as wire:
        last_s = steady_s()
        while offset < split.end:
            request = v1.ReadLogRequest(
                offset=offset,
                end=split.end,
                max_bytes=_FRAME_BYTES,
                inside=inside,
                broker=split.broker,
            )
            before = offset
            try:
                for answer in wire.stream(paths.READ_LOG, request, v1.LogFrames):
                    _check(answer, split)
                    if answer.frames:
                        stop = answer.offset + len(answer.frames)
                        yield answer.frames, answer.offset, min(stop, split.end)
                    offset, inside = answer.next_offset, False
                    last_s = steady_s()  # after the yield: a slow consumer is no timeout
            except UnreachableError:
                if steady_s() - last_s > access.timeout_ms / 1000:
                    raise
                pause()
                continue
            if offset == before:
                raise PipelineError(
                    f"The log of {split.broker} ends at offset {offset}, before the end of the "
                    f"planned range, {split.end}: a failover may have truncated it. Run the query "
                    "again."
                )


def _check(answer: v1.LogFrames, split: WireSplit) -> None:
    if crc32(answer.frames) != answer.crc32:
        raise PipelineError(
            f"Checksum mismatch in the frames of {split.broker} at offset {answer.offset}: they "
            "were damaged in transit. Run the query again."
        )


def report_progress(options: SourceOptions, offsets: Offsets) -> None:
    """Commit next offsets for the consumer group. Raises PipelineError."""
    assert options.access is not None
    group = v2.Resource(name=options.consumer_group)
    with Channel(options.access) as wire:
        for (broker, topic, queue_id), offset in sorted(offsets.items()):
            queue = v2.MessageQueue(
                topic=v2.Resource(name=topic), id=queue_id, broker=v2.Broker(name=broker)
            )
            request = v2.UpdateOffsetRequest(group=group, message_queue=queue, offset=offset)
            try:
                wire.call(paths.UPDATE_OFFSET, request, v2.UpdateOffsetResponse)
            except PipelineError as error:
                raise OptionError(
                    f"The progress of group {options.consumer_group} cannot be committed: {error}"
                ) from error
