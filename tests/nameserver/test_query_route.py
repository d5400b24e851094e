"""Routes for clients: queues, permissions, alternatives in a stable order."""

import pytest

from cometmq.nameserver.query_route import (
    accepted_types,
    check_topic,
    endpoints,
    message_queues,
    permissions,
)
from cometmq.nameserver.rows import Addresses, Group, Member, Replica, Role, Topic
from cometmq.proto import v2
from cometmq.proto.errors import WireError


def group(*hosts: str, leader: int = 0, alive: frozenset[int] = frozenset((0, 1, 2))) -> Group:
    members = {
        broker_id: Member(
            Replica("c", "broker-a", broker_id, f"uuid-{broker_id}", 1),
            Addresses(f"{host}:{8081 + broker_id}"),
            Role.LEADER if broker_id == leader else Role.FOLLOWER,
            1,
            1,
            0,
            alive=broker_id in alive,
        )
        for broker_id, host in enumerate(hosts)
    }
    return Group("c", "broker-a", members)


def ports(found: v2.Endpoints) -> list[int]:
    return [address.port for address in found.addresses]


@pytest.mark.parametrize("language", ["JAVA", "GO", "GOLANG", "CPP", "PYTHON", "python", "RUST"])
def test_alternatives_keep_their_order_through_failures_and_elections(language: str) -> None:
    for leader in (0, 1):
        for alive in (frozenset((0, 1)), frozenset((1,)), frozenset[int]()):
            found = endpoints(group("127.0.0.1", "10.0.0.2", leader=leader, alive=alive), language)
            assert found.scheme == v2.IPv4
            assert [(a.host, a.port) for a in found.addresses] == [
                ("127.0.0.1", 8081),
                ("10.0.0.2", 8082),
            ]


@pytest.mark.parametrize("language", ["HTTP", "DOTNET", "", "PHP"])
def test_a_client_with_support_for_one_address_gets_the_leaders(language: str) -> None:
    assert ports(endpoints(group("127.0.0.1", "127.0.0.1", leader=1), language)) == [8082]


def test_host_names_are_never_alternatives() -> None:
    found = endpoints(group("master", "slave"), "JAVA")
    assert found.scheme == v2.DOMAIN_NAME
    assert ports(found) == [8081]


def test_two_address_families_are_never_alternatives() -> None:
    assert ports(endpoints(group("127.0.0.1", "[::1]"), "JAVA")) == [8081]
    found = endpoints(group("[::1]", "[::1]"), "JAVA")
    assert (found.scheme, ports(found)) == (v2.IPv6, [8081, 8082])
    assert found.addresses[0].host == "::1"


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        (Topic("t", 2, 2, 6, 1), [v2.READ_WRITE, v2.READ_WRITE]),
        (Topic("t", 3, 1, 6, 1), [v2.READ, v2.READ, v2.READ_WRITE]),
        (Topic("t", 1, 2, 6, 1), [v2.WRITE, v2.READ_WRITE]),
        (Topic("t", 1, 1, 4, 1), [v2.READ]),
        (Topic("t", 1, 1, 2, 1), [v2.WRITE]),
        (Topic("t", 1, 1, 0, 1), [v2.NONE]),
    ],
)
def test_permissions_of_the_queues(topic: Topic, expected: list[int]) -> None:
    assert permissions(topic) == expected


def test_message_types_are_never_unspecified() -> None:
    assert accepted_types(0) == [v2.NORMAL]
    assert accepted_types(int(v2.FIFO)) == [v2.FIFO]
    assert accepted_types(-1) == [v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION]


def test_queues_show_broker_id_zero_and_echo_the_topic() -> None:
    resource = v2.Resource(resource_namespace="ns", name="t")
    routes = [(group("127.0.0.1"), Topic("t", 2, 2, 6, 1))]
    encoded = message_queues(resource, routes, "JAVA")
    queues = v2.QueryRouteResponse.FromString(encoded).message_queues
    assert [(q.id, q.broker.id, q.broker.name) for q in queues] == [
        (0, 0, "broker-a"),
        (1, 0, "broker-a"),
    ]
    assert all(queue.topic == resource for queue in queues)


@pytest.mark.parametrize("name", ["", "  ", "a b", "a" * 128, "TBW102", "rmq_sys_x", "a\n"])
def test_invalid_topic_names_are_refused(name: str) -> None:
    with pytest.raises(WireError) as refusal:
        check_topic(name)
    assert refusal.value.code == v2.ILLEGAL_TOPIC


@pytest.mark.parametrize("name", ["a", "%RETRY%group", "a|b-c_9", "a" * 127])
def test_valid_topic_names_are_accepted(name: str) -> None:
    check_topic(name)
