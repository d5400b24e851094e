"""Admission to the cluster's internal services: the token, or this machine."""

import pytest

from cometmq.ha.stream.token import is_admitted
from cometmq.proto.node_links import TOKEN_KEY, NodeLinks

FAR = "ipv4:192.0.2.7:5000"


def shown(token: str) -> tuple[tuple[str, str], ...]:
    """Metadata of a caller with this token."""
    return ((TOKEN_KEY, token),)


@pytest.mark.parametrize(
    "peer",
    [
        "ipv4:127.0.0.1:5000",
        "ipv6:[::1]:5000",
        "ipv6:%5B::1%5D:5000",
        "ipv6:[::ffff:127.0.0.1]:5000",
        "unix:/tmp/socket",
    ],
)
def test_without_a_token_callers_on_this_machine_are_admitted(peer: str) -> None:
    assert is_admitted(NodeLinks(), (), peer, {})
    assert not is_admitted(NodeLinks("secret"), (), peer, {})


@pytest.mark.parametrize("peer", [FAR, "ipv6:[2001:db8::1]:5000", "ipv4:12.70.0.1:5000", ""])
def test_without_a_token_callers_on_other_machines_are_refused(peer: str) -> None:
    assert not is_admitted(NodeLinks(), shown("anything"), peer, {})


def test_the_token_admits_from_anywhere() -> None:
    links = NodeLinks("secret")
    assert is_admitted(links, shown("secret"), FAR, {})
    assert not is_admitted(links, shown("other"), FAR, {})
    assert not is_admitted(links, None, FAR, {})
    assert not is_admitted(links, ((TOKEN_KEY, b"secret"),), FAR, {})
