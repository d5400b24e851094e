"""Heartbeats of classic clients, the members of their groups, and locks of queues.

Source: docs/formats/remoting.md, sections 10 and 14. A heartbeat creates the retry topic of each
consumer group; a change of its members is sent to all of them (code 40). A follower enters members,
and creates nothing. A group whose members use the gRPC protocol is refused: both protocols together
would deliver messages twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

from ...auth.model import GROUP, Action
from ...proto.errors import WireError
from ...remoting.bare_json import QueueKey, dumps
from ...remoting.codes import Reply, Request
from ...remoting.command import Command, reply
from ...remoting.connection import Connection, Handler, RemotingError
from ...remoting.headers import ConsumerGroup, UnregisterClient
from ..messages.validation import check_group
from ..metadata.tables import is_system_group
from .base.bodies import (
    NAME_CHARS_MAX,
    ConsumerData,
    Heartbeat,
    QueueList,
    checked_subscription,
    heartbeat,
    queue_list,
)
from .base.errors import user_of
from .base.members import SHARED_PRODUCERS, About, Members, Subscription, TooManyMembersError
from .pull import filter_of

if TYPE_CHECKING:
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime
    from ..clients.registry import ClientRegistry, May
    from ..metadata.tables import Metadata
    from ..pop.dead_letter import GroupTopics
    from .locks import QueueLocks

#: Groups that one heartbeat creates, each with its retry topic: 30 ms of the event loop.
_NEW_GROUPS_MAX = 120
_TOO_MANY_NEW = (
    f"a heartbeat creates at most {_NEW_GROUPS_MAX} consumer groups: the next ones create the rest"
)
#: Changes of a group within this time are one notice to each member.
_NOTICE_S = 0.005
_EXPIRY_CHECK_S = 10.0


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
        may: May,
    ) -> None:
        self._may = may
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
        beat = command.document(heartbeat)
        self._check_owner(beat.client_id, user_of(peer))
        problems: list[RemotingError | WireError] = [*beat.problems]
        for group in beat.producer_groups:
            try:
                self._enter(self._producers, group, beat.client_id, peer, (), about=beat.about)
            except RemotingError as error:
                problems.append(error)  # the other groups of the client do not depend on it
        new = 0
        taken = self._taken(beat)
        for data in beat.consumers:
            try:
                if self._metadata.topic(f"%RETRY%{data.group}") is None:
                    new += self._leadership.is_leader  # a follower creates nothing
                    if new > _NEW_GROUPS_MAX:
                        raise RemotingError(Reply.SYSTEM_BUSY, _TOO_MANY_NEW)
                self._heard(data, beat.client_id, peer, taken)
            except (RemotingError, WireError) as error:
                problems.append(error)
        if problems:
            raise problems[0]
        # Clients send their whole subscription every time: this server asks for it.
        fields = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
        return reply(Reply.SUCCESS, fields=fields)

    def _taken(self, beat: Heartbeat) -> set[str]:
        """Return the groups that clients of the gRPC protocol keep the client out of."""
        if self._mixed or all(
            self._members.has(data.group, beat.client_id) for data in beat.consumers
        ):
            return set()
        return {client.group for client in self._registry if client.streams}

    def _heard(
        self, data: ConsumerData, client_id: str, peer: Connection, taken: Container[str]
    ) -> None:
        name = data.group
        if is_system_group(name):
            return
        check_group(name)
        if name in taken and not self._members.has(name, client_id):
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
        entered = self._enter(
            self._members, name, client_id, peer, data.subscriptions, about=data.about
        )
        if entered:
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
        user = user_of(peer)
        is_producer = members is self._producers and group != SHARED_PRODUCERS
        if is_producer and members.owner(group) not in (None, user):
            raise _foreign(f"producer group {group[:NAME_CHARS_MAX]}")
        if peer not in self._known:
            self._known.add(peer)
            peer.on_close(self._left)
        now_ns = self._clock.steady_ns()
        try:
            return members.heartbeat(
                group, client_id, peer, subscriptions, now_ns, about=about, user=user
            )
        except TooManyMembersError as error:
            raise RemotingError(Reply.SYSTEM_BUSY, str(error)) from None

    def _check_owner(self, client_id: str, user: str) -> None:
        """Raise RemotingError if a client id belongs to another user, while it is connected."""
        for members in (self._members, self._producers):
            row = members.row_of(client_id)
            if row is not None and row.user != user:
                raise _foreign(f"client id {client_id[:NAME_CHARS_MAX]}")

    def unregister(self, command: Command, peer: Connection) -> Command:
        """Answer UNREGISTER_CLIENT. Raises RemotingError."""
        header = command.header(UnregisterClient)
        self._check_owner(header.client_id, user_of(peer))
        if header.producer_group is not None:
            self._producers.leave(header.producer_group, header.client_id)
        group = header.consumer_group
        if group is not None and self._members.leave(group, header.client_id):
            self._tell(group)
        return reply(Reply.SUCCESS)

    def members(self, command: Command, _: Connection) -> Command:
        """Answer GET_CONSUMER_LIST_BY_GROUP."""
        group = command.header(ConsumerGroup).consumer_group
        ids = self._members.client_ids(group)
        if not ids:
            return reply(Reply.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return reply(Reply.SUCCESS, body=dumps({"consumerIdList": ids}))

    def lock(self, command: Command, peer: Connection) -> Command:
        """Answer LOCK_BATCH_MQ. Raises RemotingError."""
        asked = command.document(queue_list)
        self._check_owner(asked.client_id, user_of(peer))
        queues = self._existing(asked)
        now_ns = self._clock.steady_ns()
        wanted = [(queue.topic, queue.queue_id) for queue in queues]
        held = set(self._locks.lock(asked.group, asked.client_id, wanted, now_ns))
        locked = [queue.document() for queue in queues if (queue.topic, queue.queue_id) in held]
        return reply(Reply.SUCCESS, asked.remark, body=dumps({"lockOKMQSet": locked}))

    def unlock(self, command: Command, peer: Connection) -> Command:
        """Answer UNLOCK_BATCH_MQ. Raises RemotingError."""
        asked = command.document(queue_list)
        self._check_owner(asked.client_id, user_of(peer))
        queues = [(each.topic, each.queue_id) for each in self._existing(asked)]
        self._locks.unlock(asked.group, asked.client_id, queues)
        return reply(Reply.SUCCESS, asked.remark)

    def check(self, command: Command, _: Connection) -> Command:
        """Answer CHECK_CLIENT_CONFIG, sent at the start for SQL subscriptions. Raises WireError."""
        subscription = command.document(checked_subscription).subscription
        filter_of(subscription.expression, subscription.kind)
        return reply(Reply.SUCCESS)

    def _existing(self, asked: QueueList) -> list[QueueKey]:
        """Return those of the queues that exist."""
        if self._metadata.group(asked.group) is None:
            return []
        return [queue for queue in asked.queues if self._exists(queue)]

    def _exists(self, queue: QueueKey) -> bool:
        topic = self._metadata.topic(queue.topic)
        return topic is not None and 0 <= queue.queue_id < topic.read_queues

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
            needs = ((GROUP, group, int(Action.SUB)),)
            rows = self._members.rows(group)
            allowed = (row.channel for row in rows if self._may(row.user, needs, row.channel.peer))
            for peer in dict.fromkeys(allowed):
                fields = {"consumerGroup": group}
                peer.notify(Command(Request.NOTIFY_CONSUMER_IDS_CHANGED, fields))


def _foreign(name: str) -> RemotingError:
    return RemotingError(Reply.NO_PERMISSION, f"the {name} belongs to clients of another user")
