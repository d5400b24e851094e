"""A real nameserver on a real port: registration, routes, tokens, refusals."""

import errno
import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from cometmq.front.errors import PortInUseError
from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.proto import paths, v1, v2

CLIENT = (("x-mq-client-id", "test"), ("x-mq-language", "JAVA"))


class Caller:
    """Calls one nameserver."""

    def __init__(self, channel: Any, token: str) -> None:
        self.channel = channel
        self.token = token
        self.sequence = 0

    async def call(self, path: str, request: Any, answer: Any, **more: Any) -> Any:
        method = self.channel.unary_unary(path, response_deserializer=answer.FromString)
        token = more.pop("token", self.token)
        pairs = (*CLIENT, ("x-cometmq-token", token)) if token else CLIENT
        return await method(request.SerializeToString(), metadata=pairs, timeout=60, **more)

    async def register(self, broker_id: int = 0, **more: Any) -> v1.RegisterResponse:
        self.sequence += 1
        request = v1.RegisterRequest(
            replica=v1.ReplicaIdentity(
                cluster="c",
                group="broker-a",
                broker_id=broker_id,
                replica_uuid=more.pop("uuid", f"uuid-{broker_id}"),
                incarnation=1,
            ),
            addresses=v1.ReplicaAddresses(client=f"127.0.0.1:{8081 + 2 * broker_id}"),
            role=v1.FOLLOWER if broker_id else v1.LEADER,
            epoch=1,
            registration_seq=self.sequence,
            table_version=1,
            full=True,
            topics=[
                v1.TopicRoute(name="orders", read_queues=2, write_queues=2, perm=6, message_type=1)
            ],
        )
        if in_sync := more.pop("in_sync", None):
            request.in_sync.CopyFrom(in_sync)
        answer: v1.RegisterResponse = await self.call(
            paths.REGISTER, request, v1.RegisterResponse, **more
        )
        return answer

    async def route(self, topic: str) -> v2.QueryRouteResponse:
        request = v2.QueryRouteRequest(topic=v2.Resource(name=topic))
        answer: v2.QueryRouteResponse = await self.call(
            paths.QUERY_ROUTE, request, v2.QueryRouteResponse
        )
        return answer

    async def cluster(self, known: int = 0) -> v1.GetClusterResponse:
        request = v1.GetClusterRequest(known_version=known)
        answer: v1.GetClusterResponse = await self.call(
            paths.GET_CLUSTER, request, v1.GetClusterResponse
        )
        return answer


@asynccontextmanager
async def nameserver(token: str = "the-token-of-the-tests", **more: Any) -> AsyncIterator[Caller]:
    config = NameserverConfig(bind_address="127.0.0.1", listen_port=0, cluster_token=token, **more)
    server = NameserverServer(config)
    address = await server.start()
    channel: Any = grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
    try:
        yield Caller(channel, token)
    finally:
        await channel.close()
        await server.stop(1.0)


async def refused(call: Awaitable[Any]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return failure.value


async def test_clients_and_brokers_read_what_brokers_registered() -> None:
    async with nameserver() as caller:
        assert not (await caller.register(0)).need_full
        version = (await caller.register(1)).cluster_version
        route = await caller.route("orders")
        assert route.status.code == v2.OK
        assert [queue.id for queue in route.message_queues] == [0, 1]
        addresses = route.message_queues[0].broker.endpoints.addresses
        assert [address.port for address in addresses] == [8081, 8083]
        cluster = await caller.cluster()
        assert cluster.version == version
        assert [member.alive for member in cluster.groups[0].members] == [True, True]
        assert [topic.name for topic in cluster.groups[0].topics] == ["orders"]
        assert (await caller.cluster(version)).unchanged


async def test_an_in_sync_set_is_known_after_a_restart_without_its_leader(tmp_path: Path) -> None:
    directory = str(tmp_path)
    found = v1.InSyncSet(epoch=1, leader_uuid="uuid-0", incarnation=7, nameservers=3)

    def in_sync(cluster: v1.GetClusterResponse) -> v1.InSyncSet | None:
        return cluster.groups[0].in_sync if cluster.groups[0].HasField("in_sync") else None

    async with nameserver(namesrv_data_dir=directory) as caller:
        for revision in (1, 2):
            found.revision = revision
            found.replica_uuids[:] = ["uuid-0", "uuid-1"][:revision]
            await caller.register(0, in_sync=found)
    async with nameserver(namesrv_data_dir=directory) as caller:
        await caller.register(2, uuid="of-another-group-of-the-name")
        assert in_sync(await caller.cluster()) is None
        await caller.register(1)
        assert in_sync(await caller.cluster()) == found


async def test_an_in_sync_set_that_cannot_be_stored_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    found = v1.InSyncSet(epoch=1, leader_uuid="uuid-0", incarnation=7, revision=1, nameservers=1)
    async with nameserver(namesrv_data_dir=str(tmp_path)) as caller:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", full)
            patch.setattr(os, "fsync", full)
            failure = await refused(caller.register(0, in_sync=found))
        assert failure.code() is grpc.StatusCode.UNAVAILABLE
        assert "the in-sync set of broker-a cannot be stored" in str(failure.details())
        await caller.register(1)
        await caller.register(0, in_sync=found)
    async with nameserver(namesrv_data_dir=str(tmp_path)) as caller:
        await caller.register(0)
        assert (await caller.cluster()).groups[0].in_sync == found


async def test_an_unregistration_is_visible_immediately() -> None:
    async with nameserver() as caller:
        await caller.register(0)
        request = v1.UnregisterRequest(
            replica=v1.ReplicaIdentity(
                cluster="c", group="broker-a", replica_uuid="uuid-0", incarnation=1
            ),
            registration_seq=2,
        )
        await caller.call(paths.UNREGISTER, request, v1.UnregisterResponse)
        members = (await caller.cluster()).groups[0].members
        assert [member.alive for member in members] == [False]


async def test_an_unknown_topic_is_not_found() -> None:
    async with nameserver() as caller:
        assert (await caller.route("nowhere")).status.code == v2.TOPIC_NOT_FOUND
        assert (await caller.route("a b")).status.code == v2.ILLEGAL_TOPIC


@pytest.mark.parametrize("shown", ["", "wrong"])
async def test_a_wrong_token_is_refused(shown: str) -> None:
    async with nameserver() as caller:
        error = await refused(caller.register(0, token=shown))
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "clusterToken" in str(error.details())


def controllers(directory: Path) -> dict[str, Any]:
    """Return the settings of one of three controllers; the others do not run."""
    peers = "127.0.0.1:1,127.0.0.1:2"
    return {"controller": True, "namesrv_data_dir": str(directory), "controller_peers": peers}


@pytest.mark.parametrize(
    "path", [paths.REGISTER, paths.UNREGISTER, paths.GET_CLUSTER, paths.ALTER_ISR, paths.CELL_READ]
)
async def test_a_request_is_not_parsed_before_its_token_is_checked(
    path: str, tmp_path: Path
) -> None:
    async with nameserver(**controllers(tmp_path)) as caller:
        garbage = b"\xff\xff"
        call = caller.channel.unary_unary(path)
        error = await refused(call(garbage, metadata=(("x-cometmq-token", "wrong"),)))
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        error = await refused(
            call(garbage, metadata=(("x-cometmq-token", "the-token-of-the-tests"),))
        )
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_requests_are_limited_by_method(tmp_path: Path) -> None:
    async with nameserver(**controllers(tmp_path)) as caller:
        token = (("x-cometmq-token", "the-token-of-the-tests"),)
        limits = {
            paths.QUERY_ROUTE: 64 << 10,
            paths.GET_CLUSTER: 256 << 10,
            paths.ALTER_ISR: 256 << 10,
            paths.CELL_ACCEPT: (1 << 20) + 4_096,
            paths.REGISTER: 32 << 20,
            "/grpc.health.v1.Health/Check": 16 << 10,
        }
        for path, limit in limits.items():
            call = caller.channel.unary_unary(path)
            error = await refused(call(bytes(limit + 1), metadata=token))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, path
            error = await refused(call(b"\xff" * limit, metadata=token))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, path


async def test_without_a_token_this_machines_brokers_may_register() -> None:
    async with nameserver(token="") as caller:
        assert not (await caller.register(0)).need_full


async def test_a_second_replica_with_the_same_id_gets_the_reason_of_its_refusal() -> None:
    async with nameserver() as caller:
        await caller.register(0)
        error = await refused(caller.register(0, uuid="another"))
        assert error.code() is grpc.StatusCode.ALREADY_EXISTS
        assert "brokerId 0 of group broker-a is held" in str(error.details())


async def test_a_nameserver_with_known_groups_waits_for_them(tmp_path: Path) -> None:
    directory = str(tmp_path / "routes")
    async with nameserver(namesrv_data_dir=directory) as caller:
        await caller.register(0)
    async with nameserver(namesrv_data_dir=directory) as caller:
        error = await refused(caller.route("orders"))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        await caller.register(0)
        assert (await caller.route("orders")).status.code == v2.OK
        assert (await caller.route("nowhere")).status.code == v2.TOPIC_NOT_FOUND


async def test_a_topic_of_a_group_that_is_not_up_is_not_said_to_be_absent(tmp_path: Path) -> None:
    more: dict[str, Any] = {"namesrv_data_dir": str(tmp_path), "wait_for_known_groups": 0}
    request = v1.ForgetGroupRequest(group="broker-a")

    async def forget(caller: Caller) -> v1.ForgetGroupResponse:
        answer: v1.ForgetGroupResponse = await caller.call(
            paths.FORGET_GROUP, request, v1.ForgetGroupResponse
        )
        return answer

    async with nameserver(**more) as caller:
        await caller.register(0)
        assert "has a live replica" in (await forget(caller)).message
    for _ in range(2):  # the second one knows the group from the file alone
        async with nameserver(**more) as caller:
            status = (await caller.route("orders")).status
            assert status.code == v2.PROXY_TIMEOUT
            assert "not: broker-a. Start it, or, if it is gone for good, run" in status.message
            assert list((await caller.cluster()).absent_groups) == ["broker-a"]
    async with nameserver(**more) as caller:
        assert (await forget(caller)).code == v2.OK
        assert (await forget(caller)).code == v2.NOT_FOUND
        assert (await caller.route("orders")).status.code == v2.TOPIC_NOT_FOUND
    async with nameserver(**more) as caller:
        assert (await caller.route("orders")).status.code == v2.TOPIC_NOT_FOUND
        await caller.register(0)
        assert (await caller.route("orders")).status.code == v2.OK


async def test_a_port_in_use_is_reported_with_a_sentence(tmp_path: Path) -> None:
    config = NameserverConfig(bind_address="127.0.0.1", listen_port=0)
    first = NameserverServer(config)
    port = int((await first.start()).rpartition(":")[2])
    second = NameserverServer(
        NameserverConfig(bind_address="127.0.0.1", listen_port=port, namesrv_data_dir=str(tmp_path))
    )
    with pytest.raises(PortInUseError, match=f"Port {port}"):
        await second.start()
    await first.stop(0.0)
