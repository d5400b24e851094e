"""Users and policies are replicated, survive a restart and a failover, and keep secrets sealed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.base.config import BrokerConfig
from cometmq.proto import paths, v1, v2
from cometmq.tests.broker.live import (
    Live,
    Settings,
    follower_of,
    nameserver,
    running,
    settings,
    until,
)
from cometmq.tests.harness.wire import Wire

SECRET = "a-secret-key-1"
FIRST = '{"username":"admin","password":"first-secret"}'
PUB, SUB = 1, 2


async def put(wire: Wire, name: str, secret: str = SECRET, **fields: Any) -> Any:
    request = v1.PutUserRequest(name=name, secret=secret, **fields)
    return await wire.call(paths.PUT_USER, request, v1.UserResponse)


async def policy(wire: Wire, user: str, resource: str, actions: int, allow: bool = True) -> Any:
    wanted = v1.AclPolicy(resource=resource, actions=actions, allow=allow)
    request = v1.PutPolicyRequest(user=user, policy=wanted)
    return await wire.call(paths.PUT_POLICY, request, v1.UserResponse)


async def check(wire: Wire, user: str, action: str, resource: str, source: str = "") -> Any:
    request = v1.CheckAccessRequest(user=user, action=action, resource=resource, source=source)
    return await wire.call(paths.CHECK_ACCESS, request, v1.CheckAccessResponse)


def secret_of(live: Live, name: str) -> bytes:
    return live.node.keys.key.open(name, live.node.metadata.users[name].secret)


def with_names(chosen: Settings, namesrv: str) -> Settings:
    return replace(chosen, broker=replace(chosen.broker, namesrv_addr=namesrv))


async def test_users_and_policies_survive_a_restart_and_stay_sealed(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    async with running(chosen) as live, live.client() as wire:
        assert (await put(wire, "orders")).created
        assert not (await put(wire, "orders", secret="", enabled=False)).created
        assert (await policy(wire, "orders", "Topic:orders*", PUB | SUB)).code == v2.OK
        assert (await policy(wire, "orders", "Topic:orders*", PUB)).code == v2.OK  # replaces
        await put(wire, "gone")
        request = v1.DeleteUserRequest(name="gone")
        assert (await wire.call(paths.DELETE_USER, request, v1.UserResponse)).code == v2.OK
    async with running(chosen) as live, live.client() as wire:
        answer = await wire.call(paths.LIST_USERS, v1.ListUsersRequest(), v1.ListUsersResponse)
        (user,) = answer.users
        assert (user.name, user.disabled, user.secret) == ("orders", True, b"")
        (kept,) = user.policies
        assert (kept.resource, kept.actions) == ("Topic:orders*", PUB)
        assert secret_of(live, "orders") == SECRET.encode()
    key = tmp_path / "config" / "auth.key"
    assert key.stat().st_mode & 0o777 == 0o600
    log = b"".join(path.read_bytes() for path in (tmp_path / "commitlog").iterdir())
    assert b"orders" in log
    assert SECRET.encode() not in log


async def test_a_follower_has_the_users_and_opens_their_secrets(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("k" * 32)
    key_file.chmod(0o600)
    options = {"authentication_key_file": str(key_file)}
    leading = settings(tmp_path / "a", init_authentication_user=FIRST, **options)
    async with nameserver() as namesrv, running(with_names(leading, namesrv)) as leader:
        following = with_names(follower_of(leader.bound, tmp_path / "b", **options), namesrv)
        async with running(following) as follower, follower.client() as wire:
            await until(follower.node.leadership.leader_client)
            assert (await put(wire, "orders")).created, "forwarded to the leader"
            await until(lambda: follower.node.metadata.users.keys() == {"admin", "orders"})
            assert secret_of(follower, "orders") == SECRET.encode()
            assert secret_of(follower, "admin") == b"first-secret"
    # The former follower leads.
    ha = replace(leading.ha, ha_listen_port=0)
    async with running(replace(settings(tmp_path / "b", **options), ha=ha)) as leader:
        assert leader.node.metadata.users["admin"].is_super
        assert secret_of(leader, "orders") == SECRET.encode()


async def test_requests_with_mistakes_are_refused(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        assert (await put(wire, "a/b")).code == v2.BAD_REQUEST
        assert (await put(wire, "a", secret="")).code == v2.BAD_REQUEST
        assert (await put(wire, "a", secret="short")).code == v2.BAD_REQUEST
        assert (await put(wire, "a", must_exist=True)).code == v2.NOT_FOUND
        await put(wire, "a", is_super=True)
        assert (await put(wire, "a", must_be_new=True)).code == v2.BAD_REQUEST
        assert (await put(wire, "off", enabled=False)).code == v2.OK
        assert (await put(wire, "off", must_be_new=True)).code == v2.BAD_REQUEST
        last = await put(wire, "a", secret="", enabled=False)
        assert (last.code, last.message.startswith("a is the last")) == (v2.FORBIDDEN, True)
        delete = v1.DeleteUserRequest(name="a")
        assert (await wire.call(paths.DELETE_USER, delete, v1.UserResponse)).code == v2.FORBIDDEN
        assert (await policy(wire, "b", "Topic:t", PUB)).code == v2.NOT_FOUND
        assert (await policy(wire, "a", "Queue:t", PUB)).code == v2.BAD_REQUEST
        assert (await policy(wire, "a", "Topic:t", 0)).code == v2.BAD_REQUEST
        assert (await check(wire, "a", "Pub,Sub", "Topic:t")).code == v2.BAD_REQUEST
        assert (await check(wire, "a", "Pub", "Topic:*")).code == v2.BAD_REQUEST
        assert (await check(wire, "a", "Pub", "Topic:t", "host")).code == v2.BAD_REQUEST
        removal = v1.DeletePolicyRequest(user="a", resource="Topic:t")
        assert (await wire.call(paths.DELETE_POLICY, removal, v1.UserResponse)).code == v2.NOT_FOUND


async def test_check_names_the_policy_that_decides(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live, live.client() as wire:
        await put(wire, "u")
        assert (await check(wire, "u", "Pub", "Topic:t")).reason == "no policy matches"
        await policy(wire, "u", "Topic:*", PUB)
        await policy(wire, "u", "Topic:t", PUB, allow=False)
        answer = await check(wire, "u", "Pub", "Topic:t")
        assert not answer.allowed
        assert answer.reason == "the most specific policy: deny Pub on Topic:t"
        assert (await check(wire, "u", "Pub", "Topic:s")).allowed
        await put(wire, "u", secret="", enabled=False)
        assert (await check(wire, "u", "Pub", "Topic:s")).reason == "user u is disabled"


def test_settings_of_the_first_user_are_checked() -> None:
    assert BrokerConfig(init_authentication_user=FIRST).first_user() == ("admin", "first-secret")
    for text in ("{", "[]", '{"username":"a"}', '{"username":"a","password":"short"}'):
        with pytest.raises(ValueError, match="initAuthenticationUser is invalid") as raised:
            BrokerConfig(init_authentication_user=text)
        assert "short" not in str(raised.value)
    with pytest.raises(ValueError, match="needs authenticationEnabled"):
        BrokerConfig(authorization_enabled=True)


async def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("k" * 32)
    path.chmod(0o644)
    chosen = settings(tmp_path / "a", authentication_key_file=str(path))
    async with running(chosen) as live, live.client() as wire:
        answer = await put(wire, "u")
        assert answer.code == v2.INTERNAL_SERVER_ERROR
        assert "chmod 600" in answer.message


async def test_a_rotation_with_an_overlap_keeps_the_former_secret_key_for_that_time(
    tmp_path: Path,
) -> None:
    chosen = settings(tmp_path)
    async with running(chosen) as live, live.client() as wire:
        await put(wire, "orders")
        rotated = await put(wire, "orders", secret="another-secret", overlap_ms=3_600_000)
        assert rotated.user.former_until_ms > live.node.runtime.clock.machine_ms()
        assert (rotated.user.secret, rotated.user.former_secret) == (b"", b"")
        refused = await put(wire, "orders", secret="another-secret", overlap_ms=1 << 40)
        assert refused.code == v2.BAD_REQUEST
        new = await put(wire, "new", secret="another-secret", overlap_ms=1)
        assert new.code == v2.BAD_REQUEST
    async with running(chosen) as live, live.client() as wire:
        user = live.node.metadata.users["orders"]
        assert live.node.keys.key.open("orders", user.former) == SECRET.encode()
        await put(wire, "orders", secret="third-secret")
        user = live.node.metadata.users["orders"]
        assert (user.former, user.former_until_ms) == (b"", 0), "at once, without an overlap"
