"""The route tables: every rule of their docstring, and random events checked against a model."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from cometmq.nameserver import registration_rules, routes
from cometmq.nameserver.routes import RouteTable
from cometmq.nameserver.rows import (
    Addresses,
    DuplicateReplica,
    GroupAliveError,
    Registration,
    RegistrationRefused,
    Replica,
    Role,
    StaleReplica,
    Topic,
)

SECOND = 1_000_000_000
ORDERS = Topic("orders", 8, 8, 6, 1)


def table(**more: object) -> RouteTable:
    settings_ = {"expiry_ns": 10 * SECOND, "retention_ns": 86_400 * SECOND, **more}
    return RouteTable(**settings_)  # type: ignore[arg-type]


def heartbeat(
    broker_id: int = 0, *, uuid: str = "", sequence: int = 1, **more: object
) -> Registration:
    """A full registration of broker-a's replica; `more` overrides fields of identity and row."""
    identity = {"incarnation": 1, "cluster": "c", "group": "broker-a"}
    identity.update({key: more.pop(key) for key in list(more) if key in identity})
    replica = Replica(broker_id=broker_id, uuid=uuid or f"uuid-{broker_id}", **identity)  # type: ignore[arg-type]
    row = {
        "addresses": Addresses(f"127.0.0.1:{8081 + 2 * broker_id}"),
        "role": Role.LEADER if broker_id == 0 else Role.FOLLOWER,
        "epoch": 1,
        "table_version": 1,
        "full": True,
        "topics": (ORDERS,),
        **more,
    }
    return Registration(replica=replica, sequence=sequence, **row)  # type: ignore[arg-type]


def test_a_heartbeat_without_the_table_requests_it_until_it_arrives() -> None:
    tables = table()
    answer = tables.register(heartbeat(full=False, topics=()), 0)
    assert answer.need_full
    assert tables.routes("orders") == []
    assert not tables.register(heartbeat(sequence=2), 0).need_full
    assert not tables.register(heartbeat(sequence=3, full=False, topics=()), 0).need_full
    assert [(g.name, t) for g, t in tables.routes("orders")] == [("broker-a", ORDERS)]
    assert tables.register(
        heartbeat(sequence=4, full=False, table_version=2, topics=()), 0
    ).need_full


def test_the_version_moves_with_visible_changes_and_not_with_positions() -> None:
    tables = table()
    tables.register(heartbeat(), 0)
    before = tables.version
    tables.register(heartbeat(sequence=2, log_end=500, confirm=400), SECOND)
    assert tables.version == before
    tables.register(heartbeat(sequence=3, topics=(ORDERS, replace(ORDERS, name="more"))), SECOND)
    assert tables.version == before + 1
    tables.register(heartbeat(1), SECOND)
    assert tables.version == before + 2


def test_silent_replicas_expire_after_ten_seconds_and_stay_listed_for_a_day() -> None:
    tables = table()
    tables.register(heartbeat(), 0)
    assert tables.expire(10 * SECOND - 1) == []
    assert [member.replica.broker_id for member in tables.expire(10 * SECOND)] == [0]
    assert tables.expire(11 * SECOND) == []
    assert [member.alive for member in tables.groups()[0].in_order()] == [False]
    assert len(tables.routes("orders")) == 1, "the only holder of a topic stays its route"
    tables.expire(86_400 * SECOND)
    assert tables.groups() == []


def test_routes_prefer_live_groups_to_dead_ones() -> None:
    tables = table()
    tables.register(heartbeat(), 0)
    tables.register(heartbeat(group="broker-b", uuid="b"), 5 * SECOND)
    tables.expire(10 * SECOND)
    assert [group.name for group, _ in tables.routes("orders")] == ["broker-b"]


def test_a_late_unregister_of_an_older_incarnation_is_ignored() -> None:
    tables = table()
    old = heartbeat(sequence=7)
    tables.register(old, 0)
    tables.register(heartbeat(incarnation=2), SECOND)
    assert not tables.unregister(old.replica, 7)
    assert tables.groups()[0].members[0].alive


def test_an_unregister_older_than_the_last_heartbeat_is_ignored() -> None:
    tables = table()
    tables.register(heartbeat(sequence=5), 0)
    assert not tables.unregister(heartbeat().replica, 4)
    assert tables.unregister(heartbeat().replica, 5)
    assert not tables.groups()[0].members[0].alive


def test_a_heartbeat_overtaken_by_the_unregister_is_ignored() -> None:
    tables = table()
    tables.register(heartbeat(sequence=5), 0)
    tables.unregister(heartbeat().replica, 6)
    tables.register(heartbeat(sequence=6), SECOND)
    assert not tables.groups()[0].members[0].alive


def test_an_older_process_of_the_replica_is_refused() -> None:
    tables = table()
    tables.register(heartbeat(incarnation=2), 0)
    with pytest.raises(StaleReplica, match="newer process"):
        tables.register(heartbeat(incarnation=1, sequence=99), 0)


def test_a_second_replica_with_the_same_broker_id_is_refused_while_the_first_is_alive() -> None:
    tables = table()
    tables.register(heartbeat(), 0)
    with pytest.raises(DuplicateReplica, match=r"brokerId 0 .* 127\.0\.0\.1:8081, which is alive"):
        tables.register(heartbeat(uuid="another"), SECOND)
    tables.expire(10 * SECOND)
    assert tables.register(heartbeat(uuid="another"), 10 * SECOND).changed
    assert tables.groups()[0].members[0].replica.uuid == "another"


def test_a_copied_data_directory_is_refused() -> None:
    tables = table()
    tables.register(heartbeat(), 0)
    with pytest.raises(DuplicateReplica, match="copied"):
        tables.register(heartbeat(sequence=2, addresses=Addresses("127.0.0.1:9999")), 0)


def test_a_leader_of_a_lower_epoch_is_refused_even_after_the_leaders_failure() -> None:
    tables = table()
    tables.register(heartbeat(epoch=5), 0)
    tables.expire(20 * SECOND)
    with pytest.raises(StaleReplica, match="epoch 4"):
        tables.register(heartbeat(1, role=Role.LEADER, epoch=4), 20 * SECOND)


def test_a_second_leader_of_one_epoch_is_refused() -> None:
    tables = table()
    tables.register(heartbeat(), 0)
    with pytest.raises(DuplicateReplica, match="second one in the same epoch"):
        tables.register(heartbeat(1, role=Role.LEADER), 0)


def test_a_leader_of_a_higher_epoch_demotes_the_former() -> None:
    tables = table()
    tables.register(heartbeat(), 0)
    tables.register(heartbeat(1, role=Role.LEADER, epoch=2), SECOND)
    roles = [member.role for member in tables.groups()[0].in_order()]
    assert roles == [Role.FOLLOWER, Role.LEADER]


def test_a_replica_that_changes_its_broker_id_leaves_the_former_one() -> None:
    tables = table()
    tables.register(heartbeat(), 0)
    tables.register(heartbeat(1), 0)
    tables.expire(20 * SECOND)
    tables.register(heartbeat(0, uuid="uuid-1", incarnation=2), 21 * SECOND)
    assert list(tables.groups()[0].members) == [0]


def test_a_group_of_another_cluster_is_refused_while_the_first_is_alive() -> None:
    tables = table()
    tables.register(heartbeat(), 0)
    with pytest.raises(DuplicateReplica, match="belongs to cluster c"):
        tables.register(heartbeat(1, cluster="other"), 0)


def test_a_new_process_keeps_the_former_table_until_its_own_arrives() -> None:
    tables = table()
    tables.register(heartbeat(), 0)
    answer = tables.register(heartbeat(incarnation=2, full=False, topics=()), SECOND)
    assert answer.need_full
    assert len(tables.routes("orders")) == 1


def test_the_end_of_the_wait_for_known_groups_is_a_new_version() -> None:
    tables = table(known_groups=["broker-a"], ready_at_ns=10 * SECOND)
    version = tables.version
    tables.expire(9 * SECOND)
    assert tables.version == version
    tables.expire(10 * SECOND)
    assert tables.version == version + 1
    tables.expire(11 * SECOND)
    assert tables.version == version + 1


def test_unknown_topics_are_not_ready_until_known_groups_register() -> None:
    tables = table(known_groups=["broker-a"], ready_at_ns=10 * SECOND)
    assert not tables.ready(0)
    assert tables.ready(10 * SECOND)
    tables.register(heartbeat(full=False, topics=()), 0)
    assert not tables.ready(0)
    tables.register(heartbeat(sequence=2), 0)
    assert tables.ready(0)


def test_a_group_that_registered_once_is_expected_until_an_operator_removes_it() -> None:
    tables = table(known_groups=["broker-b"], ready_at_ns=10 * SECOND, retention_ns=60 * SECOND)
    assert tables.absent() == ["broker-b"]
    tables.expire(11 * SECOND)
    assert tables.absent() == ["broker-b"], "the end of the wait is no end of the group"
    tables.register(heartbeat(full=False, topics=(), group="broker-b"), 11 * SECOND)
    assert tables.absent() == ["broker-b"], "its topics are not known yet"
    tables.register(heartbeat(sequence=2, group="broker-b"), 11 * SECOND)
    assert tables.absent() == []
    with pytest.raises(GroupAliveError, match="broker-b has a live replica: stop its brokers"):
        tables.forget("broker-b")
    tables.expire(31 * SECOND)
    assert tables.routes("orders"), "a dead replica stays in the routes for the retention"
    tables.expire(72 * SECOND)
    assert (tables.routes("orders"), tables.absent()) == ([], ["broker-b"])
    version = tables.version
    assert tables.forget("broker-b")
    assert (tables.absent(), tables.version) == ([], version + 1)
    assert not tables.forget("broker-b")


def test_a_dead_group_is_removed_with_its_routes() -> None:
    tables = table()
    tables.register(heartbeat(), 0)
    tables.expire(11 * SECOND)
    assert tables.forget("broker-a")
    assert (tables.routes("orders"), tables.absent(), tables.groups()) == ([], [], [])
    tables.register(heartbeat(sequence=2), 12 * SECOND)
    assert tables.routes("orders"), "a broker that starts again is known again"


@pytest.mark.parametrize(
    "registration",
    [
        heartbeat(cluster=""),
        heartbeat(group=""),
        heartbeat(-1),
        heartbeat(addresses=Addresses("")),
        heartbeat(addresses=Addresses("host")),
        heartbeat(addresses=Addresses("host:0")),
        heartbeat(addresses=Addresses("-oProxyCommand=touch:8081")),
        heartbeat(addresses=Addresses("host;reboot:8081")),
        heartbeat(addresses=Addresses("$(reboot):8081")),
        heartbeat(addresses=Addresses("host:8081", ha="a b:10912")),
        heartbeat(addresses=Addresses("host:\u0661")),
        heartbeat(addresses=Addresses("host:1", ha="nowhere")),
        heartbeat(addresses=Addresses("host:1", remoting="nowhere")),
        heartbeat(addresses=Addresses("host:1", remoting_advertised="nowhere")),
    ],
)
def test_a_registration_without_an_identity_is_refused(registration: Registration) -> None:
    tables = table()
    with pytest.raises(RegistrationRefused):
        tables.register(registration, 0)
    assert tables.groups() == []


def test_the_number_of_groups_and_replicas_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "GROUPS_MAX", 1)
    monkeypatch.setattr(registration_rules, "REPLICAS_PER_GROUP_MAX", 2)
    tables = table()
    tables.register(heartbeat(), 0)
    tables.register(heartbeat(1), 0)
    with pytest.raises(RegistrationRefused, match="already has 2 replicas"):
        tables.register(heartbeat(2), 0)
    with pytest.raises(RegistrationRefused, match="already lists 1 groups"):
        tables.register(heartbeat(group="b"), 0)
    tables.expire(11 * SECOND)
    tables.expire(86_401 * SECOND)
    with pytest.raises(RegistrationRefused, match="remove those that are gone"):
        tables.register(heartbeat(group="b"), 0)
    tables.register(heartbeat(sequence=2), 0)


IDS = st.integers(0, 2)
UUIDS = st.sampled_from(["x", "y", "z"])


class RandomCluster(RuleBasedStateMachine):
    """Replicas, clones and late packets in any order; the model tracks what must never decrease."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.tables = table()
        self.epochs: dict[str, int] = {}
        self.versions = [self.tables.version]

    @rule(
        broker_id=IDS,
        uuid=UUIDS,
        incarnation=st.integers(1, 3),
        sequence=st.integers(1, 6),
        leader=st.booleans(),
        epoch=st.integers(1, 3),
        full=st.booleans(),
    )
    def register(
        self,
        *,
        broker_id: int,
        uuid: str,
        incarnation: int,
        sequence: int,
        leader: bool,
        epoch: int,
        full: bool,
    ) -> None:
        registration = heartbeat(
            broker_id,
            uuid=uuid,
            sequence=sequence,
            incarnation=incarnation,
            epoch=epoch,
            role=Role.LEADER if leader else Role.FOLLOWER,
            full=full,
            addresses=Addresses(f"127.0.0.1:{8000 + broker_id}"),
        )
        before = self.snapshot()
        version = self.tables.version
        try:
            answer = self.tables.register(registration, self.now)
        except RegistrationRefused:
            assert self.snapshot() == before, "a refusal changed the tables"
            return
        assert answer.changed == (self.tables.version != version)
        assert answer.changed or self.snapshot() == before

    @rule(broker_id=IDS, uuid=UUIDS, incarnation=st.integers(1, 3), sequence=st.integers(1, 6))
    def unregister(self, broker_id: int, uuid: str, incarnation: int, sequence: int) -> None:
        replica = heartbeat(broker_id, uuid=uuid, incarnation=incarnation).replica
        groups = self.tables.groups()
        member = groups[0].members.get(broker_id) if groups else None
        own = member is not None and member.replica == replica and sequence >= member.sequence
        assert self.tables.unregister(replica, sequence) == own

    @rule(seconds=st.sampled_from([1, 4, 11]))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds * SECOND
        self.tables.expire(self.now)

    @precondition(lambda self: bool(self.tables.groups()))
    @rule()
    def pass_a_day(self) -> None:
        self.now += 86_400 * SECOND
        self.tables.expire(self.now)
        assert self.tables.groups() == []
        self.epochs.clear()

    @invariant()
    def tables_are_sound(self) -> None:
        self.tables.validate()
        self.versions.append(self.tables.version)
        assert self.versions[-1] >= self.versions[-2]
        for group in self.tables.groups():
            assert group.leader_epoch >= self.epochs.get(group.name, 0)
            self.epochs[group.name] = group.leader_epoch
            for member in group.members.values():
                assert not member.alive or self.now - member.heard_ns < 10 * SECOND

    def snapshot(self) -> list[object]:
        return [
            (group.name, dict(group.topics()), [m.visible() for m in group.in_order()])
            for group in self.tables.groups()
        ]


RandomCluster.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestRandomCluster = RandomCluster.TestCase
