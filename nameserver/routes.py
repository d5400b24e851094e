"""Route tables: registrations and heartbeats of replicas, expiry, and topics by group.

Pure: no clock, no I/O; time is an argument (steady nanoseconds). Derived state: a lost table is
complete again after one heartbeat of every broker. Rules (docs/formats/ha.md, sections 1.5 and 6.8,
R12):

    Registration                                    Outcome
    same replica, newer (incarnation, sequence)     taken
    same replica, same incarnation, old sequence    no effect: a late or repeated packet
    same replica, older incarnation                 refused: an older process of the replica
    same replica and incarnation, other address     refused while alive: a copied data directory
    other replica, same broker id                   refused while the holder is alive
    leader with an epoch below the group's          refused, also after the leader's failure
    leader of the group's epoch, but another        refused: one leader per epoch
    leader that a controller did not elect          refused
    leader with a higher epoch                      taken, the former leader becomes a follower

An unregistration counts only for its own incarnation and only if it is not older than the last
registration, so that a late one cannot remove a replica that has returned. Dead replicas stay
listed (alive=False) for the retention time, so that clients' alternatives do not change with every
failure.

A controller's decision (`state_decided`) moves the group's epoch immediately: the former leader is
a follower before the new one has registered.

A group that has registered once is expected until an operator removes it (`forget`): while its
topics are not known (it has not registered since the start, or its replicas are forgotten), a topic
that no other group has may be there.

`version` moves when something visible changes (members, roles, liveness, epochs, topics), never
with log positions.
"""

from collections.abc import Callable, Iterable

from .registration_rules import (
    GROUPS_MAX,
    check_leadership,
    check_position,
    check_shape,
    is_repeated,
    needs_full,
)
from .rows import (
    Answer,
    Decision,
    DuplicateReplica,
    Group,
    GroupAliveError,
    InSyncSet,
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
        stored_set: Callable[[str], InSyncSet | None] = lambda _group: None,
    ) -> None:
        """`first_version` should not repeat after a restart: brokers compare versions for
        equality. `stored_set` returns the in-sync set of a static group before the restart."""
        self._expiry_ns = expiry_ns
        self._retention_ns = retention_ns
        self._missing = set(known_groups)
        self._ready_at_ns = ready_at_ns
        self._was_ready = not self._missing
        self._stored_set = stored_set
        self._groups: dict[str, Group] = {}
        self._decisions: dict[str, Decision] = {}
        self.version = first_version

    def register(self, registration: Registration, now_ns: int) -> Answer:
        """Enter a registration or heartbeat. Raises RegistrationRefused; then nothing has
        changed."""
        check_shape(registration)
        group = self._group_for(registration)
        member = group.members.get(registration.replica.broker_id)
        if member is not None and is_repeated(member, registration):
            return Answer(needs_full(member, registration), self.version, changed=False)
        check_position(group, member, registration)
        check_leadership(group, registration)
        self._groups[group.name] = group
        if group.in_sync is None:
            group.in_sync = self._stored_for(registration.replica)
        changed = _take(group, member, registration, now_ns)
        if changed:
            self.version += 1
        member = group.members[registration.replica.broker_id]
        if member.topics is not None:
            self._missing.discard(group.name)
        return Answer(needs_full(member, registration), self.version, changed)

    def state_decided(self, decision: Decision) -> None:
        """Adopt a controller's decision about a group; an outdated decision changes nothing."""
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

    def allow_writes(self, name: str, *, allowed: bool) -> int:
        """Direct producers to a group, or to other groups; return the number of its topics.

        It holds until the nameserver stops, or all replicas of the group are forgotten.
        """
        group = self._groups.get(name)
        if group is None:
            return 0
        if group.writes_allowed != allowed:
            group.writes_allowed = allowed
            self.version += 1
        return len(group.topics())

    def unregister(self, replica: Replica, sequence: int) -> bool:
        """Mark a replica that stops as dead; returns False for an outdated call."""
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
        """Mark silent replicas as dead, and remove those dead for long; returns the newly dead."""
        if not self._was_ready and self.ready(now_ns):
            self._was_ready = True
            self.version += 1  # nodes learn that no further group is awaited
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
                self._missing.add(group.name)
        return dead

    def forget(self, name: str) -> bool:
        """Remove a group, and expect it no more; returns False for an unknown one.

        Raises GroupAliveError while a replica is alive.
        """
        group = self._groups.get(name)
        if group is not None and group.is_alive():
            raise GroupAliveError(f"broker group {name} has a live replica: stop its brokers first")
        if group is None and name not in self._missing:
            return False
        self._groups.pop(name, None)
        self._missing.discard(name)
        self.version += 1
        return True

    def absent(self) -> list[str]:
        """Return the names of the groups that are expected and whose topics are not known."""
        return sorted(self._missing)

    def groups(self) -> list[Group]:
        """All groups by name."""
        return [self._groups[name] for name in sorted(self._groups)]

    def routes(self, topic: str) -> list[tuple[Group, Topic]]:
        """Return the groups that have `topic`: those with a live member, or else those that had
        it."""
        found = [
            (group, table[topic]) for group in self.groups() if topic in (table := group.topics())
        ]
        return [route for route in found if route[0].is_alive()] or found

    def ready(self, now_ns: int) -> bool:
        """Return whether no group is absent, or the time to wait for those of the last run has
        passed."""
        return not self._missing or now_ns >= self._ready_at_ns

    def validate(self) -> None:
        """Assert the invariants; tests call it after each event."""
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
        """Return the group to join; a new one is entered only when the registration is accepted."""
        replica = registration.replica
        group = self._groups.get(replica.group)
        if group is None and len((self._groups.keys() | self._missing) - {replica.group}) >= (
            GROUPS_MAX
        ):
            raise RegistrationRefused(
                f"this nameserver already lists {GROUPS_MAX} groups, its limit; use another one, or"
                " remove those that are gone with `cometmq cluster forget`."
            )
        if group is None:
            return self._new_group(replica)
        if group.cluster == replica.cluster:
            return group
        if group.is_alive():
            raise DuplicateReplica(
                f"group {group.name} belongs to cluster {group.cluster}; this replica has "
                f"cluster {replica.cluster}: give it another brokerName or the right "
                "brokerClusterName."
            )
        return self._new_group(replica)

    def _stored_for(self, replica: Replica) -> InSyncSet | None:
        """Return the stored set of a group, if the replica has a place in it: the group may have
        been made again under its name."""
        stored = self._stored_set(replica.group)
        if stored is None or replica.uuid not in (stored.leader_uuid, *stored.replica_uuids):
            return None
        return stored

    def in_sync(self, name: str) -> InSyncSet | None:
        """Return the in-sync set of a static group."""
        group = self._groups.get(name)
        return None if group is None else group.in_sync

    def _new_group(self, replica: Replica) -> Group:
        group = Group(replica.cluster, replica.group)
        decision = self._decisions.get(replica.group)
        if decision is not None and decision.cluster == replica.cluster:
            group.decision = decision
            group.leader_epoch = decision.epoch
        return group


def _take(group: Group, member: Member | None, registration: Registration, now_ns: int) -> bool:
    """Enter a valid registration; returns whether something visible changed."""
    replica = registration.replica
    changed = False
    for broker_id, other in list(group.members.items()):
        if broker_id != replica.broker_id and other.replica.uuid == replica.uuid:
            del group.members[broker_id]
            changed = True
    if registration.role is Role.LEADER:
        group.leader_epoch = registration.epoch
        found = registration.in_sync
        if found is not None and (group.in_sync is None or found >= group.in_sync):
            group.in_sync = found
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
