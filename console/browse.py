"""Reads stored messages of a topic without a consumer group: by queue and offset, or in time order.

Reads are pulls, as in `cometmq message tail`; they change nothing. A page reads at most
`SCANNED_MAX` messages in `SCAN_S`.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..operations import pulling
from ..operations.connection import Connection
from ..operations.errors import CliError, Exit
from ..operations.pulling import BATCH, Batch, queue_of
from ..proto import paths, v1, v2
from .cluster import CALL_S, Cluster
from .language import said

#: Messages that one page reads to find those that match.
SCANNED_MAX = 2_000
#: Queues of a topic that are read in time order; each costs two calls.
QUEUES_MAX = 64
# Places without a message, of damaged records, that are passed on the way to older messages.
_EMPTY_MAX = 16


class Queue(NamedTuple):
    """One queue of a topic."""

    topic: str
    broker: str
    queue_id: int


def queues_of(cluster: Cluster, topic: str) -> list[v1.QueueStatus]:
    """Return the queues of a topic in all broker groups. Raises CliError."""
    request = v1.DescribeTopicRequest(name=topic)
    outcomes = cluster.each(paths.DESCRIBE_TOPIC, request, v1.DescribeTopicResponse)
    found = [queue for one in outcomes if one.answer for queue in one.answer.queues]
    errors = [one.error for one in outcomes if one.error is not None]
    if not found and errors:
        raise errors[0]
    return found


def bounds_of(cluster: Cluster, queue: Queue) -> tuple[int, int]:
    """Return the first offset of a queue and the one behind its last. Raises CliError."""
    for one in queues_of(cluster, queue.topic):
        if one.queue_id == queue.queue_id and queue.broker in ("", one.broker):
            return one.min_offset, one.max_offset
    text = said("Topic {} has no queue {}.", queue.topic, queue.queue_id)
    if queue.broker:
        place = (queue.topic, queue.queue_id, queue.broker)
        text = said("Topic {} has no queue {} of broker group {}.", *place)
    raise CliError(text, Exit.NOT_FOUND)


def pull(connection: Connection, queue: Queue, offset: int, end: int, count: int = BATCH) -> Batch:
    """Return messages of a queue from an offset on, below `end`. Raises CliError.

    `end` is the present end of the queue: there, a broker would wait for the next message.
    """
    if offset >= end:
        return Batch(offset)
    return pulling.pull(connection, queue_of(*queue), offset, count=count, timeout_s=CALL_S)


def message_at(cluster: Cluster, queue: Queue, offset: int) -> v2.Message:
    """Return the message at an offset. Raises CliError."""
    _, end = bounds_of(cluster, queue)
    for message in pull(cluster.connection, queue, offset, end, 1).messages:
        if message.system_properties.queue_offset == offset:
            return message
    text = said(
        "Queue {} of topic {} has no message at offset {}.", queue.queue_id, queue.topic, offset
    )
    text = said("{} {}", text, said("It may be deleted by retention."))
    raise CliError(text, Exit.NOT_FOUND)


def offsets_at(connection: Connection, queues: Sequence[Queue], at_ms: int) -> dict[Queue, int]:
    """Return the offset of each queue's first message stored at a time or later. Raises
    CliError."""
    pending = []
    for queue in queues:
        request = v2.QueryOffsetRequest(
            message_queue=queue_of(*queue), query_offset_policy=v2.TIMESTAMP
        )
        request.timestamp.FromMilliseconds(at_ms)
        call = connection.start(paths.QUERY_OFFSET, request, v2.QueryOffsetResponse, CALL_S)
        pending.append((queue, call))
    return {queue: call().offset for queue, call in pending}


def in_time_order(
    queues: Sequence[Queue],
    first: Callable[[Queue], int],
    read: Callable[[Queue, int], Batch],
) -> Iterator[tuple[Queue, v2.Message]]:
    """Yield the messages of several queues by their store time, each queue in its order.

    `first` returns the start offset of a queue; `read` returns the next messages of one, none at
    its end. A queue is read again only when its messages are used up.
    """
    heap: list[tuple[int, int, int]] = []
    unread: list[list[v2.Message]] = []
    offsets: list[int] = []

    def refill(index: int) -> None:
        batch = read(queues[index], offsets[index])
        if batch.messages:
            unread[index] = list(reversed(batch.messages))
            offsets[index] = max(batch.next_offset, offset_of(batch.messages[-1]) + 1)
            heapq.heappush(heap, _entry(unread[index][-1], index))

    for index, queue in enumerate(queues):
        offsets.append(first(queue))
        unread.append([])
        refill(index)
    while heap:
        _, _, index = heapq.heappop(heap)
        yield queues[index], unread[index].pop()
        if unread[index]:
            heapq.heappush(heap, _entry(unread[index][-1], index))
        else:
            refill(index)


def newest_first(
    ends: Mapping[Queue, int],
    firsts: Mapping[Queue, int],
    read: Callable[[Queue, int, int], Batch],
) -> Iterator[tuple[Queue, v2.Message]]:
    """Yield the messages of several queues below their `ends`, the newest first.

    `read` returns the next messages of a queue from an offset on, below another one.
    """
    heap: list[tuple[int, int, Queue]] = []
    unread: dict[Queue, list[v2.Message]] = {}
    below = dict(ends)

    def refill(queue: Queue) -> None:
        for _ in range(_EMPTY_MAX):
            if below[queue] <= firsts[queue]:
                return
            start, end = max(firsts[queue], below[queue] - BATCH), below[queue]
            found: list[v2.Message] = []
            below[queue] = at = start
            while at < end:
                batch = read(queue, at, end)
                found += [one for one in batch.messages if offset_of(one) < end]
                if batch.next_offset <= at:
                    break
                at = batch.next_offset
            if found:
                unread[queue] = found
                heapq.heappush(heap, (-stored_ms(found[-1]), -offset_of(found[-1]), queue))
                return

    for queue in ends:
        refill(queue)
    while heap:
        _, _, queue = heapq.heappop(heap)
        yield queue, unread[queue].pop()
        if unread[queue]:
            last = unread[queue][-1]
            heapq.heappush(heap, (-stored_ms(last), -offset_of(last), queue))
        else:
            refill(queue)


def offset_of(message: v2.Message) -> int:
    """Return the queue offset of a message."""
    return message.system_properties.queue_offset


def stored_ms(message: v2.Message) -> int:
    """Return the time at which a message was stored."""
    return message.system_properties.store_timestamp.ToMilliseconds()


def _entry(message: v2.Message, index: int) -> tuple[int, int, int]:
    return stored_ms(message), offset_of(message), index
