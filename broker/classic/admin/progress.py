"""Progress of consumer groups for classic tools: statistics, resets, copies of offsets.

Source: docs/formats/remoting.md, sections 16.3 and 16.4. A reset is that of the gRPC
administration, which also reaches connected consumers of both protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ....front.context import RequestContext
from ....proto import v1
from ....remoting.admin_codes import Admin
from ....remoting.admin_headers import CloneOffset, ConsumerGroup, GroupOfTopic, ResetOffset
from ....remoting.bare_json import QueueKey
from ....remoting.command import Command
from ....remoting.header_fields import read
from ....store.format.record import decode_delivery
from ...base.slices import Slices
from ..base.errors import known_group, known_topic
from .tables import ROWS_MAX, do_each, document, in_task, too_many_rows

if TYPE_CHECKING:
    from ....front.clock import Clock
    from ....remoting.connection import Connection, Handler
    from ....store.message_store import MessageStore
    from ...admin.offsets import OffsetAdmin
    from ...metadata.tables import Metadata
    from ...offsets.consumer_offsets import ConsumerOffsets
    from ...visible.dispatch_pump import DispatchPump
    from ..base.members import Members
    from .rates import StoreRates


class ToolProgress:
    """Handlers for the progress of groups."""

    def __init__(
        self,
        *,
        clock: Clock,
        broker_name: str,
        advertised: Callable[[], str],
        store: MessageStore,
        metadata: Metadata,
        offsets: ConsumerOffsets,
        offset_admin: OffsetAdmin,
        pump: DispatchPump,
        members: Members[Connection],
        rates: StoreRates,
    ) -> None:
        """`advertised` returns the address of this broker in routes, HOST:PORT."""
        self._clock = clock
        self._broker_name = broker_name
        self._advertised = advertised
        self._store = store
        self._metadata = metadata
        self._offsets = offsets
        self._offset_admin = offset_admin
        self._pump = pump
        self._members = members
        self._rates = rates

    def handlers(self) -> dict[int, Handler]:
        """Return the table of request codes."""
        table = {
            Admin.GET_CONSUME_STATS: self.statistics,
            Admin.GET_BROKER_CONSUME_STATS: self.broker_statistics,
            Admin.QUERY_CONSUME_TIME_SPAN: self.time_spans,
            Admin.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
            Admin.CLONE_GROUP_OFFSET: self.clone,
        }
        return {code: in_task(handler) for code, handler in table.items()}

    async def statistics(self, command: Command) -> Command:
        """Answer GET_CONSUME_STATS; an unknown group has none."""
        header = read(ConsumerGroup, command.fields)
        self._pump.catch_up()
        named = [each for each in (header.topic, *header.topics.split(";")) if each]
        topics = named or sorted(self._topics(header.group))
        return document(await self._statistics(header.group, self._kept(header.group, topics)))

    def _kept(self, group: str, topics: Iterable[str]) -> list[str]:
        """Return the topics without those that the group has left: it is not behind there, as in
        Apache's answers."""
        read_now = {each.topic for each in self._members.subscriptions(group)}
        return [name for name in topics if not read_now or name in read_now]

    def _topics(self, group: str) -> set[str]:
        """Return the topics on which a group has offsets: not those that it reads by broadcast."""
        return {topic for topic, name in self._offsets.pairs() if name == group}

    async def _statistics(self, group: str, topics: Iterable[str]) -> dict[str, Any]:
        slices = Slices(self._clock)
        table: dict[QueueKey, dict[str, int]] = {}
        tps = 0.0
        for name in topics:
            topic = self._metadata.topic(name)
            for queue_id in range(topic.read_queues if topic is not None else 0):
                table[QueueKey(self._broker_name, queue_id, name)] = self._row(
                    name, group, queue_id
                )
                if len(table) > ROWS_MAX:
                    raise too_many_rows(ROWS_MAX)
                await slices.pause()
            tps += self._rates.consumed(name, group).minute.tps
        return {"consumeTps": tps, "offsetTable": table}

    def _row(self, topic: str, group: str, queue_id: int) -> dict[str, int]:
        offset = self._offsets.get(topic, group, queue_id) or 0
        return {
            "brokerOffset": self._store.max_offset(topic, queue_id),
            "consumerOffset": offset,
            "lastTimestamp": max(self._stored_ms(topic, queue_id, offset - 1), 0),
            "pullOffset": offset,
        }

    def _stored_ms(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of a message; -1 if there is none."""
        if not self._store.min_offset(topic, queue_id) <= offset:
            return -1
        records = self._store.get(topic, queue_id, offset, 1, 1).records
        return decode_delivery(records[0].data).store_timestamp_ms if records else -1

    async def broker_statistics(self, command: Command) -> Command:
        """Answer GET_BROKER_CONSUME_STATS: all groups, or those that consume in order."""
        orderly = command.fields.get("isOrder", "").lower() == "true"
        self._pump.catch_up()
        topics_of: dict[str, list[str]] = {}
        for topic, name in self._offsets.pairs():
            topics_of.setdefault(name, []).append(topic)
        listed, rows, behind = [], 0, 0
        for name, group in list(self._metadata.groups.items()):
            if orderly and not group.orderly:
                continue
            topics = self._kept(name, topics_of.get(name, ()))
            each = [await self._statistics(name, [topic]) for topic in topics]
            tables = [one["offsetTable"].values() for one in each]
            rows += sum(map(len, tables))
            if rows > ROWS_MAX:
                raise too_many_rows(ROWS_MAX)
            for row in (row for table in tables for row in table):
                behind += max(row["brokerOffset"] - row["consumerOffset"], 0)
                row["pullOffset"] = 0  # as RocketMQ's in this answer
            listed.append({name: each})
        return document(
            {
                "brokerAddr": self._advertised(),
                "consumeStatsList": listed,
                "totalDiff": behind,
                "totalInflightDiff": 0,
            }
        )

    async def time_spans(self, command: Command) -> Command:
        """Answer QUERY_CONSUME_TIME_SPAN: times of the first, last and consumed message."""
        header = read(GroupOfTopic, command.fields)
        topic = known_topic(self._metadata, header.topic)
        self._pump.catch_up()
        slices = Slices(self._clock)
        store, name = self._store, topic.name
        spans = []
        for queue_id in range(topic.read_queues):
            first, end = store.min_offset(name, queue_id), store.max_offset(name, queue_id)
            offset = self._offsets.get(name, header.group, queue_id) or 0
            consumed_ms = self._stored_ms(name, queue_id, max(offset - 1, first))
            next_ms = self._stored_ms(name, queue_id, offset) if offset < end else -1
            spans.append(
                {
                    "consumeTimeStamp": consumed_ms,
                    "delayTime": max(self._clock.wall_ms() - next_ms, 0) if next_ms > 0 else 0,
                    "maxTimeStamp": self._stored_ms(name, queue_id, end - 1),
                    "messageQueue": QueueKey(self._broker_name, queue_id, name).document(),
                    "minTimeStamp": self._stored_ms(name, queue_id, first),
                }
            )
            await slices.pause()
        return document({"consumeTimeSpanSet": spans})

    async def reset(self, command: Command) -> Command:
        """Answer INVOKE_BROKER_TO_RESET_OFFSET."""
        header = read(ResetOffset, command.fields)
        request = v1.ResetOffsetsRequest(topic=header.topic, group=header.group)
        if header.queue_id >= 0:
            request.queue_id = header.queue_id
        if header.offset >= 0:
            request.offset = header.offset
        elif header.timestamp_ms < 0:  # -1 means the end, and so does a time that is a duration
            request.edge = v1.ResetOffsetsRequest.LATEST
        else:
            request.timestamp_ms = header.timestamp_ms
        answer = await self._offset_admin.reset(request, RequestContext())
        table = {
            QueueKey(self._broker_name, each.queue_id, each.topic): each.after
            for each in answer.changes
        }
        return document({"offsetTable": table})

    async def clone(self, command: Command) -> Command:
        """Answer CLONE_GROUP_OFFSET: of one topic, or of all."""
        header = read(CloneOffset, command.fields)
        source = known_group(self._metadata, header.source)
        target = known_group(self._metadata, header.target)
        topics = [header.topic] if header.topic else sorted(self._topics(source))
        moves = [
            v1.ResetOffsetsRequest(topic=topic, group=target, queue_id=queue_id, offset=offset)
            for topic in topics
            if not topic.startswith("%")  # retry topics belong to one group
            for queue_id, offset in self._offsets.queues(topic, source)
        ]
        return await do_each(
            [(f"{one.topic}, queue {one.queue_id}", one) for one in moves], self._move
        )

    async def _move(self, request: v1.ResetOffsetsRequest) -> None:
        await self._offset_admin.reset(request, RequestContext())
