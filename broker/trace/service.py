"""The broker's own message trace: one record for each send, delivery and acknowledgement. Opt-in.

Clients of the gRPC protocol send no trace messages; with `traceTopicEnable` the broker writes them, so
that `mqadmin queryMsgTraceById` and the dashboard find what they know (broker semantics, section 9.3).
Promises: nothing here slows an answer: records are collected and appended every second, or when a batch
is full; when the log takes nothing they are dropped and counted, because a trace is no message.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from ...proto.errors import WireError
from ...store.format.message_id import OffsetId
from ...store.format.properties import encode_properties, property_value
from ...store.format.record import Message, unpack_host
from ...store.format.results import AppendResult, PutStatus
from ..pop.handles import decode_handle
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
    from ..node import Node
    from ..sending.fast_path import Prepared

log = logging.getLogger(__name__)

PERIOD_S = 1.0
_KINDS = (
    (b"TRAN_MSG", HALF),
    (b"TIMER_DELIVER_MS", DELAY),
    (b"DELAY", DELAY),
    (b"__SHARDINGKEY", ORDER),
)


class TraceService:
    """Collects and writes the records of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._region = node.config.region_id
        self._batch = TraceBatch()
        self._timer: asyncio.TimerHandle | None = None
        self.dropped = 0
        """Records that the log did not take."""

    def sent(self, ready: Prepared, results: list[AppendResult]) -> None:
        """A request's messages were given to the log."""
        for message, result in zip(ready.messages, results, strict=True):
            if result.status is PutStatus.PUT_OK:
                self._published(ready.topic, message, result)

    def received(self, group: str, handle: str, record: Delivery, attempt: int) -> None:
        """A message was given to a consumer of the group."""
        request_id, pop_ms = _request(handle)
        message_id = _text(record.properties, b"UNIQ_KEY")
        keys = _text(record.properties, b"KEYS")
        row = Delivered(pop_ms, self._region, group, request_id, message_id, attempt - 1, keys)
        self._add(row.encode(), message_id, keys)

    def acked(self, group: str, handle: str, message_id: str) -> None:
        """A message was acknowledged."""
        request_id, pop_ms = _request(handle)
        now_ms = self._node.clock.wall_ms()
        row = Consumed(now_ms, group, request_id, message_id, max(0, now_ms - pop_ms))
        self._add(row.encode(), message_id, "")

    def flush(self) -> None:
        """Append what was collected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._batch = self._batch, TraceBatch()
        if not batch.rows:
            return
        try:
            self._node.system_topics.ensure(TRACE_TOPIC)
            self._node.sender.append_internal([self._message(batch)])
        except WireError as error:
            self.dropped += len(batch.rows)
            log.warning("trace.dropped records=%d error=%s", len(batch.rows), error)

    def drop(self) -> None:
        """Another replica leads: its log takes nothing of this."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.dropped += len(self._batch.rows)
        self._batch = TraceBatch()

    def _published(self, topic: str, message: Message, result: AppendResult) -> None:
        properties = message.properties
        message_id, keys = _text(properties, b"UNIQ_KEY"), _text(properties, b"KEYS")
        host, port = unpack_host(message.store_host)
        kinds = (kind for name, kind in _KINDS if property_value(properties, name))
        row = Published(
            *(result.store_timestamp_ms, self._region, topic, message_id),
            *(_text(properties, b"TAGS"), keys, f"{host}:{port}", len(message.body)),
            next(kinds, NORMAL),
            str(OffsetId(message.store_host, result.physical_offset)),
            unpack_host(message.born_host)[0],
        )
        self._add(row.encode(), message_id, keys)

    def _add(self, row: str, message_id: str, keys: str) -> None:
        self._batch.add(row, (message_id, *keys.split(" ")))
        if self._batch.full:
            # Not here: whoever sends or receives is in the middle of something.
            self._arm(0)
        elif self._timer is None:
            self._arm(PERIOD_S)

    def _arm(self, after_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._node.loop.call_later(after_s, self.flush)

    def _message(self, batch: TraceBatch) -> Message:
        node = self._node
        properties = {"KEYS": " ".join(batch.keys)} if batch.keys else {}
        host = node.sender.store_host
        return Message(
            *(TRACE_TOPIC, 0, batch.body(), encode_properties(properties), 0, 0),
            *(node.clock.wall_ms(), host, host),
        )


def open_trace(node: Node, stack: AsyncExitStack) -> None:
    """Trace what this node serves, if it is asked to; a follower's log is its leader's."""
    if not node.config.trace_topic_enable:
        return
    tracer = node.tracer = TraceService(node)
    stack.callback(tracer.flush)
    if node.leadership.is_leader:
        node.trace = tracer


def _request(handle: str) -> tuple[str, int]:
    """What names one delivery, the same in its two records, and when it was."""
    decoded = decode_handle(handle)
    if decoded is None:
        return handle, 0
    where = f"{decoded.broker}-{decoded.kind}-{decoded.queue_id}-{decoded.offset}"
    return f"{where}-{decoded.pop_ms}", decoded.pop_ms


def _text(properties: bytes, name: bytes) -> str:
    return property_value(properties, name).decode("utf-8", "replace")
