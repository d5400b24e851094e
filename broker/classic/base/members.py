"""Members of groups: client ids, connections, and subscriptions of consumers. Pure; in memory.

One table holds the consumer groups, another one the producer groups. Classic consumers divide the
queues of a topic among themselves: each asks for the ids of its group, and gets a notice when they
change. A member is known by heartbeats; it goes with its connection, or when it is silent for the
expiry time (docs/formats/remoting.md, section 10). A loss costs one heartbeat interval. The time is
passed in, in steady nanoseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from msgspec import Struct, field

Channel = TypeVar("Channel", bound=Hashable)

#: Characters of the subscriptions of all groups; a heartbeat alone may have 512 Ki.
SUBSCRIPTION_CHARS_MAX = 64 << 20
#: What a subscription costs beside its texts.
_ENTRY_CHARS = 200


#: Every client process is in this producer group, whatever its user is.
SHARED_PRODUCERS = "CLIENT_INNER_PRODUCER"


class TooManyMembersError(ValueError):
    """The limit of members, or of their subscriptions, is reached."""


class Subscription(Struct, frozen=True):
    """What a group reads of a topic."""

    topic: str
    #: Tags with `||` between them, `*`, or an SQL expression.
    expression: str
    #: `TAG` or `SQL92`.
    kind: str
    #: Milliseconds at which the client changed it.
    version_ms: int

    @property
    def chars(self) -> int:
        """Size in memory, in characters."""
        return _ENTRY_CHARS + len(self.topic) + len(self.expression)


class About(Struct, frozen=True):
    """What a client tells of itself, for tools."""

    language: str = ""
    #: RocketMQ's number of its version.
    version: int = 0
    #: Of a consumer: `CONSUME_PASSIVELY`, `CLUSTERING`, `CONSUME_FROM_LAST_OFFSET` and others.
    consume_type: str = ""
    message_model: str = ""
    from_where: str = ""


class MemberRow(Struct, Generic[Channel], frozen=True):
    """One member, for tools."""

    client_id: str
    channel: Channel
    about: About
    heard_ns: int
    #: Whose client it is; empty without authentication.
    user: str


class _Member(Struct, Generic[Channel]):
    channel: Channel
    heard_ns: int
    about: About
    user: str


class _Group(Struct, Generic[Channel]):
    members: dict[str, _Member[Channel]] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    chars: int = 0


class Members(Generic[Channel]):
    """All groups of one kind with members on this broker; a channel is a connection."""

    def __init__(self, expiry_ns: int, limit: int) -> None:
        self._expiry_ns = expiry_ns
        self._limit = limit
        self._groups: dict[str, _Group[Channel]] = {}
        self._of_channel: dict[Channel, set[tuple[str, str]]] = {}
        #: Groups of each client id.
        self._of_client: dict[str, dict[str, None]] = {}
        self._turns: Counter[str] = Counter()
        self._count = 0
        self._chars = 0

    def __len__(self) -> int:
        return self._count

    def heartbeat(
        self,
        group: str,
        client_id: str,
        channel: Channel,
        subscriptions: Iterable[Subscription] | None,
        now_ns: int,
        *,
        about: About | None = None,
        user: str = "",
    ) -> bool:
        """Enter a heartbeat; return whether the group must get a notice.

        None for `subscriptions` keeps those of the group. Raises TooManyMembersError.
        """
        entry = self._groups.get(group)
        member = entry.members.get(client_id) if entry is not None else None
        if member is None and self._count >= self._limit:
            raise TooManyMembersError(f"{self._limit} members of groups (maxClients)")
        if subscriptions is not None:
            subscriptions = list(subscriptions)
            self._reserve(entry, sum(each.chars for each in subscriptions))
        if entry is None:
            entry = self._groups[group] = _Group()
        changed = member is None or member.channel != channel
        if member is None:
            self._count += 1
        elif changed:
            self._unlink(member.channel, group, client_id)
        if about is None:
            about = member.about if member is not None else About()
        entry.members[client_id] = _Member(channel, now_ns, about, user)
        self._of_channel.setdefault(channel, set()).add((group, client_id))
        self._of_client.setdefault(client_id, {})[group] = None
        if subscriptions is not None:
            changed |= _subscribe(entry, subscriptions)
            self._chars -= entry.chars
            entry.chars = sum(each.chars for each in entry.subscriptions.values())
            self._chars += entry.chars
        return changed

    def _reserve(self, entry: _Group[Channel] | None, chars: int) -> None:
        """Raise TooManyMembersError if a group must not have subscriptions of this size."""
        others = self._chars - (entry.chars if entry is not None else 0)
        if chars and others + chars > SUBSCRIPTION_CHARS_MAX:
            raise TooManyMembersError("the subscriptions of all groups are too large")

    def leave(self, group: str, client_id: str) -> bool:
        """Remove a member; return whether it was one."""
        entry = self._groups.get(group)
        member = entry.members.pop(client_id, None) if entry is not None else None
        if entry is None or member is None:
            return False
        self._count -= 1
        self._unlink(member.channel, group, client_id)
        own = self._of_client[client_id]
        del own[group]
        if not own:
            del self._of_client[client_id]
        if not entry.members:
            del self._groups[group]
            self._chars -= entry.chars
            self._turns.pop(group, None)
        return True

    def drop(self, channel: Channel) -> set[str]:
        """Remove the members of a connection that has ended; return their groups."""
        gone = list(self._of_channel.get(channel, ()))
        return {group for group, client_id in gone if self.leave(group, client_id)}

    def expire(self, now_ns: int) -> set[str]:
        """Remove silent members; return their groups."""
        gone = [
            (name, client_id)
            for name, group in self._groups.items()
            for client_id, member in group.members.items()
            if now_ns - member.heard_ns > self._expiry_ns
        ]
        return {group for group, client_id in gone if self.leave(group, client_id)}

    def has(self, group: str, client_id: str) -> bool:
        """Return whether the client is a member of the group."""
        entry = self._groups.get(group)
        return entry is not None and client_id in entry.members

    def client_ids(self, group: str) -> list[str]:
        """Return the ids of the members."""
        entry = self._groups.get(group)
        return list(entry.members) if entry is not None else []

    def channels(self, group: str) -> list[Channel]:
        """Return the connections of the members, each once."""
        entry = self._groups.get(group)
        if entry is None:
            return []
        return list({member.channel: None for member in entry.members.values()})

    def channel(self, group: str, client_id: str) -> Channel | None:
        """Return the connection of a member."""
        entry = self._groups.get(group)
        member = entry.members.get(client_id) if entry is not None else None
        return member.channel if member is not None else None

    def row_of(self, client_id: str) -> MemberRow[Channel] | None:
        """Return a client as a member of any of its groups."""
        for group in self._of_client.get(client_id, ()):
            return self.row(group, client_id)
        return None

    def owner(self, group: str) -> str | None:
        """Return the user of a group's members; None without members."""
        entry = self._groups.get(group)
        return next((member.user for member in entry.members.values()), None) if entry else None

    def next_row(
        self, group: str, may: Callable[[MemberRow[Channel]], bool]
    ) -> MemberRow[Channel] | None:
        """Return one of the members that `may` allows, on another connection at each call."""
        rows = list({row.channel: row for row in self.rows(group) if may(row)}.values())
        if not rows:
            return None
        self._turns[group] += 1
        return rows[self._turns[group] % len(rows)]

    def rows(self, group: str) -> list[MemberRow[Channel]]:
        """Return the members of a group."""
        entry = self._groups.get(group)
        members = entry.members.items() if entry is not None else ()
        return [
            MemberRow(client_id, member.channel, member.about, member.heard_ns, member.user)
            for client_id, member in members
        ]

    def row(self, group: str, client_id: str) -> MemberRow[Channel] | None:
        """Return a member of a group, for tools."""
        entry = self._groups.get(group)
        member = entry.members.get(client_id) if entry is not None else None
        if member is None:
            return None
        return MemberRow(client_id, member.channel, member.about, member.heard_ns, member.user)

    def all_ids(self) -> list[str]:
        """Return the ids of the members of all groups."""
        return list(self._of_client)

    def groups_of(self, client_id: str) -> list[str]:
        """Return the groups of a client."""
        return list(self._of_client.get(client_id, ()))

    def groups(self) -> list[str]:
        """Return the names of the groups that have members."""
        return list(self._groups)

    def subscriptions(self, group: str) -> list[Subscription]:
        """Return everything that the group reads."""
        entry = self._groups.get(group)
        return list(entry.subscriptions.values()) if entry is not None else []

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return what the group reads of a topic; None if it has not subscribed."""
        entry = self._groups.get(group)
        return entry.subscriptions.get(topic) if entry is not None else None

    def _unlink(self, channel: Channel, group: str, client_id: str) -> None:
        own = self._of_channel.get(channel, set())
        own.discard((group, client_id))
        if not own:
            self._of_channel.pop(channel, None)


def _subscribe(group: _Group[Channel], wanted: Iterable[Subscription]) -> bool:
    """Take the subscriptions of the last heartbeat; return whether the topics changed."""
    before = group.subscriptions
    after = {}
    for each in wanted:
        known = before.get(each.topic)
        newer = known is None or each.version_ms >= known.version_ms
        after[each.topic] = each if newer or known is None else known
    group.subscriptions = after
    return after.keys() != before.keys()
