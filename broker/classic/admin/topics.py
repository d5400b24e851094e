"""Topics for classic tools: create, change, delete, list, statistics.

Source: docs/formats/remoting.md, section 16.1. The handlers of the gRPC administration do the work,
so the checks are the same. Deliberate differences: `order` is not stored; a deletion by a tool of
RocketMQ accepts the loss of messages, because its commands have no option for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....front.context import RequestContext
from ....proto import v1
from ....remoting.admin_codes import Admin
from ....remoting.admin_headers import CreateTopic, Page, TopicName
from ....remoting.bare_json import QueueKey, dumps
from ....remoting.codes import Reply
from ....remoting.command import Command, reply
from ....remoting.header_fields import read
from ...messages.validation import SEARCHED_TOPICS
from ...metadata.tables import is_system_topic, topic_to_json
from ..base.bodies import in_range, name_of, value_of
from ..base.errors import known_topic
from .tables import (
    attribute_changes,
    beans_of,
    create_each,
    data_version,
    document,
    in_task,
    page_of,
)

if TYPE_CHECKING:
    from ....front.clock import Clock
    from ....remoting.connection import Handler
    from ...admin.topics import TopicAdmin
    from ...maintenance.status import BrokerStatus
    from ...metadata.tables import Metadata
    from .rates import StoreRates

_DEFAULT_QUEUES = 16
_PERM_DEFAULT = 6
# Bits of Apache's permissions that mean nothing here: 1 marks a template of topics, 8 is unused.
_PERM_DROPPED = 1 | 8


class ToolTopics:
    """Handlers for topics."""

    def __init__(
        self,
        *,
        clock: Clock,
        metadata: Metadata,
        topics: TopicAdmin,
        status: BrokerStatus,
        rates: StoreRates,
    ) -> None:
        self._clock = clock
        self._started_ms = clock.wall_ms()
        self._metadata = metadata
        self._topics = topics
        self._status = status
        self._rates = rates

    def handlers(self) -> dict[int, Handler]:
        """Return the table of request codes."""
        table = {
            Admin.UPDATE_AND_CREATE_TOPIC: self.create,
            Admin.UPDATE_AND_CREATE_TOPIC_LIST: self.create_all,
            Admin.DELETE_TOPIC_IN_BROKER: self.delete,
            Admin.GET_TOPIC_CONFIG: self.get,
            Admin.GET_ALL_TOPIC_CONFIG: self.all,
            Admin.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system,
            Admin.GET_TOPIC_STATS_INFO: self.statistics,
        }
        return {code: in_task(handler) for code, handler in table.items()}

    async def create(self, command: Command) -> Command:
        """Answer UPDATE_AND_CREATE_TOPIC."""
        header = read(CreateTopic, command.fields)
        attributes = [each.strip() for each in header.attributes.split(",") if each.strip()]
        await self._create(
            v1.CreateTopicRequest(
                name=header.topic,
                read_queues=header.read_queues,
                write_queues=header.write_queues,
                perm=header.perm & ~_PERM_DROPPED,
                attributes=attributes,
            )
        )
        return reply(Reply.SUCCESS)

    async def create_all(self, command: Command) -> Command:
        """Answer UPDATE_AND_CREATE_TOPIC_LIST."""
        return await create_each(command.body, "topicConfigList", _request, self._create)

    async def _create(self, request: v1.CreateTopicRequest) -> None:
        await self._topics.create(request, RequestContext())

    async def delete(self, command: Command) -> Command:
        """Answer DELETE_TOPIC_IN_BROKER; a topic that does not exist is no error."""
        name = read(TopicName, command.fields).topic
        if self._metadata.topic(name) is not None:
            request = v1.DeleteTopicRequest(name=name, accept_loss=True)
            await self._topics.delete(request, RequestContext())
        return reply(Reply.SUCCESS)

    async def get(self, command: Command) -> Command:
        """Answer GET_TOPIC_CONFIG."""
        topic = known_topic(self._metadata, read(TopicName, command.fields).topic)
        return document(topic_to_json(topic))

    async def all(self, command: Command) -> Command:
        """Answer GET_ALL_TOPIC_CONFIG: all topics, or a page."""
        page = read(Page, command.fields)
        topics = self._metadata.topics
        total = str(len(topics))
        names = page_of(topics, page.topic_from, page.topics_max)
        version = dumps(data_version(self._metadata, self._started_ms))
        beans = await beans_of(names, self._clock, self._bean)
        parts = (b'{"dataVersion":', version, b',"mappingDataVersion":', version)
        tail = b'},"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}'
        body = b"".join((*parts, b',"topicConfigTable":{', beans, tail))
        return reply(Reply.SUCCESS, fields={"totalTopicNum": total}, body=body)

    def _bean(self, name: str) -> dict[str, Any] | None:
        topic = self._metadata.topics.get(name)
        return None if topic is None else topic_to_json(topic)

    async def system(self, command: Command) -> Command:
        """Answer GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
        return document(
            {"topicList": [name for name in self._metadata.topics if is_system_topic(name)]}
        )

    async def statistics(self, command: Command) -> Command:
        """Answer GET_TOPIC_STATS_INFO."""
        name = read(TopicName, command.fields).topic
        topic = known_topic(self._metadata, name, SEARCHED_TOPICS)
        rows = await self._status.queue_status(topic)
        table = {
            QueueKey(row.broker, row.queue_id, topic.name): {
                "lastUpdateTimestamp": row.last_store_ms,
                "maxOffset": row.max_offset,
                "minOffset": row.min_offset,
            }
            for row in rows
        }
        tps = (await self._rates.stored(topic.name)).minute.tps
        return document({"offsetTable": table, "topicPutTps": tps})


def _request(bean: Any) -> v1.CreateTopicRequest:
    """Return the request for a TopicConfig. Raises RemotingError."""
    with in_range():
        return v1.CreateTopicRequest(
            name=name_of(bean, "topicName"),
            read_queues=value_of(bean, "readQueueNums", int, _DEFAULT_QUEUES),
            write_queues=value_of(bean, "writeQueueNums", int, _DEFAULT_QUEUES),
            perm=value_of(bean, "perm", int, _PERM_DEFAULT) & ~_PERM_DROPPED,
            attributes=attribute_changes(bean),
        )
