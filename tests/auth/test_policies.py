"""Texts of resources, actions and sources, and sealed secrets."""

import pytest

from cometmq.auth.model import (
    Action,
    ResourcePattern,
    check_secret,
    check_user_name,
    parse_actions,
    parse_source,
)
from cometmq.auth.secrets import SealError, SecretKey


@pytest.mark.parametrize(
    "text", ["*", "Topic:*", "Topic:a", "Topic:a*", "Group:g_1", "Cluster:DefaultCluster"]
)
def test_a_resource_keeps_its_text(text: str) -> None:
    assert str(ResourcePattern.parse(text)) == text


def test_a_dead_letter_topic_becomes_its_group() -> None:
    assert str(ResourcePattern.parse("topic:%DLQ%g")) == "Group:g"


@pytest.mark.parametrize("text", ["", "Topic", "Topic:", "Topic:a b", "Topic:a*b", "Queue:a", "**"])
def test_a_bad_resource_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid"):
        ResourcePattern.parse(text)


def test_actions_are_parsed_in_any_case() -> None:
    assert parse_actions("pub, SUB") == Action.PUB | Action.SUB
    assert parse_actions("All") == Action.ALL
    with pytest.raises(ValueError, match="action 'Fly' is invalid"):
        parse_actions("Pub,Fly")


def test_a_bad_source_is_refused() -> None:
    assert str(parse_source("10.1.2.3/8")) == "10.0.0.0/8"
    with pytest.raises(ValueError, match="neither an IP address nor a network"):
        parse_source("localhost")


def test_bad_names_and_secrets_are_refused() -> None:
    check_user_name("svc.orders-1@eu")
    check_secret("12345678")
    for name in ("", "a b", "a/b", "a=b", "x" * 65):
        with pytest.raises(ValueError, match="user name"):
            check_user_name(name)
    for secret in ("short", "with a space", "x" * 129, "geheimnß-key"):
        with pytest.raises(ValueError, match="secret key"):
            check_secret(secret)


def test_a_sealed_secret_opens_only_with_its_key_and_for_its_user() -> None:
    key = SecretKey(b"material")
    sealed = key.seal("u", "secret-key")
    assert b"secret-key" not in sealed
    assert SecretKey(b"material").open("u", sealed) == b"secret-key"
    with pytest.raises(SealError, match="is damaged"):
        key.open("v", sealed)
    with pytest.raises(SealError, match="is damaged"):
        key.open("u", sealed[:-1] + bytes((sealed[-1] ^ 1,)))
    with pytest.raises(SealError, match="another key"):
        SecretKey(b"other").open("u", sealed)
    with pytest.raises(SealError, match="unknown format"):
        key.open("u", b"")
    with pytest.raises(SealError, match="unknown format"):
        key.open("u", b"\x03" + sealed[1:])


def test_each_log_has_a_salt_of_its_own_which_its_next_secrets_use() -> None:
    sealed = SecretKey(b"material").seal("u", "secret-key")
    other = SecretKey(b"material").seal("u", "secret-key")
    salt = slice(1, 17)
    assert sealed[salt] != other[salt]
    restarted = SecretKey(b"material")
    restarted.prepare([sealed])
    assert restarted.seal("v", "secret-key", [sealed])[salt] == sealed[salt]
    with pytest.raises(SealError, match="another key"):
        restarted.open("u", other[:1] + sealed[salt] + other[17:])


def test_a_secret_without_a_salt_from_an_older_version_opens() -> None:
    # Made by the former version with the material "material".
    sealed = bytes.fromhex(
        "01688d37a16bc9f0c604c215bcbe40ed4147e74c6f1220b3ef6af3e89350ea975ffa65c5d0d6c3e90b7414"
    )
    key = SecretKey(b"material")
    key.prepare([sealed])
    assert key.open("u", sealed) == b"secret-key"
    assert key.seal("u", "secret-key", [sealed])[:1] == b"\x02"
    with pytest.raises(SealError, match="another key"):
        SecretKey(b"other").open("u", sealed)
