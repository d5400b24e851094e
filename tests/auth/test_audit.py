"""The audit log: a line for each administrative call, served or refused; no secrets."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.auth.signature import authorization
from cometmq.broker.access.audit import target_of
from cometmq.broker.access.audit_topic import AUDIT_TOPIC, AuditTopic
from cometmq.proto import paths, v1, v2
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.tests.broker.classic.test_classic_access import signed as classic_signed
from cometmq.tests.broker.classic_wire import message, port_of
from cometmq.tests.broker.live import Live, create_topic, running, settings
from cometmq.tests.fuzz.costly import REQUESTS
from cometmq.tests.harness.wire import Wire, normal_message
from cometmq.tests.remoting.client import RemotingClient

TIME = "20261123T060428Z"
PULL = {
    **{"queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4", "subVersion": "0"},
    **{"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"},
}


def signed(live: Live, user: str, secret: str) -> Wire:
    wire = live.client(f"{user}@1")
    header = authorization(user, secret, TIME)
    wire.metadata = (*wire.metadata, ("x-mq-date-time", TIME), ("authorization", header))
    return wire


def secured(tmp_path: Path, **broker: Any) -> Any:
    return settings(
        tmp_path / "store",
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user='{"username":"admin","password":"admin-secret"}',
        **broker,
    )


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


async def test_each_administrative_call_has_a_line(tmp_path: Path) -> None:
    file = tmp_path / "log" / "audit.log"
    async with running(secured(tmp_path, audit_log_file=str(file))) as live:
        async with signed(live, "admin", "admin-secret") as wire:
            assert (await create_topic(wire, "orders")).code == v2.OK
            gone = v1.DeleteTopicRequest(name="missing")
            await wire.call(paths.DELETE_TOPIC, gone, v1.DeleteTopicResponse)
            looked = v1.DeleteTopicRequest(name="orders", dry_run=True)
            await wire.call(paths.DELETE_TOPIC, looked, v1.DeleteTopicResponse)
            user = v1.PutUserRequest(name="orders", secret="orders-secret")
            await wire.call(paths.PUT_USER, user, v1.UserResponse)
            await wire.call(paths.LIST_USERS, v1.ListUsersRequest(), v1.ListUsersResponse)
        async with signed(live, "orders", "orders-secret") as wire:
            assert (await create_topic(wire, "more")).code == v2.UNAUTHORIZED
    assert file.stat().st_mode & 0o777 == 0o600
    assert "orders-secret" not in file.read_text()
    rows = [(row["user"], row["call"], row["target"], row["code"]) for row in lines(file)]
    assert rows == [
        ("admin", "CreateTopic", "orders", v2.OK),
        ("admin", "DeleteTopic", "missing", v2.TOPIC_NOT_FOUND),
        ("admin", "PutUser", "orders", v2.OK),
        ("orders", "CreateTopic", "more", v2.UNAUTHORIZED),
    ]
    assert all(row["from"].startswith("127.0.0.1:") for row in lines(file))
    assert all(row["time"].endswith("Z") for row in lines(file))


async def entries(wire: Wire, key: str = "audit") -> v1.QueryMessagesResponse:
    asked = v1.QueryMessagesRequest(topic=AUDIT_TOPIC, key=key)
    found: v1.QueryMessagesResponse = await wire.call(
        paths.QUERY_MESSAGES, asked, v1.QueryMessagesResponse
    )
    return found


def bodies(answer: v1.QueryMessagesResponse) -> list[dict[str, Any]]:
    return [json.loads(v2.Message.FromString(each.message).body) for each in answer.messages]


async def test_the_audit_topic_holds_each_line_for_tools_with_cluster_rights(
    tmp_path: Path,
) -> None:
    async with running(secured(tmp_path, audit_topic_enable=True)) as live:
        async with signed(live, "admin", "admin-secret") as wire:
            assert (await create_topic(wire, "orders")).code == v2.OK
            user = v1.PutUserRequest(name="worker", secret="worker-secret")
            await wire.call(paths.PUT_USER, user, v1.UserResponse)
            everything = v1.AclPolicy(resource="Topic:*", actions=3, allow=True)
            granted = v1.PutPolicyRequest(user="worker", policy=everything)
            await wire.call(paths.PUT_POLICY, granted, v1.UserResponse)
        async with signed(live, "worker", "worker-secret") as wire:
            assert (await create_topic(wire, "more")).code == v2.UNAUTHORIZED
            assert (await entries(wire)).code == v2.UNAUTHORIZED
            forged = v2.Message(topic=v2.Resource(name=AUDIT_TOPIC), body=b"{}")
            forged.system_properties.message_id = "ID"
            sent = await wire.call(
                paths.SEND_MESSAGE,
                v2.SendMessageRequest(messages=[forged]),
                v2.SendMessageResponse,
            )
            assert sent.status.code == v2.ILLEGAL_TOPIC
        async with signed(live, "admin", "admin-secret") as wire:
            found = bodies(await entries(wire))
            assert [(row["user"], row["call"], row["target"], row["code"]) for row in found] == [
                ("admin", "CreateTopic", "orders", v2.OK),
                ("admin", "PutUser", "worker", v2.OK),
                ("admin", "PutPolicy", "worker", v2.OK),
                ("worker", "CreateTopic", "more", v2.UNAUTHORIZED),
                ("worker", "QueryMessages", AUDIT_TOPIC, v2.UNAUTHORIZED),
            ]
            assert bodies(await entries(wire, "orders")) == found[:1]


async def test_a_flood_of_refused_calls_adds_a_bounded_number_of_entries(tmp_path: Path) -> None:
    async with running(secured(tmp_path, audit_topic_enable=True)) as live:
        started_ns = live.node.runtime.clock.steady_ns()
        async with live.client() as wire:
            for n in range(100):
                assert (await create_topic(wire, f"t{n}")).code == v2.UNAUTHORIZED
        seconds = (live.node.runtime.clock.steady_ns() - started_ns) / 1e9
        written = live.node.store.writer.next_offset(AUDIT_TOPIC, 0)
        assert 10 <= written <= 11 + 10 * seconds
        assert live.node.runtime.counters.audit_dropped["rate"] == 100 - written
        async with signed(live, "admin", "admin-secret") as wire:
            assert (await create_topic(wire, "orders")).code == v2.OK
            assert bodies(await entries(wire))[-1]["target"] == "orders"


async def test_denials_of_all_calls_have_lines_in_both_protocols(tmp_path: Path) -> None:
    file = tmp_path / "log" / "audit.log"
    chosen = secured(tmp_path, audit_log_file=str(file), remoting_listen_port=-1)
    async with running(chosen) as live:
        async with signed(live, "admin", "admin-secret") as wire:
            user = v1.PutUserRequest(name="worker", secret="worker-secret")
            await wire.call(paths.PUT_USER, user, v1.UserResponse)
        async with signed(live, "worker", "worker-secret") as wire:
            assert (await wire.send([normal_message("orders", "ID", b"x")])).status.code
            settings = v2.Settings(publishing=v2.Publishing(topics=[v2.Resource(name="orders")]))
            stream = wire.channel.stream_stream(paths.TELEMETRY)(metadata=wire.metadata)
            await stream.write(v2.TelemetryCommand(settings=settings).SerializeToString())
            await stream.read()
            stream.cancel()
        async with RemotingClient(port_of(live)) as client:
            for command in (
                message(b="orders"),
                Command(Request.PULL_MESSAGE, {**PULL, "topic": "orders", "consumerGroup": "g"}),
                Command(Request.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "g", "clientId": "c"}),
            ):
                answer = await client.post(classic_signed(command, "worker", "worker-secret"))
                assert answer.code == Reply.NO_PERMISSION
            direct = Command(
                Request.CONSUME_MESSAGE_DIRECTLY,
                {"consumerGroup": "g", "clientId": "c", "msgId": "m"},
            )
            await client.post(classic_signed(direct, "admin", "admin-secret"))
            await client.post(message())  # not signed
    rows = [(row["user"], row["call"], row["target"], row["code"]) for row in lines(file)][1:]
    assert rows == [
        ("worker", "SendMessage", "orders", v2.UNAUTHORIZED),
        ("worker", "Telemetry", "", v2.UNAUTHORIZED),
        ("worker", "SEND_MESSAGE_V2", "orders", Reply.NO_PERMISSION),
        ("worker", "PULL_MESSAGE", "orders", Reply.NO_PERMISSION),
        ("worker", "CONSUME_MESSAGE_DIRECTLY", "g", Reply.NO_PERMISSION),
        ("admin", "CONSUME_MESSAGE_DIRECTLY", "g", Reply.SYSTEM_ERROR),
        ("", "SEND_MESSAGE_V2", "orders", Reply.NO_PERMISSION),
    ]


@pytest.mark.parametrize("reads", [False, True])
async def test_what_tools_read_has_lines_if_that_is_chosen(tmp_path: Path, reads: bool) -> None:
    file = tmp_path / "log" / "audit.log"
    chosen = secured(tmp_path, audit_log_file=str(file), remoting_listen_port=-1, audit_reads=reads)
    async with running(chosen) as live:
        async with signed(live, "admin", "admin-secret") as wire:
            await wire.call(paths.LIST_USERS, v1.ListUsersRequest(), v1.ListUsersResponse)
            call = wire.channel.unary_stream(paths.READ_LOG)
            asked = v1.ReadLogRequest().SerializeToString()
            assert [each async for each in call(asked, metadata=wire.metadata, timeout=20)]
        async with RemotingClient(port_of(live)) as client:
            view = Command(Request.VIEW_MESSAGE_BY_ID, {"offset": "0"})
            await client.post(classic_signed(view, "admin", "admin-secret"))
    rows = [(row["user"], row["call"], row["target"]) for row in lines(file)]
    expected = [("ListUsers", ""), ("ReadLog", ""), ("VIEW_MESSAGE_BY_ID", "0")]
    assert rows == [("admin", *each) for each in expected if reads]


@pytest.mark.parametrize("path", sorted(REQUESTS))
def test_each_request_has_a_target_that_is_text(path: str) -> None:
    request = REQUESTS[path]()
    assert target_of(request) == ""
    for field in request.DESCRIPTOR.fields:
        if field.type == field.TYPE_STRING and not field.is_repeated:
            setattr(request, field.name, "orders")
        elif field.name in ("topic", "group"):
            getattr(request, field.name).name = "orders"
        elif field.name == "messages" and field.is_repeated:
            request.messages.add()
        elif field.name == "messages":
            request.messages = 5
    assert target_of(request) in ("", "orders")


def test_a_follower_appends_nothing() -> None:
    dropped: Counter[str] = Counter()
    parts: Any = SimpleNamespace(is_leader=False, steady_ns=lambda: 0)
    topic = AuditTopic(
        clock=parts, leadership=parts, system_topics=parts, appender=parts, dropped=dropped
    )
    entry: Any = {"code": v2.OK}
    topic.write(entry, "{}")
    assert not dropped
