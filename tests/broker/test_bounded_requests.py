"""Large requests: refused before they are decoded, or served in short turns of the event loop."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from cometmq.broker.clients import registry
from cometmq.broker.clients.settings_rate import SETTINGS_MAX
from cometmq.broker.clients.stacks import ClientStacks
from cometmq.broker.clients.telemetry import TelemetryService
from cometmq.broker.messages.decompress import DECOMPRESSED_BYTES_MAX
from cometmq.broker.pop import turn
from cometmq.broker.pop.turn import ANSWER_BYTES_MAX
from cometmq.broker.proxy.telemetry import ProxySession
from cometmq.broker.sending.send_queue import SLICE_MESSAGES
from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.front.context import RequestContext
from cometmq.proto import paths, v1, v2
from cometmq.proto.errors import INVALID_ARGUMENT, RESOURCE_EXHAUSTED, RpcFailure, WireError
from cometmq.proto.native import is_available
from cometmq.proto.request_limits import ACKS_MAX, MESSAGES_MAX, SEND_BYTES_MAX
from cometmq.store import query
from cometmq.tests.broker.desk import Desk, desk, message, parse_received, resource
from cometmq.tests.broker.live import Live, create_topic, nameserver, running, settings
from cometmq.tests.broker.pull.test_pull import pull
from cometmq.tests.harness.wire import Wire

DOORS = ["grpcio"] + (["native"] if is_available() else [])


@pytest.fixture(params=DOORS)
async def live(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Live]:
    """A broker behind each door."""
    async with running(settings(tmp_path), door=DoorConfig(front_door=request.param)) as one:
        yield one


async def raw_call(wire: Wire, path: str, raw: bytes, answer: type[Any]) -> Any:
    """Send encoded bytes as they are."""
    call = wire.channel.unary_unary(path, response_deserializer=answer.FromString)
    return await call(raw, timeout=20.0, metadata=wire.metadata)


async def test_a_request_with_too_many_messages_is_refused_and_stores_nothing(live: Live) -> None:
    async with live.client() as wire:
        await create_topic(wire, "t", queues=1)
        some = [message("t", b"x", f"ID{number}") for number in range(MESSAGES_MAX + 1)]
        refused = await wire.send(some, 20.0)
        assert (refused.status.code, len(refused.entries)) == (v2.PAYLOAD_TOO_LARGE, 0)
        assert live.node.store.max_offset("t", 0) == 0
        sent = await wire.send(some[1:], 20.0)
        assert (sent.status.code, len(sent.entries)) == (v2.OK, MESSAGES_MAX)


async def test_the_bodies_of_a_request_fit_into_one_message(live: Live) -> None:
    async with live.client() as wire:
        await create_topic(wire, "t", queues=1)
        some = [message("t", bytes(400_000), f"ID{number}") for number in range(11)]
        refused = await wire.send(some, 20.0)
        assert refused.status.code == v2.MESSAGE_BODY_TOO_LARGE
        assert (await wire.send(some[:10], 20.0)).status.code == v2.OK


async def test_a_request_far_above_the_body_limit_is_refused_by_its_length(live: Live) -> None:
    async with live.client() as wire:
        await create_topic(wire, "t", queues=1)
        some = [message("t", bytes(DoorConfig().front_max_receive_message_size), "ID")]
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await wire.send(some, 20.0)
        assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        refused = await wire.send([message("t", bytes(SEND_BYTES_MAX), "ID")], 20.0)
        assert refused.status.code == v2.MESSAGE_BODY_TOO_LARGE
        assert str(SEND_BYTES_MAX) in refused.status.message, "the request was decoded"


@pytest.mark.parametrize("door", DOORS)
async def test_a_door_accepts_the_largest_body_of_the_store(tmp_path: Path, door: str) -> None:
    size = 20 << 20
    config = settings(tmp_path)
    config = replace(
        config,
        store=replace(config.store, max_message_size=size, mapped_file_size_commit_log=2 * size),
    )
    async with (
        running(config, door=DoorConfig(front_door=door)) as one,
        one.client() as wire,
    ):
        await create_topic(wire, "t", queues=1)
        sent = await wire.send([message("t", bytes(size), "ID")], 20.0)
        assert sent.status.code == v2.OK


async def test_an_ack_with_too_many_handles_is_refused(live: Live) -> None:
    async with live.client() as wire:
        await create_topic(wire, "t", queues=1)
        entry = v2.AckMessageEntry(message_id="m", receipt_handle="0 0 30000 0 0 broker-a 0 0 0")
        request = v2.AckMessageRequest(topic=resource("t"), group=resource("g"))
        request.entries.extend([entry] * (ACKS_MAX + 1))
        answer = await wire.call(paths.ACK_MESSAGE, request, v2.AckMessageResponse)
        assert (answer.status.code, len(answer.entries)) == (v2.BAD_REQUEST, 0)


async def test_a_heartbeat_and_a_query_with_very_many_elements_are_refused(live: Live) -> None:
    async with live.client() as wire:
        beat = v2.HeartbeatRequest(client_type=v2.PRODUCER).SerializeToString()
        topics = b"\x1a\x03\x12\x01t" * 200_000
        answer = await raw_call(wire, paths.HEARTBEAT, beat + topics, v2.HeartbeatResponse)
        assert answer.status.code == v2.PAYLOAD_TOO_LARGE
        keys = v1.GetConfigRequest(keys=["brokerName"] * 300_000).SerializeToString()
        listed = await raw_call(wire, paths.GET_CONFIG, keys, v1.GetConfigResponse)
        assert (listed.code, len(listed.entries)) == (v2.PAYLOAD_TOO_LARGE, 0)


async def test_large_settings_end_the_stream_and_leave_the_client_unregistered(live: Live) -> None:
    async with live.client() as wire:
        stream = wire.channel.stream_stream(paths.TELEMETRY)(metadata=wire.metadata)
        many = [v2.Resource(name=f"t{number}") for number in range(5_000)]
        command = v2.TelemetryCommand(
            settings=v2.Settings(client_type=v2.PRODUCER, publishing=v2.Publishing(topics=many))
        )
        await stream.write(command.SerializeToString())
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            while await stream.read() is not grpc.aio.EOF:
                pass
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        client = live.node.clients.get("wire@1")
        assert client is None or not client.has_settings


async def test_a_setting_that_is_named_often_is_returned_once(live: Live) -> None:
    async with live.client() as wire:
        request = v1.GetConfigRequest(keys=["brokerName"] * 4_000)
        answer = await wire.call(paths.GET_CONFIG, request, v1.GetConfigResponse)
        assert [entry.key for entry in answer.entries] == ["brokerName"]


async def test_a_route_does_not_repeat_a_long_namespace(live: Live) -> None:
    async with live.client() as wire, nameserver() as address, Wire(address) as other:
        await create_topic(wire, "t", queues=256)
        topic = v2.Resource(name="t", resource_namespace="n" * 50_000)
        request = v2.QueryRouteRequest(topic=topic)
        for each in (wire, other):
            answer = await each.call(paths.QUERY_ROUTE, request, v2.QueryRouteResponse)
            assert (answer.status.code, len(answer.message_queues)) == (v2.ILLEGAL_TOPIC, 0)
        assign = v2.QueryAssignmentRequest(topic=topic, group=resource("g"))
        found = await wire.call(paths.QUERY_ASSIGNMENT, assign, v2.QueryAssignmentResponse)
        assert found.status.code == v2.ILLEGAL_TOPIC
        request.topic.resource_namespace = "n" * 100
        answer = await wire.call(paths.QUERY_ROUTE, request, v2.QueryRouteResponse)
        assert len(answer.message_queues) == 256
        assert {queue.topic.resource_namespace for queue in answer.message_queues} == {"n" * 100}


async def test_lists_have_pages(live: Live) -> None:
    async with live.client() as wire:
        for name in ("c", "a", "b"):
            await create_topic(wire, name, queues=1)
            group = v1.CreateGroupRequest(name=f"g-{name}")
            await wire.call(paths.CREATE_GROUP, group, v1.CreateGroupResponse)
        topics = v1.ListTopicsRequest(limit=2)
        answer = await wire.call(paths.LIST_TOPICS, topics, v1.ListTopicsResponse)
        assert ([each.name for each in answer.topics], answer.more) == (["a", "b"], True)
        topics.after = "b"
        answer = await wire.call(paths.LIST_TOPICS, topics, v1.ListTopicsResponse)
        assert ([each.name for each in answer.topics], answer.more) == (["c"], False)
        groups = v1.ListGroupsRequest(limit=2, after="g-a")
        listed = await wire.call(paths.LIST_GROUPS, groups, v1.ListGroupsResponse)
        assert ([each.name for each in listed.groups], listed.more) == (["g-b", "g-c"], False)
        assert len(listed.progress) == 2


async def send_compressed(one: Desk, size: int, count: int) -> bytes:
    """Send messages whose bodies decompress to `size` bytes; return one as sent."""
    body = zlib.compress(bytes(size))
    for number in range(count):
        answer = await one.send(message("t", body, f"ID{number}", body_encoding=v2.GZIP))
        assert answer.status.code == v2.OK
    await one.dispatched()
    return body


async def test_decompressed_bodies_count_towards_the_limit_of_a_pull(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        size = ANSWER_BYTES_MAX // 2 + 1
        await send_compressed(one, size, 5)
        offset, sizes = 0, []
        while offset < 5:
            code, bodies, following = await pull(one, offset)
            assert code == v2.OK and following is not None
            sizes.append([len(body) for body in bodies])
            offset = following
        assert sizes == [[size, size], [size, size], [size]]


async def test_a_body_that_expands_too_far_is_delivered_as_stored_and_ends_the_answer(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        body = await send_compressed(one, DECOMPRESSED_BYTES_MAX + 1, 3)
        assert await pull(one, 0) == (v2.OK, [body], 1)
        received = await one.receive("t", "g")
        assert received.bodies == [body]


async def test_an_append_of_many_messages_leaves_the_rest_to_later_turns(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        sender = one.node.sender
        some = [message("t", b"body", f"ID{number}") for number in range(SLICE_MESSAGES)]
        request = v2.SendMessageRequest(messages=some)
        answers = []
        for _ in range(3):
            ctx = one.context()
            ctx.request_bytes = request.ByteSize()
            answers.append(sender.send(request, ctx))
        assert sender.waiting == 3
        ends = []
        while sender.waiting:
            await asyncio.sleep(0)
            ends.append(one.node.store.log_end)
        assert len(set(ends)) >= 3, "the requests were appended in one turn"
        for answer in answers:
            found = v2.SendMessageResponse.FromString(await answer)
            assert len(found.entries) == SLICE_MESSAGES
            assert found.status.code == v2.OK


async def test_received_messages_do_not_repeat_a_long_namespace(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"body")
        request = one.receive_request("t", "g")
        request.message_queue.topic.resource_namespace = "n" * 3_000
        with pytest.raises(Exception, match="namespace"):
            one.node.receiving.receive(request, one.context())
        assert parse_received(await one.start_receive("t", "g")).bodies == [b"body"]


class HurriedClock(Clock):
    """A clock on which every step takes as long as a turn of the loop may take."""

    def steady_ns(self) -> int:
        self.now_ns = getattr(self, "now_ns", 0) + 10_000_000
        return self.now_ns


class StoppedClock(Clock):
    """A clock on which no time passes."""

    def steady_ns(self) -> int:
        return 0


class Sent:
    """The sending side of a telemetry stream."""

    finished = False

    def __init__(self) -> None:
        self.commands: list[v2.TelemetryCommand] = []
        self.error: RpcFailure | None = None

    def send(self, command: v2.TelemetryCommand) -> None:
        self.commands.append(command)

    def finish(self, error: RpcFailure | None = None) -> None:
        self.finished, self.error = True, error


def consumer_settings(*expressions: str) -> v2.TelemetryCommand:
    entries = [
        v2.SubscriptionEntry(
            topic=resource("t"), expression=v2.FilterExpression(type=v2.SQL, expression=text)
        )
        for text in expressions
    ]
    subscription = v2.Subscription(group=resource("g"), subscriptions=entries)
    settings = v2.Settings(client_type=v2.SIMPLE_CONSUMER, subscription=subscription)
    return v2.TelemetryCommand(settings=settings)


async def test_settings_with_many_filters_are_checked_in_several_turns(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        service = TelemetryService(
            HurriedClock(),
            one.node.metadata,
            one.node.clients,
            4 << 20,
            forward=None,
            stacks=ClientStacks(),
        )
        outbound: Any = Sent()
        session = service.open(one.context("many@1"), outbound)
        checking = session.receive(consumer_settings("a = 1", "b = 2", "c = 3"))
        assert checking is not None and not outbound.commands
        await checking
        assert [command.status.code for command in outbound.commands] == [v2.OK]
        checking = session.receive(consumer_settings("d = 1", "e = 2", "f ="))
        assert checking is not None
        await checking
        assert outbound.error.grpc_code == INVALID_ARGUMENT


async def test_a_stream_with_too_many_settings_ends(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        service = TelemetryService(
            StoppedClock(),
            one.node.metadata,
            one.node.clients,
            4 << 20,
            forward=None,
            stacks=ClientStacks(),
        )
        outbound: Any = Sent()
        session = service.open(one.context("many@1"), outbound)
        for _ in range(SETTINGS_MAX + 10):
            session.receive(consumer_settings("a = 1"))
        assert outbound.error.grpc_code == RESOURCE_EXHAUSTED
        assert len(outbound.commands) == SETTINGS_MAX


def test_a_stream_with_too_many_settings_ends_at_a_proxy() -> None:
    class Owner:
        """The proxy behind the session, without brokers."""

        def __init__(self) -> None:
            self.forwarded: list[v2.TelemetryCommand] = []

        def opened(self, _ctx: RequestContext, _outbound: Any) -> None:
            pass

        def forward(self, _ctx: RequestContext, command: v2.TelemetryCommand) -> None:
            self.forwarded.append(command)

    owner: Any = Owner()
    outbound: Any = Sent()
    session = ProxySession(owner, StoppedClock(), context("many@1"), outbound)
    for _ in range(SETTINGS_MAX + 10):
        session.receive(consumer_settings("a = 1"))
    assert outbound.error.grpc_code == RESOURCE_EXHAUSTED
    assert len(owner.forwarded) == SETTINGS_MAX


async def test_the_settings_of_all_clients_have_a_total_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "LARGE_SETTINGS_BYTES_MAX", 20_000)
    clients = registry.ClientRegistry(expiry_ms=1_000, limit=10)
    first, second = (clients.seen(context(name), 0) for name in ("a", "b"))
    clients.reserve(first, 15_000)
    clients.reserve(second, registry.SMALL_SETTINGS_BYTES)
    with pytest.raises(WireError) as refusal:
        clients.reserve(second, 15_000)
    assert refusal.value.code == v2.TOO_MANY_REQUESTS
    clients.reserve(first, 100)
    clients.reserve(second, 15_000)
    clients.forget("b")
    clients.reserve(first, 20_000)


def context(client_id: str) -> RequestContext:
    return RequestContext(client_id, "PYTHON", "5.1.2")


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_search_that_takes_long_continues_in_later_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, orderly: bool
) -> None:
    """A turn reads one queue here; the message may be in any of eight."""
    monkeypatch.setattr(turn, "_TURN_NS", 0)
    async with desk(tmp_path) as one:
        one.topic("t", queues=8)
        one.group("g", orderly=orderly)
        await one.sent("t", *(f"{number}".encode() for number in range(8)))
        got: set[bytes] = set()
        while len(got) < 8:
            received = await one.receive("t", "g", invisible_ms=60_000)
            assert received.code == v2.OK
            got.update(received.bodies)


async def test_queries_read_a_bounded_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "READ_BYTES_MAX", 5_000)
    async with desk(tmp_path) as one:
        one.topic("t")
        for number in range(8):
            assert (
                await one.send(message("t", bytes(1_500), f"ID{number}", keys=["k"]))
            ).status.code == v2.OK
        await one.dispatched()
        found = one.node.store.queries.find(query.KeyQuery("t", "k", 64))
        assert [record.queue_offset for record in found] == [5, 6, 7]
