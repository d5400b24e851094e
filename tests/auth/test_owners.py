"""Client ids and producer groups belong to the first user that signs with them, in both protocols;
what is sent to a client is decided by the rights that its user has at that moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from cometmq.auth.model import Policy, ResourcePattern, User, parse_actions
from cometmq.auth.signature import authorization
from cometmq.broker.access.rights import RIGHTS
from cometmq.broker.transactions.records import TransactionId
from cometmq.front.context import RequestContext
from cometmq.proto import paths, v2
from cometmq.proto.errors import WireError
from cometmq.proto.methods import RpcMethod, rpc_methods
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command
from cometmq.tests.broker.classic.test_classic_access import SECRET, guarded, half, request, signed
from cometmq.tests.broker.classic_wire import GROUP, TOPIC, heartbeat, message, port_of, pulling
from cometmq.tests.broker.live import Live, until
from cometmq.tests.harness.wire import receive_request
from cometmq.tests.remoting.client import WAIT_S, RemotingClient

TIME = "20261123T060428Z"
#: Beyond `channelExpiredTimeout`.
SILENCE_NS = 121_000_000_000


class Sink:
    """The sending side of a Telemetry stream."""

    finished = False

    def __init__(self) -> None:
        self.error: Any = None

    def send(self, message: Any) -> None:
        pass

    def finish(self, error: Any = None) -> None:
        self.finished, self.error = True, error


def producing(client_id: str, group: str) -> Command:
    document = {"clientID": client_id, "producerDataSet": [{"groupName": group}]}
    return request(Request.HEART_BEAT, json.dumps(document).encode())


def put(live: Live, name: str, *policies: tuple[str, str]) -> None:
    made = tuple(
        Policy(ResourcePattern.parse(resource), parse_actions(actions), True)
        for resource, actions in policies
    )
    sealed = live.node.keys.key.seal(name, SECRET)
    live.node.metadata.put_user(User(name, sealed, policies=made))


async def ask(live: Live) -> bool:
    """Ask the classic producers about the half message; return whether one was asked."""
    transactions = live.node.transactions
    if transactions.recovery is not None:
        await transactions.recovery.finished.wait()
    found = transactions._find(TransactionId("broker-a", 0, "h"))
    assert found is not None
    record = transactions.halves.record(found)
    assert record is not None
    (asker,) = transactions.askers
    return asker(found, record)


async def test_a_producer_group_belongs_to_its_first_user(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (live, owner), RemotingClient(port_of(live)) as stranger:
        put(live, "stranger")
        assert (await owner.post(signed(producing("p1", "producers"), "p"))).code == Reply.SUCCESS
        taken = await stranger.post(signed(producing("s1", "producers"), "stranger"))
        assert (taken.code, "another user" in (taken.remark or "")) == (Reply.NO_PERMISSION, True)
        again = await owner.post(signed(producing("p2", "producers"), "p"))
        assert again.code == Reply.SUCCESS
        inner = "CLIENT_INNER_PRODUCER"
        for client, user in ((owner, "p"), (stranger, "stranger")):
            beat = signed(producing(f"{user}-inner", inner), user)
            assert (await client.post(beat)).code == Reply.SUCCESS


async def test_a_client_id_belongs_to_its_first_user(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (live, owner), RemotingClient(port_of(live)) as stranger:
        put(live, "stranger", (f"Group:{GROUP}", "Sub"), (f"Topic:{TOPIC}", "Sub"))
        beat = request(Request.HEART_BEAT, heartbeat("c1"))
        assert (await owner.post(signed(replace(beat, fields={}), "c"))).code == Reply.SUCCESS
        queue = {"brokerName": "broker-a", "queueId": 0, "topic": TOPIC}
        locks = json.dumps({"consumerGroup": GROUP, "clientId": "c1", "mqSet": [queue]}).encode()
        for command in (
            beat,
            producing("c1", "others"),
            request(Request.UNREGISTER_CLIENT, clientID="c1", consumerGroup=GROUP),
            request(Request.UNREGISTER_CLIENT, clientID="c1", producerGroup="others"),
            request(Request.LOCK_BATCH_MQ, locks),
            request(Request.UNLOCK_BATCH_MQ, locks),
        ):
            answer = await stranger.post(
                signed(replace(command, fields=dict(command.fields)), "stranger")
            )
            assert answer.code == Reply.NO_PERMISSION, (command, answer.remark)
        left = request(Request.UNREGISTER_CLIENT, clientID="c1", consumerGroup=GROUP)
        assert (await owner.post(signed(left, "c"))).code == Reply.SUCCESS
        inner = "CLIENT_INNER_PRODUCER"
        left = request(Request.UNREGISTER_CLIENT, clientID="c1", producerGroup=inner)
        assert (await owner.post(signed(left, "c"))).code == Reply.SUCCESS
        assert (await stranger.post(signed(beat, "stranger"))).code == Reply.SUCCESS


async def test_a_check_goes_to_a_producer_with_the_right_to_send_only(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (live, client):
        await client.post(signed(half(), "p"))
        await client.post(signed(producing("p1", "producers"), "p"))
        assert await ask(live)
        assert (await client.next_request()).code == Request.CHECK_TRANSACTION_STATE
        put(live, "p", ("Topic:others", "Pub"))
        assert not await ask(live)
        put(live, "p", (f"Topic:{TOPIC}", "Pub"))
        assert await ask(live)
        live.node.metadata.put_user(structs.replace(live.node.metadata.users["p"], enabled=False))
        assert not await ask(live)


async def test_a_reply_goes_to_a_client_whose_user_is_enabled_only(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (live, client):
        await client.post(signed(producing("p1", "producers"), "p"))
        live.node.metadata.put_user(structs.replace(live.node.metadata.users["p"], enabled=False))
        answer = await client.post(signed(replying("p1", "DefaultCluster_REPLY_TOPIC"), "admin"))
        assert "not found" in (answer.remark or "")


def replying(client_id: str, topic: str) -> Command:
    sent = message(properties=f"REPLY_TO_CLIENT\x01{client_id}\x02", b=topic)
    return replace(sent, code=Request.SEND_REPLY_MESSAGE_V2)


async def test_a_right_on_another_topic_does_not_reach_the_clients_of_others(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path) as (live, client):
        put(live, "own", ("Topic:own", "Pub"))
        await client.post(signed(producing("p1", "producers"), "p"))
        codes = []
        for topic in ("own", "DefaultCluster_REPLY_TOPIC"):
            codes.append((await client.post(signed(replying("p1", topic), "own"))).code)
        assert codes == [Reply.INVALID_PARAMETER, Reply.NO_PERMISSION]
        assert client.received.empty()


async def test_a_message_is_not_pushed_to_a_consumer_without_the_right_on_its_topic(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path) as (_, client):
        sent = await client.post(signed(message(b="others", e=0), "admin"))
        await client.post(signed(request(Request.HEART_BEAT, heartbeat("c1")), "c"))
        asked = {"consumerGroup": GROUP, "clientId": "c1", "msgId": sent.fields["msgId"]}
        command = request(Request.CONSUME_MESSAGE_DIRECTLY, **asked)
        assert (await client.post(signed(command, "admin"))).code == Reply.NO_PERMISSION


def context(user: str, client_id: str = "victim@1") -> RequestContext:
    metadata = (
        ("x-mq-client-id", client_id),
        ("authorization", authorization(user, SECRET, TIME)),
        ("x-mq-date-time", TIME),
    )
    return RequestContext(client_id, "JAVA", peer="10.9.8.7:5", metadata=metadata)


def all_methods() -> Iterator[tuple[str, RpcMethod]]:
    """Return the methods that the guard checks."""
    for service in {path.split("/")[1] for path in RIGHTS}:
        for rpc in rpc_methods(service).values():
            if rpc.path in RIGHTS:
                yield rpc.path, rpc


async def test_a_client_id_of_the_grpc_protocol_belongs_to_its_first_user(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (live, _):
        put(live, "stranger", (f"Group:{GROUP}", "Sub"), (f"Topic:{TOPIC}", "Pub,Sub"))
        instance = live.server.instance
        port = instance._client_port
        assert port is not None
        guard = port.guard
        assert guard is not None
        clients = live.node.clients
        own = context("c")
        beat = v2.HeartbeatRequest(group=v2.Resource(name=GROUP), client_type=v2.PUSH_CONSUMER)
        guard.check(paths.HEARTBEAT, beat, own)
        clients.seen(own, live.node.runtime.clock.steady_ns())
        settings = v2.TelemetryCommand(
            settings=v2.Settings(publishing=v2.Publishing(topics=[v2.Resource(name=TOPIC)]))
        )
        for path, asked in (
            (paths.HEARTBEAT, beat),
            (paths.NOTIFY_CLIENT_TERMINATION, v2.NotifyClientTerminationRequest()),
            (paths.TELEMETRY, settings),
        ):
            for check in (guard.check, guard.check_message):
                check(path, asked, context("stranger", "another@1"))
                try:
                    check(path, asked, context("stranger"))
                except WireError as error:
                    assert (error.code, "another user" in error.message) == (v2.UNAUTHORIZED, True)
                else:
                    raise AssertionError(f"{path} with the id of another user's client")
        for path, rpc in all_methods():
            with pytest.raises(WireError, match="another user"):
                guard.check(path, rpc.request(), context("stranger"))
        client = clients.get("victim@1")
        assert client is not None
        client.last_seen_ns -= SILENCE_NS
        guard.check(paths.HEARTBEAT, beat, context("stranger"))


async def test_polls_and_streams_end_when_their_user_loses_the_right(tmp_path: Path) -> None:
    settings_of = v2.TelemetryCommand(
        settings=v2.Settings(
            client_type=v2.PRODUCER, publishing=v2.Publishing(topics=[v2.Resource(name=TOPIC)])
        )
    )
    async with guarded(tmp_path) as (live, client):
        port = live.server.instance._client_port
        assert port is not None
        assert port.guard is not None
        method = live.server.access.services[paths.TELEMETRY]
        sinks = {}
        for user in ("p", "admin"):
            ctx = context(user, f"{user}@1")
            sinks[user] = Sink()
            session: Any = method.handler(ctx, sinks[user])
            session.receive(settings_of.SerializeToString())
        waiting = client.post(
            signed(pulling(sysFlag=6, suspendTimeoutMillis=30_000, queueId=0), "c")
        )
        await until(lambda: any(live.node.pulls._waiters.values()))
        receive = live.server.access.services[paths.RECEIVE_MESSAGE].handler
        asked = receive_request(TOPIC, GROUP, await_s=30.0).SerializeToString()
        polling = asyncio.ensure_future(receive(asked, context("c", "poller@1")))
        await until(lambda: live.node.pop.waiting)
        put(live, "p", ("Topic:others", "Pub"))
        await until(lambda: sinks["p"].error is not None)
        assert not any(live.node.pulls._waiters.values())  # not after 30 s
        assert not live.node.pop.waiting
        await asyncio.wait_for(polling, WAIT_S)
        assert (await asyncio.wait_for(waiting, WAIT_S)).code == Reply.PULL_NOT_FOUND
        assert sinks["admin"].error is None
