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
    leader that a controller did not elect          refused
    leader with a higher epoch                      taken, the former leader is shown as a follower

An unregistration counts only for its own incarnation and only when it is not older than the last
registration, so that a late one cannot remove a replica that has come back. Dead replicas stay
listed (alive=False) for the retention time: clients' alternatives must not change with every death.

What a controller decides (`state_decided`) moves the group's epoch at once: the former leader is shown as a
follower before the new one has registered.

`version` moves when something visible changes (members, roles, liveness, epochs, topics), never
with log positions.
"""

from collections.abc import Iterable

from .registration_rules import (
    GROUPS_MAX,
    check_leadership,
    check_place,
    check_shape,
    is_repeated,
    needs_full,
)
from .rows import (
    Answer,
    Decision,
    DuplicateReplica,
    Group,
    Member,
    Registration,
    RegistrationRefused,
    Replica,
    Role,
    Topic,
)


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
        self._decisions: dict[str, Decision] = {}
        self.version = first_version

    def register(self, registration: Registration, now_ns: int) -> Answer:
        """Take a registration or beat. Raises RegistrationRefused, and then nothing has changed."""
        check_shape(registration)
        group = self._group_for(registration)
        member = group.members.get(registration.replica.broker_id)
        if member is not None and is_repeated(member, registration):
            return Answer(needs_full(member, registration), self.version, changed=False)
        check_place(group, member, registration)
        check_leadership(group, registration)
        self._groups[group.name] = group
        changed = _take(group, member, registration, now_ns)
        if changed:
            self.version += 1
        member = group.members[registration.replica.broker_id]
        if member.topics is not None:
            self._missing.discard(group.name)
        return Answer(needs_full(member, registration), self.version, changed)

    def state_decided(self, decision: Decision) -> None:
        """A controller decided about a group; what is older than the tables know changes nothing."""
        known = self._decisions.get(decision.group)
        if known is None and len(self._decisions) >= GROUPS_MAX:
            return
        if known is None or known.cluster != decision.cluster or known.epoch <= decision.epoch:
            self._decisions[decision.group] = decision
        group = self._groups.get(decision.group)
        if group is None or group.cluster != decision.cluster or group.decision == decision:
            return
        if decision.epoch < group.leader_epoch:
            return
        group.decision = decision
        leader = group.leader()
        if leader is not None and decision.epoch > leader.epoch:
            leader.role = Role.FOLLOWER
        group.leader_epoch = decision.epoch
        self.version += 1

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
            return self._new_group(replica)
        if group.cluster == replica.cluster:
            return group
        if group.is_alive():
            raise DuplicateReplica(
                f"group {group.name} belongs to cluster {group.cluster}; this replica says"
                f" {replica.cluster}: give it another brokerName or the right brokerClusterName."
            )
        return self._new_group(replica)

    def _new_group(self, replica: Replica) -> Group:
        group = Group(replica.cluster, replica.group)
        decision = self._decisions.get(replica.group)
        if decision is not None and decision.cluster == replica.cluster:
            group.decision = decision
            group.leader_epoch = decision.epoch
        return group


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
