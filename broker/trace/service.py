"""Message trace of the broker: one record per send, delivery and acknowledgement. Opt-in.

Clients of the gRPC protocol send no trace messages. With `traceTopicEnable` the broker writes them,
so that `mqadmin queryMsgTraceById` and the dashboard find their usual records
(docs/formats/broker-semantics.md, section 9.3). Promises: tracing delays no answer: records are
collected and appended once a second, or when a batch is full; records that the log does not accept
are dropped and counted.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from ...proto.errors import WireError
from ...store.format.message_id import OffsetId
from ...store.format.properties import encode_properties, property_value
from ...store.format.record import Message, Record, decode, unpack_host
from ...store.format.results import AppendResult, PutStatus
from ..names.handles import decode_handle
from .records import (
    DELAY,
    HALF,
    NORMAL,
    ORDER,
    TRACE_TOPIC,
    Consumed,
    Delivered,
    Published,
    TraceBatch,
)

if TYPE_CHECKING:
    import asyncio

    from ...store.format.record import Delivery
    from ..base.internal_appender import InternalAppender
    from ..base.runtime import Runtime
    from ..metadata.system_topics import SystemTopics
    from .sent import SentMessages

logger = logging.getLogger(__name__)

PERIOD_S = 1.0
_KINDS = (
    (b"TRAN_MSG", HALF),
    (b"TIMER_DELIVER_MS", DELAY),
    (b"DELAY", DELAY),
    (b"__SHARDINGKEY", ORDER),
)


class TraceService:
    """Collects trace records while this replica leads, and appends them."""

    def __init__(self, runtime: Runtime, system_topics: SystemTopics) -> None:
        self._clock = runtime.clock
        self._loop = runtime.loop
        self._system_topics = system_topics
        self._region = runtime.config.region_id
        self._appender: InternalAppender | None = None
        self._leads = False
        self._batch = TraceBatch()
        self._timer: asyncio.TimerHandle | None = None
        #: Records that the log did not accept.
        self.dropped = 0

    def start(self, appender: InternalAppender) -> None:
        """Set the appender; it is built later, because it reports the sends."""
        self._appender = appender

    def lead(self) -> None:
        """Start to collect records, and offer the topic to clients that trace themselves."""
        self._leads = True
        with suppress(WireError):  # the log accepts nothing now: the next flush creates it
            self._system_topics.ensure(TRACE_TOPIC)

    def follow(self) -> None:
        """Stop to collect records, and drop the collected ones: the log is the new leader's."""
        self._leads = False
        self._cancel_timer()
        self.dropped += len(self._batch.rows)
        self._batch = TraceBatch()

    def sent(self, ready: SentMessages, results: list[AppendResult]) -> None:
        """Trace the stored messages of a request, but not those that are traces."""
        if not self._leads or ready.topic == TRACE_TOPIC:
            return
        for message, result in zip(ready.messages, results, strict=True):
            if result.status is PutStatus.PUT_OK:
                self._published(ready.topic, message, result)

    def stored(self, records: bytes) -> None:
        """Trace encoded records, one behind the other, but not those that are traces."""
        rest = memoryview(records if self._leads else b"")
        while rest:
            record = decode(rest, check_crc=False)
            if record.topic != TRACE_TOPIC:
                self._published(record.topic, record, record)
            rest = rest[record.size :]

    def received(
        self, group: str, handle: str, record: Delivery, attempt: int, _topic: str
    ) -> None:
        """Trace the delivery of a message to a consumer of the group."""
        if not self._leads:
            return
        request_id, pop_ms = _request(handle)
        message_id = _text(record.properties, b"UNIQ_KEY")
        keys = _text(record.properties, b"KEYS")
        row = Delivered(pop_ms, self._region, group, request_id, message_id, attempt - 1, keys)
        self._add(row.encode(), message_id, keys)

    def acked(self, group: str, handle: str, message_id: str) -> None:
        """Trace the acknowledgement of a message."""
        if not self._leads:
            return
        request_id, pop_ms = _request(handle)
        now_ms = self._clock.wall_ms()
        row = Consumed(now_ms, group, request_id, message_id, max(0, now_ms - pop_ms))
        self._add(row.encode(), message_id, "")

    def flush(self) -> None:
        """Append the collected records."""
        self._cancel_timer()
        batch, self._batch = self._batch, TraceBatch()
        if not batch.rows or self._appender is None:
            return
        try:
            self._system_topics.ensure(TRACE_TOPIC)
            self._appender.append(self._message(batch, self._appender.store_host))
        except WireError as error:
            self.dropped += len(batch.rows)
            logger.warning("trace.dropped records=%d error=%s", len(batch.rows), error)

    def _published(self, topic: str, message: Message, result: AppendResult | Record) -> None:
        properties = message.properties
        message_id, keys = _text(properties, b"UNIQ_KEY"), _text(properties, b"KEYS")
        host, port = unpack_host(message.store_host)
        kinds = (kind for name, kind in _KINDS if property_value(properties, name))
        row = Published(
            time_ms=result.store_timestamp_ms,
            region=self._region,
            topic=topic,
            message_id=message_id,
            tags=_text(properties, b"TAGS"),
            keys=keys,
            store_host=f"{host}:{port}",
            body_bytes=len(message.body),
            kind=next(kinds, NORMAL),
            offset_id=str(OffsetId(message.store_host, result.physical_offset)),
            client_host=unpack_host(message.born_host)[0],
        )
        self._add(row.encode(), message_id, keys)

    def _add(self, row: str, message_id: str, keys: str) -> None:
        self._batch.add(row, (message_id, *keys.split(" ")))
        if self._batch.full:
            # In a later turn: the caller is in the middle of a send or a delivery.
            self._arm(0)
        elif self._timer is None:
            self._arm(PERIOD_S)

    def _arm(self, after_s: float) -> None:
        self._cancel_timer()
        self._timer = self._loop.call_later(after_s, self.flush)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _message(self, batch: TraceBatch, host: bytes) -> Message:
        properties = {"KEYS": " ".join(batch.keys)} if batch.keys else {}
        return Message(
            TRACE_TOPIC,
            0,
            batch.body(),
            encode_properties(properties),
            born_timestamp_ms=self._clock.wall_ms(),
            born_host=host,
            store_host=host,
        )


def _request(handle: str) -> tuple[str, int]:
    """Return the id of one delivery, equal in its two records, and its time."""
    decoded = decode_handle(handle)
    if decoded is None:
        return handle, 0
    where = f"{decoded.broker}-{decoded.kind}-{decoded.queue_id}-{decoded.offset}"
    return f"{where}-{decoded.pop_ms}", decoded.pop_ms


def _text(properties: bytes, name: bytes) -> str:
    return property_value(properties, name).decode("utf-8", "replace")
