"""Heartbeats of classic clients, the members of their groups, and locks of queues.

Source: docs/formats/remoting.md, sections 10 and 14. A heartbeat creates the retry topic of each
consumer group; a change of its members is sent to all of them (code 40). A follower enters members,
and creates nothing. A group whose members use the gRPC protocol is refused: both protocols together
would deliver messages twice.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...proto.errors import WireError
from ...remoting.bare_json import (
    BareJsonError,
    QueueKey,
    as_enum,
    as_text,
    dumps,
    queue_key,
)
from ...remoting.codes import Reply, Request
from ...remoting.command import Command, reply
from ...remoting.connection import Connection, Handler, RemotingError
from ...remoting.header_fields import read
from ...remoting.headers import ConsumerGroup, UnregisterClient
from ..messages.validation import check_group
from ..metadata.tables import is_system_group
from .bodies import items_of, json_object, malformed, name_of, value_of
from .members import About, Members, Subscription, TooManyMembersError
from .pull import filter_of

if TYPE_CHECKING:
    from ..clients.registry import ClientRegistry
    from ..leadership import Leadership
    from ..metadata.tables import Metadata
    from ..pop.dead_letter import GroupTopics
    from ..runtime import Runtime
    from .locks import QueueLocks

#: Producer groups, and consumer groups, of one heartbeat: 40 ms of the event loop.
_GROUPS_MAX = 1_000
#: Groups that one heartbeat creates, each with its retry topic: 20 ms. The next one creates more.
_NEW_GROUPS_MAX = 200
_TOO_MANY_NEW = (
    f"a heartbeat creates at most {_NEW_GROUPS_MAX} consumer groups: the next ones create the rest"
)
_CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
_MODELS = ("BROADCASTING", "CLUSTERING")
_FROM_WHERE = (
    *("CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"),
    *("CONSUME_FROM_MIN_OFFSET", "CONSUME_FROM_MAX_OFFSET", "CONSUME_FROM_FIRST_OFFSET"),
    "CONSUME_FROM_TIMESTAMP",
)
#: The longest tag expression; SQL expressions have a lower limit.
_EXPRESSION_MAX = 16_384
#: Changes of a group within this time are one notice to each member.
_NOTICE_S = 0.005
_EXPIRY_CHECK_S = 10.0
#: Characters kept of what a client tells of itself.
_LABEL_MAX = 64


class ClassicClients:
    """Handlers of heartbeats, members and locks."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        metadata: Metadata,
        leadership: Leadership,
        registry: ClientRegistry,
        group_topics: GroupTopics,
        members: Members[Connection],
        producers: Members[Connection],
        locks: QueueLocks,
    ) -> None:
        self._mixed = runtime.config.allow_mixed_protocols
        self._clock = runtime.clock
        self._loop = runtime.loop
        self._metadata = metadata
        self._leadership = leadership
        self._registry = registry
        self._group_topics = group_topics
        self._members = members
        self._producers = producers
        self._locks = locks
        self._known: set[Connection] = set()
        self._changed: dict[str, None] = {}
        self._notice: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def handlers(self) -> dict[int, Handler]:
        """Return the table of request codes."""
        return {
            Request.HEART_BEAT: self.heartbeat,
            Request.UNREGISTER_CLIENT: self.unregister,
            Request.GET_CONSUMER_LIST_BY_GROUP: self.members,
            Request.LOCK_BATCH_MQ: self.lock,
            Request.UNLOCK_BATCH_MQ: self.unlock,
            Request.CHECK_CLIENT_CONFIG: self.check,
        }

    def start(self) -> None:
        """Remove silent members from now on; keep clients of the gRPC protocol out of groups."""
        if not self._mixed:
            self._registry.is_taken = self._has_members
        self._expiry = self._loop.call_later(_EXPIRY_CHECK_S, self._expire)

    def close(self) -> None:
        """Stop the timers."""
        self._registry.is_taken = lambda _group: False
        for timer in (self._notice, self._expiry):
            if timer is not None:
                timer.cancel()

    def _has_members(self, group: str) -> bool:
        return bool(self._members.client_ids(group))

    def heartbeat(self, command: Command, peer: Connection) -> Command:
        """Answer HEART_BEAT."""
        found = json_object(command.body)
        client_id = name_of(found, "clientID")
        light = value_of(found, "withoutSub", bool, False)
        producers, consumers, left_out = _groups_of(found)
        problems: list[RemotingError | WireError] = [] if left_out is None else [left_out]
        for group in producers:
            about = About(command.language[:_LABEL_MAX], command.version)
            try:
                self._enter(
                    self._producers, name_of(group, "groupName"), client_id, peer, (), about=about
                )
            except RemotingError as error:
                problems.append(error)
        new = 0
        for group in consumers:
            try:
                name = name_of(group, "groupName")
                new += self._metadata.group(name) is None
                if new > _NEW_GROUPS_MAX:
                    problems.append(RemotingError(Reply.SYSTEM_BUSY, _TOO_MANY_NEW))
                    break
                self._heard(group, client_id, peer, light, _about(command, group))
            except (RemotingError, WireError) as error:
                problems.append(error)  # the other groups of the client do not depend on it
        if problems:
            raise problems[0]
        # Clients send their whole subscription every time: this server asks for it.
        fields = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
        return reply(Reply.SUCCESS, fields=fields)

    def _heard(
        self, found: Any, client_id: str, peer: Connection, light: bool, about: About
    ) -> None:
        name = name_of(found, "groupName")
        if is_system_group(name):
            return
        check_group(name)
        subscriptions = None if light else _subscriptions(found)
        if (
            not self._mixed
            and not self._members.has(name, client_id)
            and any(client.group == name and client.streams for client in self._registry)
        ):
            raise RemotingError(
                Reply.SYSTEM_ERROR,
                f"consumer group {name} is in use by clients of the gRPC protocol: a group belongs "
                "to one protocol at a time (allowMixedProtocols)",
            )
        if self._leadership.is_leader:
            try:
                self._metadata.ensure_group(name)
            except WireError:
                return  # as in RocketMQ: its pulls are refused
            self._group_topics.ensure(f"%RETRY%{name}")
        if self._enter(self._members, name, client_id, peer, subscriptions, about=about):
            self._tell(name)

    def _enter(
        self,
        members: Members[Connection],
        group: str,
        client_id: str,
        peer: Connection,
        subscriptions: Iterable[Subscription] | None,
        *,
        about: About,
    ) -> bool:
        """Enter a member; return whether the group has changed. Raises RemotingError."""
        if peer not in self._known:
            self._known.add(peer)
            peer.on_close(self._left)
        now_ns = self._clock.steady_ns()
        try:
            return members.heartbeat(group, client_id, peer, subscriptions, now_ns, about=about)
        except TooManyMembersError as error:
            raise RemotingError(Reply.SYSTEM_BUSY, str(error)) from None

    def unregister(self, command: Command, _: Connection) -> Command:
        """Answer UNREGISTER_CLIENT."""
        header = read(UnregisterClient, command.fields)
        if header.producer_group is not None:
            self._producers.leave(header.producer_group, header.client_id)
        group = header.consumer_group
        if group is not None and self._members.leave(group, header.client_id):
            self._tell(group)
        return reply(Reply.SUCCESS)

    def members(self, command: Command, _: Connection) -> Command:
        """Answer GET_CONSUMER_LIST_BY_GROUP."""
        group = read(ConsumerGroup, command.fields).consumer_group
        ids = self._members.client_ids(group)
        if not ids:
            return reply(Reply.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return reply(Reply.SUCCESS, body=dumps({"consumerIdList": ids}))

    def lock(self, command: Command, _: Connection) -> Command:
        """Answer LOCK_BATCH_MQ."""
        group, client_id, queues = self._queues(command)
        now_ns = self._clock.steady_ns()
        wanted = [(queue.topic, queue.queue_id) for queue in queues]
        held = set(self._locks.lock(group, client_id, wanted, now_ns))
        locked = [queue.document() for queue in queues if (queue.topic, queue.queue_id) in held]
        return reply(Reply.SUCCESS, body=dumps({"lockOKMQSet": locked}))

    def unlock(self, command: Command, _: Connection) -> Command:
        """Answer UNLOCK_BATCH_MQ."""
        group, client_id, queues = self._queues(command)
        self._locks.unlock(group, client_id, [(each.topic, each.queue_id) for each in queues])
        return reply(Reply.SUCCESS)

    def check(self, command: Command, _: Connection) -> Command:
        """Answer CHECK_CLIENT_CONFIG, sent at the start for SQL subscriptions. Raises WireError."""
        found = json_object(command.body).get("subscriptionData")
        subscription = _subscription(found)
        filter_of(subscription.expression, subscription.kind)
        return reply(Reply.SUCCESS)

    def _queues(self, command: Command) -> tuple[str, str, list[QueueKey]]:
        """Return group, client id and those of the queues that exist. Raises RemotingError."""
        found = json_object(command.body)
        group = name_of(found, "consumerGroup")
        queues = []
        for item in items_of(found, "mqSet"):
            try:
                queue = queue_key(item)
            except BareJsonError as error:
                raise malformed(str(error)) from None
            topic = self._metadata.topic(queue.topic)
            if topic is not None and 0 <= queue.queue_id < topic.read_queues:
                queues.append(queue)
        if self._metadata.group(group) is None:
            queues = []
        return group, name_of(found, "clientId"), queues

    def _left(self, peer: Connection) -> None:
        self._known.discard(peer)
        self._producers.drop(peer)
        for group in self._members.drop(peer):
            self._tell(group)

    def _expire(self) -> None:
        self._expiry = self._loop.call_later(_EXPIRY_CHECK_S, self._expire)
        now_ns = self._clock.steady_ns()
        self._producers.expire(now_ns)
        for group in self._members.expire(now_ns):
            self._tell(group)

    def _tell(self, group: str) -> None:
        """Tell the members of a group soon that they have changed."""
        known = self._metadata.group(group)
        if known is not None and known.extra.get("notifyConsumerIdsChangedEnable") is False:
            return
        self._changed[group] = None
        if self._notice is None:
            self._notice = self._loop.call_later(_NOTICE_S, self._send_notices)

    def _send_notices(self) -> None:
        self._notice = None
        changed, self._changed = self._changed, {}
        for group in changed:
            for peer in self._members.channels(group):
                fields = {"consumerGroup": group}
                peer.notify(Command(Request.NOTIFY_CONSUMER_IDS_CHANGED, fields))


def _groups_of(found: Any) -> tuple[list[Any], list[Any], RemotingError | None]:
    """Return the producer groups and the consumer groups of a heartbeat, up to the limit, and the
    error for the rest. Raises RemotingError."""
    kept, left_out = [], None
    for name in ("producerDataSet", "consumerDataSet"):
        items = items_of(found, name, sys.maxsize)
        if len(items) > _GROUPS_MAX:
            left_out = RemotingError(
                Reply.SYSTEM_BUSY,
                f"{name} has {len(items)} groups: a client has at most {_GROUPS_MAX}, and the "
                "others are ignored; use several client instances",
            )
        kept.append(items[:_GROUPS_MAX])
    return kept[0], kept[1], left_out


def _about(command: Command, group: Any) -> About:
    """Return what a heartbeat tells of a consumer."""
    labels = (
        as_enum(group.get(name), names)[:_LABEL_MAX]
        for name, names in (
            ("consumeType", _CONSUME_TYPES),
            ("messageModel", _MODELS),
            ("consumeFromWhere", _FROM_WHERE),
        )
    )
    return About(command.language[:_LABEL_MAX], command.version, *labels)


def heard(body: bytes) -> tuple[set[str], set[str]]:
    """Return the consumer groups and topics that a heartbeat, a check of a subscription or a list
    of queues names. Raises RemotingError."""
    found = json_object(body)
    groups = {as_text(found.get(name)) or "" for name in ("consumerGroup", "group")}
    items = [*items_of(found, "mqSet"), found.get("subscriptionData")]
    for group in _groups_of(found)[1]:
        groups.add(name_of(group, "groupName"))
        items += items_of(group, "subscriptionDataSet")
    topics = {as_text(item.get("topic")) or "" for item in items if isinstance(item, dict)}
    topics.add(as_text(found.get("topic")) or "")
    return groups - {""}, topics - {""}


def _subscriptions(group: Any) -> list[Subscription]:
    """Return the subscriptions of a group. Raises RemotingError.

    Expressions are not parsed here, which takes 20 ms for a long one: the pulls of a topic are
    refused with the reason, the heartbeat is not.
    """
    return [_subscription(item) for item in items_of(group, "subscriptionDataSet")]


def _subscription(item: Any) -> Subscription:
    """Return the subscription that a JSON object holds. Raises RemotingError."""
    if not isinstance(item, dict):
        raise malformed("a subscription is not an object")
    expression = value_of(item, "subString", str, "*")
    version = value_of(item, "subVersion", int, 0)
    kind = value_of(item, "expressionType", str, "") or "TAG"
    if max(len(expression), len(kind)) > _EXPRESSION_MAX:
        raise malformed(f"an expression is longer than {_EXPRESSION_MAX} characters")
    return Subscription(name_of(item, "topic"), expression, kind, version)
