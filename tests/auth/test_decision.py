"""Decisions equal those of an independent model that works on text; ties go to the denial."""

import ipaddress
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.auth.decision import decide
from cometmq.auth.model import (
    CLUSTER,
    GROUP,
    TOPIC,
    Action,
    Policy,
    ResourcePattern,
    User,
    parse_actions,
    parse_source,
)

NAMES = ("a", "ab", "abc", "b", "%RETRY%a", "%DLQ%ab", "%RETRY%ab+a")
PATTERNS = (
    *("*", "Topic:*", "Group:*", "Cluster:*", "Topic:a", "Topic:ab", "Topic:a*", "Topic:ab*"),
    *("Group:a", "Group:ab*", "Cluster:a", "Topic:%DLQ%ab", "Topic:%RETRY%a*"),
)
ACTIONS = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List", "All")
NETWORKS = ("10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "192.168.0.0/24", "::1")
ADDRESSES = ("10.1.2.3", "10.9.9.9", "192.168.0.7", "::1", "::ffff:10.1.2.3", "")

policies = st.tuples(
    st.sampled_from(PATTERNS),
    st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=3),
    st.booleans(),
    st.lists(st.sampled_from(NETWORKS), max_size=2),
)


def group_form(resource: str) -> str:
    kind, _, name = resource.partition(":")
    if kind == "Topic" and name[:1] == "%":
        return "Group:" + name.split("%", 2)[2].split("+")[0]
    return resource


def within(address: str, network: str) -> bool:
    if not address:
        return False
    number = ipaddress.ip_address(address.removeprefix("::ffff:"))
    base, _, length = network.partition("/")
    first = ipaddress.ip_address(base)
    if first.version != number.version:
        return False
    bits = first.max_prefixlen - int(length or first.max_prefixlen)
    return int(number) >> bits == int(first) >> bits


def model(rows, resource: str, action: str, address: str) -> bool:  # type: ignore[no-untyped-def]
    """One pass for each level of precision, the most precise first."""
    resource = group_form(resource)
    kind = resource.split(":")[0]
    levels = [resource]
    levels += [resource[:end] + "*" for end in range(len(resource), len(kind), -1)]
    levels.append("*")
    for level in levels:
        decisions = [
            allow
            for pattern, actions, allow, networks in rows
            if group_form(pattern) == level
            and (action in actions or "All" in actions)
            and (
                not networks
                or any(within(address, network) for network in networks)
                or not (address or allow)  # an unknown address may be a denied one
            )
        ]
        if decisions:
            return all(decisions)
    return False


REQUESTS = list(product((TOPIC, GROUP, CLUSTER), NAMES, ACTIONS[:-1], ADDRESSES))
STEP = 8


@settings(max_examples=100, deadline=None)
@given(st.lists(policies, max_size=8), st.integers(0, STEP - 1), st.integers(0, 9))
def test_ten_thousand_decisions_equal_an_independent_models(
    rows: list[tuple[str, list[str], bool, list[str]]], first: int, kind_of_user: int
) -> None:
    """Each of 100 users does every eighth of 882 requests: 11,000 decisions."""
    is_super = kind_of_user == 0
    user = User(
        "u",
        b"",
        is_super,
        policies=tuple(
            Policy(
                ResourcePattern.parse(pattern),
                parse_actions(",".join(actions)),
                allow,
                tuple(map(parse_source, networks)),
            )
            for pattern, actions, allow, networks in rows
        ),
    )
    for kind, name, action, address in REQUESTS[first::STEP]:
        decided = decide(user, kind, name, Action[action.upper()], address)
        wanted = is_super or model(rows, f"{kind}:{name}", action, address)
        assert decided.allowed == wanted, (kind, name, action, address)


def test_a_denial_wins_a_tie_in_either_order() -> None:
    allow = Policy(ResourcePattern.parse("Topic:t"), Action.PUB, True)
    deny = Policy(ResourcePattern.parse("Topic:t"), Action.ALL, False)
    for order in ((allow, deny), (deny, allow)):
        decision = decide(User("u", b"", policies=order), TOPIC, "t", Action.PUB, "")
        assert (decision.allowed, decision.policy) == (False, deny)


def test_a_literal_name_decides_before_a_prefix() -> None:
    narrow = Policy(ResourcePattern.parse("Topic:orders"), Action.PUB, True)
    wide = Policy(ResourcePattern.parse("Topic:*"), Action.ALL, False)
    user = User("u", b"", policies=(wide, narrow))
    assert decide(user, TOPIC, "orders", Action.PUB, "").policy is narrow
    assert decide(user, TOPIC, "orders2", Action.PUB, "").policy is wide


def test_a_client_of_unknown_address_has_the_least_rights() -> None:
    inside = (parse_source("10.0.0.0/8"),)
    orders = ResourcePattern.parse("Topic:orders")
    allowed = User("u", b"", policies=(Policy(orders, Action.PUB, True, inside),))
    denied = User(
        "u",
        b"",
        policies=(Policy(orders, Action.PUB, True), Policy(orders, Action.PUB, False, inside)),
    )
    for user, known in ((allowed, "10.1.2.3"), (denied, "192.168.1.1")):
        assert decide(user, TOPIC, "orders", Action.PUB, known).allowed
        for unknown in ("", "unix", "localhost"):
            assert not decide(user, TOPIC, "orders", Action.PUB, unknown).allowed
