"""Logs of running brokers: raw frames by `Admin.ReadLog`, planned with `Admin.LocateLog`.

Every frame is verified with its CRC-32. A broken stream continues at its last offset, at another
replica if necessary, because physical offsets are common to a group. Brokers without these calls
are read by PullMessage (`pulled.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from zlib import crc32

from ...client.clock import steady_s
from ...proto import paths, v1, v2
from ..errors import DataLossError, OptionError, PipelineError, UnreachableError
from .channel import Channel, NoTopicError, NotServedError, pause
from .cluster_topics import topic_exists, topic_names
from .log import AnySplit, BrokerLog, Log, QueueName, WireSplit
from .loss import queue_text, report_loss
from .marks import HEAD_BYTES, Mark, last_mark, mark_of
from .offsets import Offsets
from .options import Access, SourceOptions
from .pulled import PulledLog

#: Bytes of one response; larger ones are not faster and need more memory.
_FRAME_BYTES: Final = 2 << 20
_PLACES_MAX: Final = 4_000
#: Bytes at the end of the log in which its last record is searched, until one is found.
_TAILS: Final = (4 << 10, 64 << 10, 8 << 20)


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
    former_names: Mapping[str, str] = {}

    def __init__(self, wire: Channel, options: SourceOptions) -> None:
        self._wire = wire
        self._options = options
        topics = options.topics.topics
        self._topics = sorted(topics) if topics else []
        self._bounds: dict[str, tuple[int, int]] = {}  # of the logs, at the last snapshot

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

    def pick(
        self, broker: str, ranges: Mapping[QueueName, tuple[int, int]], span: tuple[int, int]
    ) -> list[AnySplit] | None:
        return None

    def last_mark(self, broker: str) -> Mark | None:
        start, end = self._bounds[broker]
        for size in _TAILS:
            begin = max(end - size, start)
            last = None
            for answer in self._read(broker, begin, end):
                if answer.frames:
                    last = last_mark(answer.frames, answer.offset)
            if last is not None:
                return last
            if begin == start:
                break
        return Mark(end, -1)

    def mark_at(self, broker: str, position: int) -> Mark | None:
        for answer in self._read(broker, position, position + 1):
            if answer.offset == position:
                return mark_of(answer.frames[:HEAD_BYTES], position)
        return None

    def missing_topics(self, topics: Sequence[str]) -> list[str]:
        return [topic for topic in topics if not topic_exists(self._wire, topic)]

    def topic_names(self) -> list[str]:
        return topic_names(self._wire)

    def close(self) -> None:
        self._wire.close()

    def _read(self, broker: str, begin: int, end: int) -> list[v1.LogFrames]:
        """Return the records that begin in [begin, end); none if the log does not reach there."""
        assert self._options.access is not None
        request = v1.ReadLogRequest(
            offset=begin, end=end, max_bytes=_FRAME_BYTES, inside=True, broker=broker
        )
        stop = steady_s() + self._options.access.timeout_ms / 1000
        while True:
            try:
                answers = list(self._wire.stream(paths.READ_LOG, request, v1.LogFrames))
            except DataLossError:
                return []
            except UnreachableError:
                if steady_s() >= stop:
                    raise
                pause()
                continue
            for answer in answers:
                _check(answer, broker)
            return answers

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
        self._bounds[answer.broker] = answer.log_start, answer.confirm
        return BrokerLog(answer.log_start, answer.confirm, queues)

    def _offsets(self, answer: v1.LocateLogResponse) -> dict[QueueName, int]:
        return {(one.topic, one.queue_id): one.offset for one in self._wanted(answer)}


def frames(
    access: Access, split: WireSplit, *, fail_on_loss: bool = True
) -> Iterator[tuple[bytes, int, int]]:
    """Yield whole records of the split: bytes, their first offset, and the end of the split's.

    Bytes that retention has deleted raise DataLossError; without `fail_on_loss` the range is logged
    and reading goes on at the log's first byte.
    """
    offset, inside = split.start, True
    with Channel(access) as wire:
        last_s = steady_s()
        while offset < split.end:
            request = v1.ReadLogRequest(
                offset=offset,
                end=split.end,
                max_bytes=_FRAME_BYTES,
                at_least=not fail_on_loss,
                inside=inside,
                broker=split.broker,
            )
            before = offset
            try:
                for answer in wire.stream(paths.READ_LOG, request, v1.LogFrames):
                    _check(answer, split.broker)
                    _warn_deleted(split, offset, answer.log_start)
                    if answer.frames and answer.offset < split.end:
                        stop = answer.offset + len(answer.frames)
                        yield answer.frames, answer.offset, min(stop, split.end)
                    offset, inside = answer.next_offset, False
                    last_s = steady_s()  # after the yield: a slow consumer is no timeout
            except DataLossError:
                if fail_on_loss or offset == before:
                    raise
                continue  # deleted while it was read
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


def _warn_deleted(split: WireSplit, offset: int, log_start: int) -> None:
    if offset < log_start:
        end = min(log_start, split.end)
        report_loss(
            f"Retention deleted the log of {split.broker} between offsets {offset} and {end} "
            "before it was read.",
            fail_on_loss=False,
        )


def _check(answer: v1.LogFrames, broker: str) -> None:
    if crc32(answer.frames) != answer.crc32:
        raise PipelineError(
            f"Checksum mismatch in the frames of {broker} at offset {answer.offset}: they "
            "were damaged in transit. Run the query again."
        )


def report_progress(options: SourceOptions, offsets: Offsets) -> None:
    """Commit next offsets for the consumer group.

    Raises OptionError, also for a group that does not exist. A queue that does not reach its offset
    is DataLossError or, without `failOnDataLoss`, is left out.
    """
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
            except NoTopicError:
                continue  # deleted: it has no progress
            except DataLossError as error:
                report_loss(
                    f"The progress of {queue_text((broker, topic, queue_id))} cannot be {offset}: "
                    f"{error}",
                    fail_on_loss=options.fail_on_loss,
                )
            except PipelineError as error:
                name = options.consumer_group
                raise OptionError(
                    f"The progress of group {name} cannot be committed: {error} If the group does "
                    f"not exist, create it (cometmq group create {name}) or leave out "
                    "consumerGroup."
                ) from error
