"""Consumer groups for classic tools: create, change, delete, list, members' subscriptions.

Source: docs/formats/remoting.md, section 16.1. The handlers of the gRPC administration do the work.
Fields of RocketMQ's configuration that this system does not use (`brokerId`,
`whichBrokerWhenConsumeSlowly`, `consumeBroadcastEnable`, `consumeTimeoutMinute`, `groupSysFlag`,
`notifyConsumerIdsChangedEnable`, `consumeFromMinEnable`) keep their values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....front.context import RequestContext
from ....proto import v1
from ....remoting.admin_codes import Admin
from ....remoting.admin_headers import GroupName, GroupOfTopic, Page, TopicName
from ....remoting.bare_json import as_enum, as_int, dumps
from ....remoting.codes import Reply
from ....remoting.command import Command, reply
from ....remoting.connection import RemotingError
from ....remoting.header_fields import read
from ...metadata.tables import group_to_json
from ..base.bodies import ITEMS_MAX, in_range, json_object, malformed, name_of, value_of
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
    from ....remoting.connection import Connection, Handler
    from ...admin.groups import GroupAdmin
    from ...metadata.tables import Metadata
    from ...offsets.consumer_offsets import ConsumerOffsets
    from ..base.members import Members

_RETRIES_DEFAULT = 16


class ToolGroups:
    """Handlers for consumer groups."""

    def __init__(
        self,
        *,
        clock: Clock,
        metadata: Metadata,
        groups: GroupAdmin,
        offsets: ConsumerOffsets,
        members: Members[Connection],
    ) -> None:
        self._clock = clock
        self._started_ms = clock.wall_ms()
        self._metadata = metadata
        self._groups = groups
        self._offsets = offsets
        self._members = members

    def handlers(self) -> dict[int, Handler]:
        """Return the table of request codes."""
        table = {
            Admin.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.create,
            Admin.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.create_all,
            Admin.DELETE_SUBSCRIPTIONGROUP: self.delete,
            Admin.GET_SUBSCRIPTIONGROUP_CONFIG: self.get,
            Admin.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all,
            Admin.QUERY_TOPIC_CONSUME_BY_WHO: self.groups_of_topic,
            Admin.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
        }
        return {code: in_task(handler) for code, handler in table.items()}

    async def create(self, command: Command) -> Command:
        """Answer UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
        await self._create(_request(json_object(command.body)))
        return reply(Reply.SUCCESS)

    async def create_all(self, command: Command) -> Command:
        """Answer UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""
        return await create_each(command.body, "groupConfigList", _request, self._create)

    async def _create(self, request: v1.CreateGroupRequest) -> None:
        await self._groups.create(request, RequestContext())

    async def delete(self, command: Command) -> Command:
        """Answer DELETE_SUBSCRIPTIONGROUP; a group that does not exist is no error."""
        header = read(GroupName, command.fields)
        if self._metadata.group(header.group) is not None:
            request = v1.DeleteGroupRequest(
                name=header.group,
                keep_offsets=not header.clean_offset,
                accept_loss=True,
                force=True,
            )
            await self._groups.delete(request, RequestContext())
        return reply(Reply.SUCCESS)

    async def get(self, command: Command) -> Command:
        """Answer GET_SUBSCRIPTIONGROUP_CONFIG."""
        name = read(GroupOfTopic, command.fields).group
        group = self._metadata.group(name)
        if group is None:
            raise RemotingError(Reply.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {name} not exist!")
        return document(group_to_json(group))

    async def all(self, command: Command) -> Command:
        """Answer GET_ALL_SUBSCRIPTIONGROUP_CONFIG: all groups, or a page."""
        page = read(Page, command.fields)
        groups = self._metadata.groups
        total = str(len(groups))
        names = page_of(groups, page.group_from, page.groups_max)
        beans = await beans_of(names, self._clock, self._bean)
        version = dumps(data_version(self._metadata, self._started_ms))
        head = b'{"dataVersion":' + version + b',"forbiddenTable":{},"subscriptionGroupTable":{'
        body = b"".join((head, beans, b"}}"))
        return reply(Reply.SUCCESS, fields={"totalGroupNum": total}, body=body)

    def _bean(self, name: str) -> dict[str, Any] | None:
        group = self._metadata.groups.get(name)
        return None if group is None else group_to_json(group)

    async def groups_of_topic(self, command: Command) -> Command:
        """Answer QUERY_TOPIC_CONSUME_BY_WHO: groups with offsets, and connected subscribers."""
        topic = read(TopicName, command.fields).topic
        groups = {group for name, group in self._offsets.pairs() if name == topic}
        for group in self._members.groups():
            if self._members.subscription(group, topic) is not None:
                groups.add(group)
        return document({"groupList": sorted(groups)})

    async def topics_of_group(self, command: Command) -> Command:
        """Answer QUERY_TOPICS_BY_CONSUMER."""
        group = read(GroupOfTopic, command.fields).group
        topics = {topic for topic, name in self._offsets.pairs() if name == group}
        topics |= {each.topic for each in self._members.subscriptions(group)}
        return document({"topicList": sorted(topics)})


def _request(bean: Any) -> v1.CreateGroupRequest:
    """Return the request for a SubscriptionGroupConfig. Raises RemotingError."""
    with in_range():
        return v1.CreateGroupRequest(
            name=name_of(bean, "groupName"),
            orderly=value_of(bean, "consumeMessageOrderly", bool, False),
            max_attempts=value_of(bean, "retryMaxTimes", int, _RETRIES_DEFAULT) + 1,
            consume_enable=value_of(bean, "consumeEnable", bool, True),
            retry_queues=value_of(bean, "retryQueueNums", int, 1),
            retry=_retry(value_of(bean, "groupRetryPolicy", dict, {})),
            attributes=attribute_changes(bean),
        )


def _retry(policy: dict[str, Any]) -> v1.GroupRetry:
    """Return the delays of a retry policy; none for the broker's own. Raises RemotingError."""
    if as_enum(policy.get("type"), ("EXPONENTIAL", "CUSTOMIZED")) == "EXPONENTIAL":
        found = value_of(policy, "exponentialRetryPolicy", dict, {})
        return v1.GroupRetry(
            initial_ms=value_of(found, "initial", int, 5_000),
            max_ms=value_of(found, "max", int, 7_200_000),
            multiplier=value_of(found, "multiplier", int, 2),
        )
    found = value_of(policy, "customizedRetryPolicy", dict, {})
    delays = [as_int(delay) for delay in value_of(found, "next", list, [])]
    known = [delay for delay in delays if delay is not None]
    if len(known) < len(delays):
        raise malformed("a delay of the retry policy is not a number")
    return v1.GroupRetry(delays_ms=known[:ITEMS_MAX])
