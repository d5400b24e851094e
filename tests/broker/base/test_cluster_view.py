"""The cluster view of a node, and the addresses in its routes."""

from __future__ import annotations

import pytest

from cometmq.broker.base.cluster_view import ClusterView, MemberView
from cometmq.broker.base.config import split_addresses
from cometmq.broker.routing.advertise import Advertiser, Caller
from cometmq.proto import v1, v2

SECOND = 1_000_000_000


class Time:
    """A steady clock set by the test."""

    def __init__(self) -> None:
        self.now_ns = 1

    def __call__(self) -> int:
        return self.now_ns


def member(broker_id: int, port: int, *, leader: bool = False, alive: bool = True) -> v1.Member:
    return v1.Member(
        replica=v1.ReplicaIdentity(broker_id=broker_id, incarnation=1),
        addresses=v1.ReplicaAddresses(client=f"10.0.0.1:{port}", ha=f"10.0.0.1:{port + 1}"),
        role=v1.LEADER if leader else v1.FOLLOWER,
        alive=alive,
        epoch=1,
    )


def group(name: str, *members: v1.Member, topics: tuple[str, ...] = ()) -> v1.GroupRoute:
    return v1.GroupRoute(
        group=name,
        members=members,
        topics=[v1.TopicRoute(name=t, read_queues=1, write_queues=1, perm=6) for t in topics],
    )


def own(broker_id: int = 1, port: int = 12) -> MemberView:
    client = f"10.0.0.1:{port}"
    return MemberView("a", broker_id, client, "10.0.0.1:13", "", broker_id == 0, True, 1, 5)


def test_the_view_is_the_union_of_nameservers_with_the_nodes_own_row() -> None:
    view = ClusterView("a", Time())
    view.set_own(own())
    view.update("ns1", [group("a", member(0, 10, leader=True), member(1, 99), topics=("t",))])
    view.update("ns2", [group("b", member(0, 20, leader=True), topics=("t", "u"))])
    assert [m.client for m in view.own().members] == ["10.0.0.1:10", "10.0.0.1:12"]
    leader = view.own().leader()
    assert leader is not None
    assert leader.ha == "10.0.0.1:11"
    assert [g.name for g in view.others_with("t")] == ["b"]
    assert [g.name for g in view.others_with("u")] == ["b"]
    assert view.others_with("x") == []


def test_a_view_is_incomplete_while_all_nameservers_that_answer_await_groups() -> None:
    view = ClusterView("a", Time())
    assert view.complete
    view.update("ns1", [], incomplete=True)
    assert not view.complete
    view.update("ns2", [])
    assert view.complete
    view.lost("ns2")
    assert not view.complete
    view.update("ns1", [])
    assert view.complete


def test_a_group_is_absent_until_a_nameserver_knows_its_topics() -> None:
    view = ClusterView("a", Time())
    view.update("ns1", [], incomplete=True, absent=["a", "b", "c"])
    assert (view.absent, view.awaiting, view.complete) == (("b", "c"), True, False)
    view.update("ns1", [group("b", topics=("t",))], absent=["c"])
    assert (view.absent, view.awaiting, view.complete) == (("c",), False, False)
    view.update("ns2", [group("c", topics=("u",))])
    assert (view.absent, view.complete) == ((), True), "the other nameserver did not restart"
    view.lost("ns2")
    assert (view.absent, view.complete) == (("c",), False)
    view.update("ns1", [group("b", topics=("t",))])
    assert (view.absent, view.complete) == ((), True)


def test_a_silent_nameserver_is_ignored_while_another_answers() -> None:
    view = ClusterView("a", Time())
    view.update("ns1", [group("b", member(0, 20, leader=True, alive=True))])
    view.update("ns2", [group("b", member(0, 20, leader=True, alive=False))])
    b = view.group("b")
    assert b is not None
    assert b.members[0].alive, "one of them gets a response"
    view.lost("ns1")
    assert not view.groups["b"].members[0].alive
    view.lost("ns2")
    assert view.groups["b"].members[0].alive, "all are silent: the last view stays"
    view.found("ns2")
    assert not view.groups["b"].members[0].alive


def test_a_member_survives_the_restart_of_a_nameserver() -> None:
    time = Time()
    view = ClusterView("a", time)
    view.set_own(own())
    view.update("ns1", [group("a", member(0, 10, leader=True), member(1, 12))])
    time.now_ns += SECOND
    view.update("ns1", [group("a", member(1, 12))])
    assert [m.broker_id for m in view.own().members] == [0, 1]
    time.now_ns += 31 * SECOND
    view.update("ns1", [group("a", member(1, 12))])
    assert [m.broker_id for m in view.own().members] == [1]


def cluster_of_two() -> ClusterView:
    view = ClusterView("a", Time())
    view.set_own(MemberView("a", 1, "127.0.0.1:8083", "", "", False, True, 1, 1))
    leader = member(0, 0, leader=True)
    leader.addresses.client = "127.0.0.1:8081"
    view.update("ns", [v1.GroupRoute(group="a", members=[leader])])
    return view


def texts(endpoints: v2.Endpoints) -> list[str]:
    return [f"{address.host}:{address.port}" for address in endpoints.addresses]


def endpoints(rule: str, dialled: str, peer: str, language: str = "PYTHON") -> v2.Endpoints:
    view = cluster_of_two()
    by_hand = split_addresses(rule) if ":" in rule else []
    addresses = [v2.Address(host=h, port=p) for h, p in split_addresses(dialled)]
    caller = Caller(v2.Endpoints(addresses=addresses), peer, language)
    return Advertiser(rule, by_hand, view).endpoints(view.own(), caller)


BOTH = ["127.0.0.1:8081", "127.0.0.1:8083"]


@pytest.mark.parametrize(
    ("rule", "dialled", "peer", "language", "expected"),
    [
        ("auto", "127.0.0.1:8083", "127.0.0.1:9", "PYTHON", BOTH),
        ("auto", "127.0.0.1:8081;127.0.0.1:8083", "127.0.0.1:9", "java", BOTH),
        ("auto", "127.0.0.1:8083", "127.0.0.1:9", "HTTP", BOTH[:1]),
        ("auto", "127.0.0.1:8083", "127.0.0.1:9", "DOTNET", BOTH[:1]),
        # A loopback address dialled from elsewhere is a mapped port.
        ("auto", "127.0.0.1:8083", "172.17.0.1:9", "PYTHON", ["127.0.0.1:8083"]),
        ("auto", "192.168.0.7:30081", "192.168.0.9:9", "PYTHON", ["192.168.0.7:30081"]),
        ("auto", "localhost:8081", "127.0.0.1:9", "PYTHON", ["localhost:8081"]),
        ("auto", "", "127.0.0.1:9", "PYTHON", BOTH),
        ("replicas", "192.168.0.7:30081", "192.168.0.9:9", "GO", BOTH),
        ("replicas", "192.168.0.7:30081", "192.168.0.9:9", "HTTP", BOTH[:1]),
        ("echo", "127.0.0.1:8083", "127.0.0.1:9", "RUST", ["127.0.0.1:8083"]),
        ("echo", "", "127.0.0.1:9", "RUST", BOTH),
        ("1.1.1.1:1,2.2.2.2:2", "127.0.0.1:8083", "127.0.0.1:9", "CPP", ["1.1.1.1:1", "2.2.2.2:2"]),
        ("1.1.1.1:1,2.2.2.2:2", "127.0.0.1:8083", "127.0.0.1:9", "HTTP", ["1.1.1.1:1"]),
    ],
)
@pytest.mark.pitfall(30, 31)
def test_advertised_addresses_follow_the_rule_and_the_client(
    rule: str, dialled: str, peer: str, language: str, expected: list[str]
) -> None:
    answer = endpoints(rule, dialled, peer, language)
    assert texts(answer) == expected
    wanted = v2.DOMAIN_NAME if "localhost" in expected[0] else v2.IPv4
    assert answer.scheme == wanted


@pytest.mark.pitfall(32)
@pytest.mark.parametrize("language", ["GO", "golang", "JAVA", "PYTHON"])
def test_only_java_clients_get_several_addresses_over_tls(language: str) -> None:
    assert Caller(v2.Endpoints(), "127.0.0.1:9", language, tls=False).takes_several
    several = Caller(v2.Endpoints(), "127.0.0.1:9", language, tls=True).takes_several
    assert several == (language == "JAVA")


def test_host_names_are_never_alternatives() -> None:
    view = ClusterView("a", Time())
    view.set_own(MemberView("a", 0, "broker-a:8081", "", "", True, True, 1, 1))
    second = member(1, 0)
    second.addresses.client = "broker-b:8081"
    view.update("ns", [v1.GroupRoute(group="a", members=[second])])
    caller = Caller(v2.Endpoints(), "10.0.0.9:1", "JAVA")
    answer = Advertiser("replicas", [], view).endpoints(view.own(), caller)
    assert texts(answer) == ["broker-a:8081"]
    assert answer.scheme == v2.DOMAIN_NAME
    dialled = v2.Endpoints(addresses=[v2.Address(host="broker-b", port=8081)])
    echoed = Advertiser("auto", [], view).endpoints(
        view.own(), Caller(dialled, "10.0.0.9:1", "JAVA")
    )
    assert texts(echoed) == ["broker-b:8081"]


def three_hosts() -> ClusterView:
    view = ClusterView("a", Time())
    rows = [member(n, 10 + n, leader=n == 0) for n in range(3)]
    for number, row in enumerate(rows):
        row.addresses.client = f"10.0.0.{number}:8081"
    view.update("ns", [v1.GroupRoute(group="a", members=rows)])
    return view


def addresses_for(view: ClusterView, client_id: str, language: str = "JAVA") -> list[str]:
    caller = Caller(v2.Endpoints(), "10.0.0.9:1", language, client_id=client_id)
    return texts(Advertiser("replicas", [], view).endpoints(view.own(), caller))


def test_clients_begin_with_different_hosts_and_keep_their_order() -> None:
    view = three_hosts()
    orders = {client: addresses_for(view, f"client@{client}") for client in range(60)}
    assert {tuple(sorted(order)) for order in orders.values()} == {tuple(sorted(orders[0]))}
    firsts = [order[0] for order in orders.values()]
    assert min(firsts.count(first) for first in orders[0]) >= 10
    assert orders == {client: addresses_for(view, f"client@{client}") for client in range(60)}


def test_a_client_of_one_address_gets_the_leader_of_any_order() -> None:
    assert addresses_for(three_hosts(), "client@1", "HTTP") == ["10.0.0.0:8081"]


def test_replicas_on_one_host_keep_one_order() -> None:
    orders = {tuple(addresses_for(cluster_of_two(), f"client@{n}")) for n in range(20)}
    assert orders == {tuple(BOTH)}


def test_the_address_of_an_isolated_node_is_the_last() -> None:
    view = three_hosts()
    view.avoided = "10.0.0.1:8081"
    assert {addresses_for(view, f"client@{n}")[-1] for n in range(20)} == {"10.0.0.1:8081"}


def test_the_followed_leader_is_in_the_view_before_nameservers_have_it() -> None:
    view = ClusterView("a", Time())
    view.update("n", [group("a", member(0, 10, leader=True), member(1, 12), member(2, 14))])
    named = MemberView("a", 2, "10.0.0.1:14", "10.0.0.1:15", "", True, True, 7, 0)
    view.set_own(own(), named)
    leader = view.own().leader()
    assert leader is not None
    assert (leader.broker_id, leader.epoch, leader.client) == (2, 7, "10.0.0.1:14")
    # A later election that the nameservers have and this node has not.
    row = member(0, 10, leader=True)
    row.epoch = 9
    view.update("n", [group("a", row, member(1, 12), member(2, 14))])
    leader = view.own().leader()
    assert leader is not None and (leader.broker_id, leader.epoch) == (0, 9)
