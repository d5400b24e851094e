"""The remoting port of a nameserver: requests of tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.nameserver.classic import kv
from cometmq.nameserver.classic.admin import ClassicAdmin
from cometmq.nameserver.routes import RouteTable
from cometmq.remoting.admin_codes import Admin
from cometmq.remoting.bare_json import loads
from cometmq.remoting.codes import Reply
from cometmq.remoting.command import Command
from cometmq.remoting.connection import Connection, RemotingError, Shared
from cometmq.tests.nameserver.test_classic_routes import registration, route, serving
from cometmq.tests.remoting.client import RemotingClient

ORDERED = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}


async def put(client: RemotingClient, value: str = "broker-a:4", **fields: str) -> int:
    found = {**ORDERED, **fields, "value": value}
    return (await client.call(Admin.PUT_KV_CONFIG, **found)).code


async def test_an_entry_is_stored_until_it_is_deleted(tmp_path: Path) -> None:
    async with serving(namesrv_data_dir=str(tmp_path)) as (client, _):
        assert await put(client) == Reply.SUCCESS
    async with serving(namesrv_data_dir=str(tmp_path)) as (client, _):
        answer = await client.call(Admin.GET_KV_CONFIG, **ORDERED)
        assert answer.fields["value"] == "broker-a:4"
        answer = await client.call(Admin.GET_KVLIST_BY_NAMESPACE, **ORDERED)
        assert loads(answer.body) == {"table": {"orders": "broker-a:4"}}
        for _ in range(2):
            assert (await client.call(Admin.DELETE_KV_CONFIG, **ORDERED)).code == Reply.SUCCESS
        answer = await client.call(Admin.GET_KV_CONFIG, **ORDERED)
        assert (answer.code, answer.remark) == (
            Reply.QUERY_NOT_FOUND,
            "No config item, Namespace: ORDER_TOPIC_CONFIG Key: orders",
        )
        answer = await client.call(Admin.GET_KVLIST_BY_NAMESPACE, **ORDERED)
        assert answer.code == Reply.QUERY_NOT_FOUND
    async with serving(namesrv_data_dir=str(tmp_path)) as (client, _):
        assert (await client.call(Admin.GET_KV_CONFIG, **ORDERED)).code == Reply.QUERY_NOT_FOUND


async def test_entries_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "ENTRIES_MAX", 1)
    async with serving() as (client, _):
        assert await put(client, key="k" * 256) == Reply.INVALID_PARAMETER
        assert await put(client, "v" * 4_097) == Reply.INVALID_PARAMETER
        assert await put(client) == Reply.SUCCESS
        assert await put(client, "broker-a:5") == Reply.SUCCESS
        assert await put(client, key="other") == Reply.INVALID_PARAMETER


async def test_the_size_of_all_entries_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv, "TABLE_CHARS_MAX", 100)
    async with serving() as (client, _):
        assert await put(client, "v" * 50) == Reply.SUCCESS
        assert await put(client, "v" * 50, key="other") == Reply.INVALID_PARAMETER


@pytest.mark.parametrize("peer", ["127.0.0.1:5", "[::1]:5", "10.1.2.3:5", ""])
@pytest.mark.parametrize("token", [True, False])
async def test_with_a_cluster_token_changes_come_from_this_machine_only(
    peer: str, token: bool
) -> None:
    clock = Clock()
    connection = Connection(Shared({}, DoorConfig(), clock))
    connection.peer = peer
    routes = RouteTable(expiry_ns=1, retention_ns=1, first_version=1)
    admin = ClassicAdmin(lambda: routes, kv.KvConfig(""), {}, local_changes=token)
    handlers = admin.handlers()
    refused = token and peer in ("10.1.2.3:5", "")
    for code in (Admin.WIPE_WRITE_PERM_OF_BROKER, Admin.ADD_WRITE_PERM_OF_BROKER):
        command = Command(code, {"brokerName": "broker-a"})
        if refused:
            with pytest.raises(RemotingError, match="clusterToken") as raised:
                handlers[code](command, connection)
            assert raised.value.code == Reply.NO_PERMISSION
        else:
            assert handlers[code](command, connection).code == Reply.SUCCESS
    for code in (Admin.PUT_KV_CONFIG, Admin.DELETE_KV_CONFIG):
        command = Command(code, {**ORDERED, "value": "v"})
        if refused:
            with pytest.raises(RemotingError, match="clusterToken"):
                handlers[code](command, connection)
        else:
            assert (await handlers[code](command, connection)).code == Reply.SUCCESS
    assert handlers[Admin.GET_NAMESRV_CONFIG](Command(0), connection).code == Reply.SUCCESS


async def test_an_entry_that_cannot_be_stored_does_not_count(tmp_path: Path) -> None:
    async with serving(namesrv_data_dir=str(tmp_path)) as (client, _):
        (tmp_path / "kv-config.tmp").mkdir()
        assert await put(client) == Reply.INVALID_PARAMETER
        assert (await client.call(Admin.GET_KV_CONFIG, **ORDERED)).code == Reply.QUERY_NOT_FOUND


async def test_routes_name_ordered_queues_if_the_setting_is_on() -> None:
    for enabled in (True, False):
        async with serving(registration(), order_message_enable=enabled) as (client, _):
            await put(client)
            found = json.loads((await route(client, "orders")).body)
            assert found.get("orderTopicConf") == ("broker-a:4" if enabled else None)


async def test_producers_are_directed_to_other_groups() -> None:
    async with serving(registration(), registration("broker-b")) as (client, _):

        async def permissions() -> dict[str, int]:
            found = json.loads((await route(client, "orders")).body)
            return {queues["brokerName"]: queues["perm"] for queues in found["queueDatas"]}

        answer = await client.call(Admin.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
        assert answer.fields == {"wipeTopicCount": "1"}
        assert await permissions() == {"broker-a": 4, "broker-b": 6}
        answer = await client.call(Admin.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
        assert answer.fields == {"addTopicCount": "1"}
        assert await permissions() == {"broker-a": 6, "broker-b": 6}
        answer = await client.call(Admin.WIPE_WRITE_PERM_OF_BROKER, brokerName="none")
        assert (answer.code, answer.fields) == (Reply.SUCCESS, {"wipeTopicCount": "0"})


async def test_settings_are_listed_without_secrets() -> None:
    async with serving(cluster_token="the-secret-of-tests") as (client, _):
        answer = await client.call(Admin.GET_NAMESRV_CONFIG)
        lines = answer.body.decode().splitlines()
        assert "bindAddress=127.0.0.1" in lines
        assert "clusterToken=(hidden)" in lines
        answer = await client.call(318, b"listenPort=1\n")
        assert answer.code == Reply.REQUEST_CODE_NOT_SUPPORTED
        assert "change namesrv.conf and restart it" in (answer.remark or "")


async def test_lists_of_unit_topics_are_empty() -> None:
    async with serving(registration()) as (client, _):
        for code in (
            Admin.GET_UNIT_TOPIC_LIST,
            Admin.GET_HAS_UNIT_SUB_TOPIC_LIST,
            Admin.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        ):
            assert loads((await client.call(code)).body) == {"topicList": []}
        assert (await client.call(Admin.DELETE_TOPIC_IN_NAMESRV, topic="x")).code == Reply.SUCCESS
