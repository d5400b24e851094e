"""The route tables: replicas register and beat, fall silent, come back; topics map to groups.

Pure: no clock, no I/O; time is an argument (steady nanoseconds). Derived state: a lost table is
whole again after one beat of every broker. Rules (HA note, sections 1.5 and 6.8 R12):

    registration                                    outcome
    same replica, newer (incarnation, sequence)     taken
    same replica, same incarnation, old sequence    no effect: a late or repeated packet
    same replica, older incarnation                 refused: an older process of the replica
    same replica and incarnation, other address     refused while alive: a copied data directory
    other replica, same broker id                   refused while the holder is alive
    leader with an epoch below the group's          refused, also after the leader's death
    leader of the group's epoch, but another        refused: one leader an epoch
    leader with a higher epoch                      taken, the former leader is shown as a follower

An unregistration counts only for its own incarnation and only when it is not older than the last
registration, so that a late one cannot remove a replica that has come back. Dead replicas stay
listed (alive=False) for the retention time: clients' alternatives must not change with every death.

`version` moves when something visible changes (members, roles, liveness, epochs, topics), never
with log positions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

# A registration comes from a broker that knows the cluster token, so these only stop a broken one
# from filling the memory: far above any cluster one nameserver should carry.
GROUPS_MAX = 1_024
REPLICAS_PER_GROUP_MAX = 16
TOPICS_PER_GROUP_MAX = 200_000
_PORT_MAX = 65_535


class Role(Enum):
    """What a replica does in its group."""

    LEADER = "leader"
    FOLLOWER = "follower"


@dataclass(frozen=True, slots=True)
class Replica:
    """Who registers. `uuid` belongs to the data directory, `incarnation` to the process."""

    cluster: str
    group: str
    broker_id: int
    uuid: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a replica is reached, each as HOST:PORT."""

    client: str
    ha: str = ""
    metrics: str = ""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as routes need it; `perm` has RocketMQ's bits (4 read, 2 write)."""

    name: str
    read_queues: int
    write_queues: int
    perm: int
    message_type: int


@dataclass(frozen=True, slots=True)
class Registration:
    """One registration or beat: `full` ones carry the topic table, the others only its version."""

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


@dataclass(frozen=True, slots=True)
class Answer:
    """What a registered replica is told; `changed` says whether the visible tables changed."""

    need_full: bool
    version: int
    changed: bool


class RegistrationRefused(Exception):
    """The registration contradicts the tables; the text is a sentence for the broker's operator."""


class DuplicateReplica(RegistrationRefused):
    """Somebody else, and alive, holds this place."""


class StaleReplica(RegistrationRefused):
    """The registration comes from an older process or an older epoch."""


@dataclass(slots=True)
class Member:
    """One replica's row."""

    replica: Replica
    addresses: Addresses
    role: Role
    epoch: int
    sequence: int
    heard_ns: int
    alive: bool = True
    #: Both None until a full registration came in. A new process counts its versions anew: its table
    #: is asked for (no version), and the former one serves until then.
    table_version: int | None = None
    topics: Mapping[str, Topic] | None = None
    log_end: int = 0
    confirm: int = 0

    def visible(self) -> tuple[object, ...]:
        """What `version` watches of this row, topics aside."""
        return (self.replica, self.addresses, self.role, self.alive, self.epoch)


@dataclass(slots=True)
class Group:
    """The replicas that hold one log. `leader_epoch` never decreases while the group is listed."""

    cluster: str
    name: str
    members: dict[int, Member] = field(default_factory=dict)
    leader_epoch: int = 0

    def leader(self) -> Member | None:
        """The member that leads, dead or alive."""
        return next((m for m in self.members.values() if m.role is Role.LEADER), None)

    def in_order(self) -> list[Member]:
        """All members in the stable order that clients see."""
        return [self.members[broker_id] for broker_id in sorted(self.members)]

    def is_alive(self) -> bool:
        """Whether any member beats."""
        return any(member.alive for member in self.members.values())

    def topics(self) -> Mapping[str, Topic]:
        """The leader's table, or else that of the member that knows most."""
        tables = [m for m in self.members.values() if m.topics is not None]
        if not tables:
            return {}
        best = max(tables, key=lambda m: (m.role is Role.LEADER, m.alive, m.epoch, m.log_end))
        return best.topics or {}


class RouteTable:
    """All groups of the clusters that register here."""

    def __init__(
        self,
        *,
        expiry_ns: int,
        retention_ns: int,
        first_version: int = 1,
        known_groups: Iterable[str] = (),
        ready_at_ns: int = 0,
    ) -> None:
        """`first_version` should not repeat after a restart: brokers compare versions for equality."""
        self._expiry_ns = expiry_ns
        self._retention_ns = retention_ns
        self._missing = set(known_groups)
        self._ready_at_ns = ready_at_ns
        self._groups: dict[str, Group] = {}
        self.version = first_version

    def register(self, registration: Registration, now_ns: int) -> Answer:
        """Take a registration or beat. Raises RegistrationRefused, and then nothing has changed."""
        _check_shape(registration)
        group = self._group_for(registration)
        member = group.members.get(registration.replica.broker_id)
        if member is not None and _is_repeated(member, registration):
            return Answer(_needs_full(member, registration), self.version, changed=False)
        _check_place(group, member, registration)
        _check_leadership(group, registration)
        self._groups[group.name] = group
        changed = _take(group, member, registration, now_ns)
        if changed:
            self.version += 1
        member = group.members[registration.replica.broker_id]
        if member.topics is not None:
            self._missing.discard(group.name)
        return Answer(_needs_full(member, registration), self.version, changed)

    def unregister(self, replica: Replica, sequence: int) -> bool:
        """A replica says goodbye; it stays listed as dead. False when the word came too late."""
        group = self._groups.get(replica.group)
        member = group.members.get(replica.broker_id) if group is not None else None
        if member is None or member.replica != replica or sequence < member.sequence:
            return False
        member.sequence = sequence
        if member.alive:
            member.alive = False
            self.version += 1
        return True

    def expire(self, now_ns: int) -> list[Member]:
        """Mark who has fallen silent, forget who has been silent for long; returns the newly dead."""
        dead: list[Member] = []
        for group in list(self._groups.values()):
            for broker_id, member in list(group.members.items()):
                silent_ns = now_ns - member.heard_ns
                if member.alive and silent_ns >= self._expiry_ns:
                    member.alive = False
                    self.version += 1
                    dead.append(member)
                if not member.alive and silent_ns >= self._retention_ns:
                    del group.members[broker_id]
                    self.version += 1
            if not group.members:
                del self._groups[group.name]
        return dead

    def groups(self) -> list[Group]:
        """All groups by name."""
        return [self._groups[name] for name in sorted(self._groups)]

    def routes(self, topic: str) -> list[tuple[Group, Topic]]:
        """The groups that hold `topic`: those with a live member, or else those that had it."""
        found = [
            (group, table[topic]) for group in self.groups() if topic in (table := group.topics())
        ]
        return [route for route in found if route[0].is_alive()] or found

    def ready(self, now_ns: int) -> bool:
        """Whether 'no such topic' may be said: every group known from before is back, or time is up."""
        return not self._missing or now_ns >= self._ready_at_ns

    def validate(self) -> None:
        """Assert what every caller relies on; tests call it after each event."""
        for group in self._groups.values():
            assert group.members, f"group {group.name} has no member"
            leaders = [m for m in group.members.values() if m.role is Role.LEADER]
            assert len(leaders) <= 1, f"group {group.name} has {len(leaders)} leaders"
            for leader in leaders:
                assert leader.epoch == group.leader_epoch, (leader.epoch, group.leader_epoch)
            uuids = [m.replica.uuid for m in group.members.values()]
            assert len(set(uuids)) == len(uuids), f"one replica twice in group {group.name}"
            for broker_id, member in group.members.items():
                assert member.replica.broker_id == broker_id
                assert member.replica.group == group.name

    def _group_for(self, registration: Registration) -> Group:
        """The group to join; a new one is entered only when the registration is taken."""
        replica = registration.replica
        group = self._groups.get(replica.group)
        if group is None and len(self._groups) >= GROUPS_MAX:
            raise RegistrationRefused(
                f"this nameserver already lists {GROUPS_MAX} groups, its limit; use another one."
            )
        if group is None:
            return Group(replica.cluster, replica.group)
        if group.cluster == replica.cluster:
            return group
        if group.is_alive():
            raise DuplicateReplica(
                f"group {group.name} belongs to cluster {group.cluster}; this replica says"
                f" {replica.cluster}: give it another brokerName or the right brokerClusterName."
            )
        return Group(replica.cluster, replica.group)


def _check_shape(registration: Registration) -> None:
    replica = registration.replica
    if not (replica.cluster and replica.group and replica.uuid and registration.addresses.client):
        raise RegistrationRefused(
            "a registration needs a cluster, a group, a replica uuid and a client address."
        )
    for address in (registration.addresses.client, registration.addresses.ha):
        host, _, port = address.rpartition(":")
        if address and not (host and port.isdigit() and 0 < int(port) <= _PORT_MAX):
            raise RegistrationRefused(f"'{address}' is not an address: it must be HOST:PORT.")
    if replica.broker_id < 0:
        raise RegistrationRefused(f"brokerId is {replica.broker_id}, but must not be negative.")
    if len(registration.topics) > TOPICS_PER_GROUP_MAX:
        raise RegistrationRefused(
            f"the table has {len(registration.topics)} topics; the limit is {TOPICS_PER_GROUP_MAX}."
        )


def _is_repeated(member: Member, registration: Registration) -> bool:
    return (
        member.replica == registration.replica
        and registration.sequence <= member.sequence
        and member.addresses == registration.addresses
    )


def _check_place(group: Group, member: Member | None, registration: Registration) -> None:
    """Whether the broker id, and the replica itself, are this process's to use."""
    replica = registration.replica
    for other in group.members.values():
        if other.replica.uuid == replica.uuid:
            _check_same_replica(other, registration)
    if member is None:
        if len(group.members) >= REPLICAS_PER_GROUP_MAX:
            raise RegistrationRefused(
                f"group {group.name} already has {REPLICAS_PER_GROUP_MAX} replicas, the limit."
            )
    elif member.replica.uuid != replica.uuid and member.alive:
        raise DuplicateReplica(
            f"brokerId {replica.broker_id} of group {group.name} is held by the replica at"
            f" {member.addresses.client}, which is alive: give this one another brokerId, or stop"
            " the other."
        )


def _check_same_replica(known: Member, registration: Registration) -> None:
    replica = registration.replica
    if replica.incarnation < known.replica.incarnation:
        raise StaleReplica(
            f"a newer process of this replica (incarnation {known.replica.incarnation}) has"
            f" registered from {known.addresses.client}; this one is incarnation"
            f" {replica.incarnation}: stop it."
        )
    moved = known.addresses != registration.addresses or known.replica != replica
    if replica.incarnation == known.replica.incarnation and known.alive and moved:
        raise DuplicateReplica(
            f"the same replica is alive at {known.addresses.client}: was its data directory"
            " copied? Delete ha/replica.meta in the copy, or stop one of the two."
        )


def _check_leadership(group: Group, registration: Registration) -> None:
    if registration.role is not Role.LEADER:
        return
    if registration.epoch < group.leader_epoch:
        raise StaleReplica(
            f"epoch {registration.epoch} of group {group.name} is over: its epoch is"
            f" {group.leader_epoch}. A former leader must come back as a follower."
        )
    leader = group.leader()
    if leader is None or registration.epoch > group.leader_epoch:
        return
    replica = registration.replica
    if leader.replica.uuid != replica.uuid and leader.replica.broker_id != replica.broker_id:
        raise DuplicateReplica(
            f"group {group.name} has a leader of epoch {group.leader_epoch} at"
            f" {leader.addresses.client}; a second one in the same epoch is refused."
        )


def _take(group: Group, member: Member | None, registration: Registration, now_ns: int) -> bool:
    """Enter a registration that was found good; returns whether something visible changed."""
    replica = registration.replica
    changed = False
    for broker_id, other in list(group.members.items()):
        if broker_id != replica.broker_id and other.replica.uuid == replica.uuid:
            del group.members[broker_id]
            changed = True
    if registration.role is Role.LEADER:
        group.leader_epoch = registration.epoch
        leader = group.leader()
        if leader is not None and leader.replica.broker_id != replica.broker_id:
            leader.role = Role.FOLLOWER
            changed = True
    row = Member(
        replica,
        registration.addresses,
        registration.role,
        registration.epoch,
        registration.sequence,
        now_ns,
        log_end=registration.log_end,
        confirm=registration.confirm,
    )
    if registration.full:
        row.table_version = registration.table_version
        row.topics = {topic.name: topic for topic in registration.topics}
    elif member is not None and member.replica.uuid == replica.uuid:
        row.topics = member.topics
        row.table_version = member.table_version if member.replica == replica else None
    if member is None or row.visible() != member.visible() or row.topics != member.topics:
        changed = True
    group.members[replica.broker_id] = row
    return changed


def _needs_full(member: Member, registration: Registration) -> bool:
    return member.table_version != registration.table_version
