"""Rows of the route tables: replicas, groups, topics, and controllers' decisions."""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field


class Role(Enum):
    """Role of a replica in its group."""

    LEADER = "leader"
    FOLLOWER = "follower"


class Replica(Struct, frozen=True):
    """Identity of a replica. `uuid` belongs to the data directory, `incarnation` to the process."""

    cluster: str
    group: str
    broker_id: int
    uuid: str
    incarnation: int


class Addresses(Struct, frozen=True):
    """Addresses of a replica, each HOST:PORT."""

    client: str
    ha: str = ""
    metrics: str = ""
    #: For classic clients (4.x); empty: the replica does not serve them.
    remoting: str = ""
    #: What the routes of classic clients name instead of it; empty: the same.
    remoting_advertised: str = ""


class Topic(Struct, frozen=True):
    """A topic in the routes; `perm` has RocketMQ's bits (4 read, 2 write)."""

    name: str
    read_queues: int
    write_queues: int
    perm: int
    message_type: int


class InSyncSet(Struct, frozen=True, order=True):
    """The in-sync set of a static group that its leader registered; newer ones are greater."""

    epoch: int
    incarnation: int
    revision: int
    leader_uuid: str
    replica_uuids: tuple[str, ...]
    nameservers: int  #: at which the leader registers


class Registration(Struct, frozen=True):
    """A registration or heartbeat: `full` ones carry the topic table, others only its version."""

    replica: Replica
    addresses: Addresses
    role: Role
    epoch: int
    sequence: int
    table_version: int
    full: bool = False
    topics: tuple[Topic, ...] = ()
    log_end: int = 0
    confirm: int = 0
    in_sync: InSyncSet | None = None


class Answer(Struct, frozen=True):
    """Answer to a registration; `changed` tells whether the visible tables changed."""

    need_full: bool
    version: int
    changed: bool


class RegistrationRefused(Exception):
    """The registration contradicts the tables; the text is a sentence for the broker's operator."""


class DuplicateReplica(RegistrationRefused):
    """Another live replica holds this position."""


class StaleReplica(RegistrationRefused):
    """The registration comes from an older process or an older epoch."""


class GroupAliveError(Exception):
    """A group to be removed has a live replica; the text tells what to do."""


class Member(Struct):
    """One replica's row."""

    replica: Replica
    addresses: Addresses
    role: Role
    epoch: int
    sequence: int
    heard_ns: int
    alive: bool = True
    #: Both None until a full registration. A new process restarts its versions: its table is
    #: requested (no version), and the former table serves until then.
    table_version: int | None = None
    topics: Mapping[str, Topic] | None = None
    log_end: int = 0
    confirm: int = 0

    def visible(self) -> tuple[object, ...]:
        """The fields of this row, except topics, whose change moves `version`."""
        return (self.replica, self.addresses, self.role, self.alive, self.epoch)


class Group(Struct):
    """The replicas of one log. `leader_epoch` never decreases while the group is listed."""

    cluster: str
    name: str
    members: dict[int, Member] = field(default_factory=dict)
    leader_epoch: int = 0
    decision: "Decision | None" = None  #: of this group's controller; None: its roles are fixed
    in_sync: InSyncSet | None = None  #: of a static group: the newest, also of a former leader
    #: False: an operator directs producers to other groups, by this nameserver only.
    writes_allowed: bool = True

    def leader(self) -> Member | None:
        """The leading member, dead or alive."""
        return next((m for m in self.members.values() if m.role is Role.LEADER), None)

    def in_order(self) -> list[Member]:
        """All members in the stable order for clients."""
        return [self.members[broker_id] for broker_id in sorted(self.members)]

    def is_alive(self) -> bool:
        """Whether any member is alive."""
        return any(member.alive for member in self.members.values())

    def why_read_only(self) -> str:
        """The reason to direct producers to other groups; empty: none."""
        decision = self.decision
        if decision is not None and decision.drain:
            return "an operator drains the group"
        if decision is not None and decision.hold:
            return decision.hold
        if not self.writes_allowed:
            return "an operator removed the write permission at this nameserver"
        leader = self.leader()
        if leader is None or not leader.alive:
            return "the group has no live leader"
        return ""

    def topics(self) -> Mapping[str, Topic]:
        """The leader's topic table, or else the newest one of a member."""
        tables = [m for m in self.members.values() if m.topics is not None]
        if not tables:
            return {}
        best = max(tables, key=lambda m: (m.role is Role.LEADER, m.alive, m.epoch, m.log_end))
        return best.topics or {}


class Decision(Struct, frozen=True):
    """A controller's decision about a group; `leader` is a broker id and an incarnation."""

    cluster: str
    group: str
    epoch: int
    leader: tuple[int, int] | None = None
    hold: str = ""
    drain: bool = False

    def names_another(self, epoch: int, replica: Replica) -> bool:
        """Return whether this incarnation was not elected for the epoch."""
        if self.leader is None or self.epoch != epoch:
            return False
        return self.leader != (replica.broker_id, replica.incarnation)
