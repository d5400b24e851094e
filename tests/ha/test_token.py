"""Admission to the cluster's internal services: the token, or this machine."""

import pytest

from cometmq.ha.stream.token import TOKEN_KEY, is_admitted, token_metadata

FAR = "ipv4:192.0.2.7:5000"


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
    assert is_admitted("", (), peer)
    assert not is_admitted("secret", (), peer)


@pytest.mark.parametrize("peer", [FAR, "ipv6:[2001:db8::1]:5000", "ipv4:12.70.0.1:5000", ""])
def test_without_a_token_callers_on_other_machines_are_refused(peer: str) -> None:
    assert not is_admitted("", token_metadata("anything"), peer)


def test_the_token_admits_from_anywhere() -> None:
    assert is_admitted("secret", token_metadata("secret"), FAR)
    assert not is_admitted("secret", token_metadata("other"), FAR)
    assert not is_admitted("secret", None, FAR)
    assert not is_admitted("secret", ((TOKEN_KEY, b"secret"),), FAR)
    assert token_metadata("") == ()
