"""Reads topics of brokers without ReadLog by PullMessage, queue by queue.

Much slower than ReadLog. Pulled messages have no physical offset, so `physicalOffset`, `size`,
`flag`, `sysFlag`, `bodyCRC` and `preparedTransactionOffset` are null. Topics must be named. A gap
that the broker reports raises DataLossError (docs/formats/grpc-api.md, section 5.12).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...client.message import read_message
from ...proto import paths, v2
from ..errors import DataLossError, OptionError, PipelineError
from ..schema import arrow_schema, shown
from .channel import Channel, NoTopicError
from .cluster_topics import route_of, topic_names
from .log import AnySplit, BrokerLog, PullSplit, QueueName
from .marks import Mark
from .offsets import Queue
from .options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH: Final = 32
_GROUP: Final = "cometmq_spark"


class PulledLog:
    """Log of brokers without ReadLog: queues of named topics."""

    physical = False
    former_names: Mapping[str, str] = {}

    def __init__(self, wire: Channel, options: SourceOptions) -> None:
        self._wire = wire
        self._options = options
        if not options.topics.topics:
            wire.close()
            raise OptionError(
                f"{wire.target} does not support ReadLog: name the topics with subscribe or assign."
            )
        self._queues: dict[Queue, v2.MessageQueue] = {}
        self._missing: set[str] = set()

    def snapshot(self) -> dict[str, BrokerLog]:
        found: dict[str, BrokerLog] = {}
        self._queues = {}
        for topic in sorted(self._options.topics.topics or ()):
            try:
                route = route_of(self._wire, topic)
            except NoTopicError:
                self._missing.add(topic)  # a stream may wait for it
                continue
            self._missing.discard(topic)
            for queue in route.message_queues:
                broker = queue.broker.name
                chosen = self._options.queue_filter(broker)
                if queue.broker.id or not chosen.matches_queue(topic, queue.id):
                    continue
                log = found.setdefault(broker, BrokerLog(0, 0))
                bounds = (self._edge(queue, v2.BEGINNING), self._edge(queue, v2.END))
                log.queues[topic, queue.id] = bounds
                self._queues[broker, topic, queue.id] = queue
        return found

    def offsets_at_position(self, broker: str, position: int) -> dict[QueueName, int]:
        raise PipelineError("Pulled queues have no physical offsets.")

    def offsets_at_time(self, broker: str, time_ms: int) -> dict[QueueName, int]:
        found: dict[QueueName, int] = {}
        for (name, topic, queue_id), queue in self._queues.items():
            if name == broker:
                request = v2.QueryOffsetRequest(
                    message_queue=queue, query_offset_policy=v2.TIMESTAMP
                )
                request.timestamp.FromMilliseconds(time_ms)
                answer = self._wire.call(paths.QUERY_OFFSET, request, v2.QueryOffsetResponse)
                found[topic, queue_id] = answer.offset
        return found

    def positions(
        self, broker: str, messages: Sequence[tuple[str, int, int]]
    ) -> list[tuple[int, int] | None]:
        return [None] * len(messages)

    def split_range(self, broker: str, start: int, end: int, split_bytes: int) -> list[AnySplit]:
        return []

    def pick(
        self, broker: str, ranges: Mapping[QueueName, tuple[int, int]], span: tuple[int, int]
    ) -> list[AnySplit] | None:
        return None

    def last_mark(self, broker: str) -> Mark | None:
        return None

    def mark_at(self, broker: str, position: int) -> Mark | None:
        return None

    def missing_topics(self, topics: Sequence[str]) -> list[str]:
        return [topic for topic in topics if topic in self._missing]

    def topic_names(self) -> list[str]:
        return topic_names(self._wire)

    def close(self) -> None:
        self._wire.close()

    def _edge(self, queue: v2.MessageQueue, policy: v2.QueryOffsetPolicy.ValueType) -> int:
        request = v2.QueryOffsetRequest(message_queue=queue, query_offset_policy=policy)
        return self._wire.call(paths.QUERY_OFFSET, request, v2.QueryOffsetResponse).offset


def pulled_rows(options: SourceOptions, split: PullSplit) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range of a queue."""
    assert options.access is not None
    rows: list[v2.Message] = []
    size = 0
    with Channel(options.access) as wire:
        for message in _messages(wire, options, split):
            rows.append(message)
            size += len(message.body)
            if len(rows) >= options.batch_rows or size >= options.batch_bytes:
                yield _batch(options, split.broker, rows)
                rows, size = [], 0
    if rows:
        yield _batch(options, split.broker, rows)


def _messages(wire: Channel, options: SourceOptions, split: PullSplit) -> Iterator[v2.Message]:
    topic = v2.Resource(name=split.topic)
    queue = v2.MessageQueue(topic=topic, id=split.queue_id, broker=v2.Broker(name=split.broker))
    tags = " || ".join(sorted(options.topics.tags)) if options.topics.tags else "*"
    offset = split.start
    while offset < split.end:
        request = v2.PullMessageRequest(
            group=v2.Resource(name=options.consumer_group or _GROUP),
            message_queue=queue,
            offset=offset,
            batch_size=_BATCH,
            filter_expression=v2.FilterExpression(type=v2.TAG, expression=tags),
        )
        # No long poll: all planned messages exist.
        request.long_polling_timeout.FromMilliseconds(0)
        following = offset
        for answer in wire.stream(paths.PULL_MESSAGE, request, v2.PullMessageResponse):
            kind = answer.WhichOneof("content")
            if kind == "message" and answer.message.system_properties.queue_offset < split.end:
                yield answer.message
            elif kind == "next_offset":
                following = answer.next_offset
        if following <= offset:
            raise DataLossError(
                f"Queue {split.queue_id} of {split.topic} ({split.broker}) ends at {offset}, "
                f"before the end of the planned range, {split.end}."
            )
        offset = following


def _batch(options: SourceOptions, broker: str, messages: list[v2.Message]) -> pa.RecordBatch:
    import pyarrow as pa

    schema = arrow_schema(options.columns, options.properties)
    names = shown(options.columns, options.properties)
    rows = [_row(options, broker, one) for one in messages]
    arrays = [pa.array([row.get(name) for row in rows], schema.field(name).type) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _row(options: SourceOptions, broker: str, sent: v2.Message) -> dict[str, Any]:
    system = sent.system_properties
    message = read_message(sent, broker)
    if message.corrupted and options.on_corrupt == "fail":
        raise PipelineError(
            f"Message {message.message_id} of {message.topic} came damaged (onCorrupt=fail)."
        )
    properties = dict(sent.user_properties) | {"UNIQ_KEY": system.message_id}
    if system.tag:
        properties["TAGS"] = system.tag
    if system.keys:
        properties["KEYS"] = " ".join(system.keys)
    if system.message_group:
        properties["__SHARDINGKEY"] = system.message_group
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return {
        "topic": sent.topic.name,
        "queueId": system.queue_id,
        "queueOffset": system.queue_offset,
        "brokerName": broker,
        "msgId": system.message_id,
        "tags": system.tag or None,
        "keys": properties.get("KEYS"),
        "body": message.body if options.decompress else sent.body,
        "properties": text if options.properties == "string" else list(properties.items()),
        "bornTimestamp": system.born_timestamp.ToMicroseconds(),
        "bornHost": system.born_host,
        "storeTimestamp": system.store_timestamp.ToMicroseconds(),
        "storeHost": system.store_host,
        "reconsumeTimes": max(system.delivery_attempt - 1, 0),
    }
