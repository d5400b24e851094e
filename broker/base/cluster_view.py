"""Cluster view: members, leaders and topics of every group as this node sees them. Pure, derived.

The response of each nameserver is stored; the view is their union, because a nameserver that
restarted has only the members that registered since. A member that all nameservers dropped is kept
for a while, so that the alternatives of clients do not change with a nameserver's restart; if no
nameserver answers, the last view stays (docs/formats/ha.md, rule R12). A lost view is complete
again after one heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from ...proto import v1

# Longer than a restarted nameserver needs to get all registrations (heartbeats of 1 s, expiry 10
# s).
_MISSING_KEPT_NS = 30_000_000_000


class MemberView(Struct, frozen=True):
    """One replica, with the fields that routes and forwarding need."""

    group: str
    broker_id: int
    client: str
    ha: str
    metrics: str
    is_leader: bool
    alive: bool
    epoch: int
    incarnation: int
    #: Of classic clients; empty: off.
    remoting: str = ""


class GroupView(Struct):
    """One broker group: members by broker id, topics by name."""

    name: str
    members: tuple[MemberView, ...] = ()
    topics: dict[str, v1.TopicRoute] = field(default_factory=dict)

    def leader(self) -> MemberView | None:
        """The current leader, or the last one."""
        leaders = [member for member in self.members if member.is_leader]
        return max(leaders, key=lambda m: (m.alive, m.epoch), default=None)


class ClusterView:
    """The union of the nameservers' responses and this node's own state."""

    def __init__(self, own_group: str, steady_ns: Callable[[], int]) -> None:
        self.own_group = own_group
        self.groups: dict[str, GroupView] = {own_group: GroupView(own_group)}
        self.on_change: Callable[[], None] | None = None
        #: Called after `on_change`.
        self.watchers: list[Callable[[], None]] = []
        #: This node's client address while it reaches neither leader nor controller.
        self.avoided = ""
        #: Whether a topic that is nowhere does not exist: False while a group is absent.
        self.complete = True
        #: Whether requests wait for absent groups: all nameservers that answer have just restarted.
        self.awaiting = False
        #: The groups, by name, that a nameserver expects and whose topics none knows.
        self.absent: tuple[str, ...] = ()
        self._steady_ns = steady_ns
        self._own: MemberView | None = None
        self._own_leader: MemberView | None = None
        self._answers: dict[str, list[GroupView]] = {}
        self._silent: set[str] = set()
        self._incomplete: set[str] = set()
        self._expected: dict[str, frozenset[str]] = {}
        self._last_seen_ns: dict[tuple[str, int], int] = {}
        self._members: dict[tuple[str, int], MemberView] = {}

    def set_own(self, member: MemberView, leader: MemberView | None = None) -> None:
        """Set this node's own member, and its leader if it has one."""
        self._own = member
        self._own_leader = leader
        self._rebuild()

    def update(
        self,
        nameserver: str,
        groups: Iterable[v1.GroupRoute],
        *,
        incomplete: bool = False,
        absent: Iterable[str] = (),
    ) -> None:
        """Store a nameserver's newest response; with `incomplete` it awaits further groups."""
        self._answers[nameserver] = [_group_view(group) for group in groups]
        self._expected[nameserver] = frozenset(absent)
        if incomplete:
            self._incomplete.add(nameserver)
        else:
            self._incomplete.discard(nameserver)
        self._silent.discard(nameserver)
        self._rebuild()

    def lost(self, nameserver: str) -> None:
        """Mark a nameserver as silent: its last response counts only while all nameservers are
        silent.
        """
        if nameserver in self._answers and nameserver not in self._silent:
            self._silent.add(nameserver)
            self._rebuild()

    def found(self, nameserver: str) -> None:
        """Mark a nameserver as answering; its stored response is current."""
        if nameserver in self._silent:
            self._silent.discard(nameserver)
            self._rebuild()

    def own(self) -> GroupView:
        """Return the group of this node."""
        return self.groups[self.own_group]

    def group(self, name: str) -> GroupView | None:
        """Return a group of the cluster, or None."""
        return self.groups.get(name)

    def replica(self, name: str, broker_id: int) -> MemberView | None:
        """Return a replica of a group (the name "": of this node's), or None."""
        group = self.groups.get(name or self.own_group)
        members = group.members if group is not None else ()
        return next((member for member in members if member.broker_id == broker_id), None)

    def others_with(self, topic: str) -> list[GroupView]:
        """Return the other groups that have a topic, by name."""
        if len(self.groups) == 1:
            return []
        return [
            group
            for name, group in sorted(self.groups.items())
            if name != self.own_group and topic in group.topics
        ]

    def addresses(self) -> frozenset[str]:
        """Return the client addresses of every replica of every group."""
        return frozenset(
            member.client for group in self.groups.values() for member in group.members
        )

    def _rebuild(self) -> None:
        answering = self._answers.keys() - self._silent or self._answers.keys()
        self.awaiting = bool(answering) and not answering - self._incomplete
        now_ns = self._steady_ns()
        members: dict[tuple[str, int], MemberView] = {}
        topics: dict[str, dict[str, v1.TopicRoute]] = {self.own_group: {}}
        for answer in self._current_responses():
            for group in answer:
                topics.setdefault(group.name, {}).update(group.topics)
                for member in group.members:
                    key = (member.group, member.broker_id)
                    known = members.get(key)
                    if known is None or _newness(member) > _newness(known):
                        members[key] = member
        expected = frozenset[str]().union(*(self._expected[name] for name in answering))
        with_topics = {self.own_group, *(name for name, found in topics.items() if found)}
        self.absent = tuple(sorted(expected - with_topics))
        self.complete = not self.absent and not self.awaiting
        self._last_seen_ns.update(dict.fromkeys(members, now_ns))
        for key, member in self._members.items():
            if key not in members and now_ns - self._last_seen_ns.get(key, 0) < _MISSING_KEPT_NS:
                members[key] = member
        if self._own is not None:
            members[self._own.group, self._own.broker_id] = self._own
        if self._own_leader is not None:
            self._set_leader(members, self._own_leader)
        self._members = members
        self._publish(topics)

    @staticmethod
    def _set_leader(members: dict[tuple[str, int], MemberView], leader: MemberView) -> None:
        """Mark the new leader in routes at once; nameservers get it a moment later."""
        key = leader.group, leader.broker_id
        known = members.get(key)
        if known is None:
            members[key] = leader
        elif leader.epoch >= known.epoch:
            members[key] = replace(known, is_leader=True, epoch=leader.epoch, alive=True)

    def _current_responses(self) -> list[list[GroupView]]:
        fresh = [a for name, a in self._answers.items() if name not in self._silent]
        return fresh or list(self._answers.values())

    def _publish(self, topics: dict[str, dict[str, v1.TopicRoute]]) -> None:
        names = sorted(topics.keys() | {group for group, _ in self._members})
        self.groups = {
            name: GroupView(
                name,
                tuple(self._members[key] for key in sorted(self._members) if key[0] == name),
                topics.get(name, {}),
            )
            for name in names
        }
        if self.on_change is not None:
            self.on_change()
        for watcher in self.watchers:
            watcher()


def _newness(member: MemberView) -> tuple[int, int, bool]:
    return (member.incarnation, member.epoch, member.alive)


def _group_view(group: v1.GroupRoute) -> GroupView:
    return GroupView(
        group.group,
        tuple(_member_view(group.group, member) for member in group.members),
        {topic.name: topic for topic in group.topics},
    )


def _member_view(group: str, member: v1.Member) -> MemberView:
    return MemberView(
        group,
        member.replica.broker_id,
        member.addresses.client,
        member.addresses.ha,
        member.addresses.metrics,
        member.role == v1.LEADER,
        member.alive,
        member.epoch,
        member.replica.incarnation,
        member.addresses.remoting,
    )
