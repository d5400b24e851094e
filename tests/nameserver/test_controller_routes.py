"""Routes of a group under a controller: epochs, holds, drains, late calls (R12, I15)."""

import pytest

from cometmq.ha.core.group_state import GroupState, Ref
from cometmq.nameserver.messages import decision_from, group_route
from cometmq.nameserver.query_route import message_queues
from cometmq.nameserver.routes import RouteTable
from cometmq.nameserver.rows import (
    Addresses,
    Decision,
    Registration,
    Replica,
    Role,
    StaleReplica,
    Topic,
)
from cometmq.proto import v1, v2

SECOND = 1_000_000_000


def registration(broker_id: int, role: Role, epoch: int, sequence: int = 1) -> Registration:
    return Registration(
        Replica("c", "g", broker_id, f"u{broker_id}", 1),
        Addresses(f"127.0.0.1:{8081 + broker_id}"),
        role,
        epoch,
        sequence,
        table_version=1,
        full=True,
        topics=(Topic("orders", 1, 1, 6, 1),),
    )


def table() -> RouteTable:
    routes = RouteTable(expiry_ns=10 * SECOND, retention_ns=86_400 * SECOND)
    routes.register(registration(0, Role.LEADER, 1), 0)
    routes.register(registration(1, Role.FOLLOWER, 1), 0)
    return routes


def shown(routes: RouteTable) -> v1.GroupRoute:
    routes.validate()
    return group_route(routes.groups()[0])


def test_routes_show_an_election_before_the_new_leader_registers() -> None:
    routes = table()
    version = routes.version
    routes.state_decided(Decision("c", "g", 2, (1, 1)))
    assert routes.version > version
    route = shown(routes)
    assert (route.epoch, route.read_only, route.note) == (2, True, "the group has no live leader")
    with pytest.raises(StaleReplica, match="epoch 1 of group g is over"):
        routes.register(registration(0, Role.LEADER, 1, 2), 1)
    with pytest.raises(StaleReplica, match="another replica was elected"):
        routes.register(registration(0, Role.LEADER, 2, 2), 1)
    routes.register(registration(1, Role.LEADER, 2, 2), 1)
    route = shown(routes)
    assert (route.epoch, route.read_only) == (2, False)
    assert [member.role for member in route.members] == [v1.FOLLOWER, v1.LEADER]


def test_an_older_decision_changes_nothing() -> None:
    routes = table()
    routes.state_decided(Decision("c", "g", 3, (0, 1)))
    routes.register(registration(0, Role.LEADER, 3, 2), 1)
    routes.state_decided(Decision("c", "g", 2, (1, 1)))
    assert shown(routes).epoch == 3
    assert not shown(routes).read_only


def test_a_decision_comes_before_the_first_registration() -> None:
    routes = RouteTable(expiry_ns=10 * SECOND, retention_ns=86_400 * SECOND)
    routes.state_decided(Decision("c", "g", 7, (1, 1)))
    with pytest.raises(StaleReplica):
        routes.register(registration(0, Role.LEADER, 6), 0)
    routes.register(registration(1, Role.LEADER, 7), 0)
    assert shown(routes).epoch == 7


def queues_of(routes: RouteTable) -> list[v2.MessageQueue]:
    """Return the queues of the topic as clients receive them."""
    encoded = message_queues(v2.Resource(name="orders"), routes.routes("orders"), "JAVA")
    return list(v2.QueryRouteResponse.FromString(encoded).message_queues)


def test_a_hold_and_a_drain_are_shown_and_only_the_drain_to_clients() -> None:
    routes = table()
    routes.state_decided(Decision("c", "g", 1, (0, 1), hold="broker 0 is silent"))
    assert (shown(routes).read_only, shown(routes).note) == (True, "broker 0 is silent")
    queues = queues_of(routes)
    assert [queue.permission for queue in queues] == [v2.READ_WRITE]
    routes.state_decided(Decision("c", "g", 1, (0, 1), drain=True))
    assert shown(routes).read_only
    queues = queues_of(routes)
    assert [queue.permission for queue in queues] == [v2.READ]
    routes.state_decided(Decision("c", "g", 1, (0, 1)))
    assert not shown(routes).read_only


def test_a_late_unregistration_of_an_earlier_registration_is_ignored() -> None:
    routes = table()
    routes.register(registration(0, Role.LEADER, 1, 5), 1)
    assert not routes.unregister(Replica("c", "g", 0, "u0", 1), 4)
    assert not routes.unregister(Replica("c", "g", 0, "u0", 2), 9)
    assert not shown(routes).read_only
    assert routes.unregister(Replica("c", "g", 0, "u0", 1), 5)
    assert shown(routes).read_only


def test_a_decision_is_read_from_a_group_state() -> None:
    state = GroupState(
        "c", "g", version=4, epoch=2, leader=Ref(1, 3), hold_reason="why", drain=True
    )
    assert decision_from(state) == Decision("c", "g", 2, (1, 3), "why", True)
