"""Owners of requests at a proxy: the leader of the group that a request names or that has its
topic.

The rules are those of `broker/routing/request_router.py`, for a node that owns nothing; sends to a
topic of several groups, and receives that name no broker, are spread over the groups. While a group
has no reachable leader, writes wait for one, and reads go to another live replica of the group
(docs/formats/ha.md, rule R10). A request without an owner waits until shortly before its deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ....front.access_point import UNKNOWN
from ....proto import paths
from ....proto.errors import absent_group
from ...routing.request_router import GROUP_OF, HELD, TOPIC_OF, chosen_by

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....front.context import RequestContext
    from ....proto import v2
    from ...base.cluster_view import ClusterView, GroupView
    from .watch import ClusterWatch

#: Methods that the proxy answers itself with the help of brokers.
LOCAL = frozenset(
    (
        paths.QUERY_ROUTE,
        paths.QUERY_ASSIGNMENT,
        paths.TELEMETRY,
        paths.HEARTBEAT,
        paths.NOTIFY_CLIENT_TERMINATION,
    )
)

_LEARNED_MAX = 10_000
_PERM_WRITE = 2


class Owners:
    """The owner look-ups of the access point."""

    def __init__(
        self, view: ClusterView, watch: ClusterWatch, failing: Callable[[str], bool]
    ) -> None:
        """`failing` returns whether connecting to an address has just failed."""
        self._view = view
        self._watch = watch
        self._failing = failing
        self._learned: dict[str, str] = {}
        #: The groups among which the sends of a topic are spread.
        self._writable: dict[str, Sequence[str]] = {}
        self._turn = 0

    def learn(self, topic: str, group: str) -> None:
        """A route contained the group: the nameservers may get a new topic a moment later."""
        if len(self._learned) >= _LEARNED_MAX:
            self._learned.clear()
        self._learned[topic] = group

    def groups(self) -> list[GroupView]:
        """Return every group that has a replica, by name."""
        return [group for _, group in sorted(self._view.groups.items()) if group.members]

    @property
    def awaiting(self) -> bool:
        """Whether requests wait for groups that are not up."""
        return self._view.awaiting

    @property
    def absent(self) -> tuple[str, ...]:
        """The groups, by name, that the cluster had and that are not up."""
        return self._view.absent

    def locate(self, path: str, request: Any, ctx: RequestContext) -> str | None:
        """Return HOST:PORT of the owner; None: the proxy itself answers. Raises WireError for a
        group that is not up."""
        if path in LOCAL:
            return None
        if path == paths.DESCRIBE_STORE and request is not None and request.HasField("broker_id"):
            member = self._view.replica(request.broker, request.broker_id)
            if member is not None and member.client:
                return member.client  # any other node refuses an unknown replica
        group = self._group(path, request)
        address = self.address_in(group, path in HELD) if group is not None else None
        return address or UNKNOWN

    def unreachable(self, path: str, request: Any, ctx: RequestContext) -> Literal["serve", "hold"]:
        """Return whether an owner may appear: always true for a proxy."""
        self._watch.poll_soon()
        return "hold"

    def address_in(self, group: GroupView, leader_only: bool) -> str | None:
        """Return the replica of a group to call."""
        leader = group.leader()
        if leader is not None and (
            leader_only or (leader.alive and not self._failing(leader.client))
        ):
            return leader.client
        others = [m.client for m in group.members if m.alive and m is not leader]
        usable = next((address for address in others if not self._failing(address)), None)
        if usable is not None and not leader_only:
            return usable
        return leader.client if leader is not None else None

    def of_topic(self, topic: str) -> GroupView | None:
        """Return a group that has the topic, or any group, whose leader then returns the error."""
        groups = self.groups()
        holding = [group for group in groups if topic in group.topics]
        if not holding and topic in self._learned:
            holding = [group for group in groups if group.name == self._learned[topic]]
        if holding:
            return holding[0]
        if topic and self._view.awaiting:
            return None  # the request waits for the group that has it
        # Not the group whose leader has just gone: any other one answers as well.
        led = [group for group in groups if self._has_leader(group)]
        return next(iter(led or groups), None)

    def _has_leader(self, group: GroupView) -> bool:
        leader = group.leader()
        return leader is not None and leader.alive and not self._failing(leader.client)

    def _group(self, path: str, request: Any) -> GroupView | None:
        name = GROUP_OF[path](request) if path in GROUP_OF and request is not None else ""
        if name:
            group = self._view.group(name)
            if group is not None and group.members:
                return group
            if name in self._view.absent:
                if self._view.awaiting:
                    return None
                raise absent_group(name)
        topic = TOPIC_OF[path](request) if path in TOPIC_OF and request is not None else ""
        if path == paths.SEND_MESSAGE and topic:
            return self._of_send(topic, request.messages[0].system_properties)
        if path == paths.RECEIVE_MESSAGE and topic:
            return self._of_receive(topic)
        return self.of_topic(topic)

    def _of_receive(self, topic: str) -> GroupView | None:
        """Return the next group in rotation for a receive that names no broker.

        Messages of every group must be received. Official clients name a broker of the route;
        Apache's proxy rotates as well.
        """
        readable = [group for group in self.groups() if topic in group.topics]
        if len(readable) < 2:
            return self.of_topic(topic)
        led = [group for group in readable if self._has_leader(group)] or readable
        self._turn += 1
        return led[self._turn % len(led)]

    def _of_send(self, topic: str, properties: v2.SystemProperties) -> GroupView | None:
        """Return the group for a send by its message group, lite topic, or message id.

        So an ordered sequence stays in one group, and a repeated send meets the first one there; a
        message without an order goes to another group while its own has no leader.
        """
        before = self._writable.get(topic, ())
        writable = [group for group in self.groups() if _takes(group, topic, before)]
        if len(writable) < 2:
            return self.of_topic(topic)
        if len(self._writable) >= _LEARNED_MAX:
            self._writable.clear()
        self._writable[topic] = [group.name for group in writable]
        sequence = properties.message_group or properties.lite_topic
        if sequence:
            return chosen_by(sequence, writable)
        led = [group for group in writable if self._has_leader(group)] or writable
        return chosen_by(properties.message_id, led)


def _takes(group: GroupView, topic: str, before: Sequence[str]) -> bool:
    """Return whether producers send messages of the topic to a group.

    `before` are the groups that did. One without any topic has not registered with the nameservers
    again: it counts, because otherwise ordered sequences would move.
    """
    route = group.topics.get(topic)
    if route is None:
        return not group.topics and group.name in before
    return bool(route.perm & _PERM_WRITE)
