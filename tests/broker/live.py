"""Real brokers in the test's process and loop: ephemeral ports, own directories, a movable
clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc.aio

from cometmq.broker.assembly.parts import Broker
from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.lifecycle import Bound
from cometmq.broker.server import BrokerServer
from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.ha.config import HaConfig
from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.nodes.tls_config import TlsConfig
from cometmq.proto import paths, v1, v2
from cometmq.store.config.store_config import StoreConfig
from cometmq.tests.harness.wire import WITHIN_S, Wire

SEGMENT = 1 << 20
#: A door that answers a held request long before its deadline: a stall of the machine does not turn
#: the refusal into DEADLINE_EXCEEDED. Calls whose hold is to end in vain take HELD_S.
SHORT_HOLDS = DoorConfig(front_door="grpcio", front_forward_hold_margin=5_000)
HELD_S = 5.5


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a broker; `replace` creates variants."""

    broker: BrokerConfig
    store: StoreConfig
    ha: HaConfig


def settings(directory: Path, **broker: Any) -> Settings:
    """Return settings with ephemeral ports, small segments, loopback only."""
    changed = {
        "bind_address": "127.0.0.1",
        "grpc_server_port": 0,
        "metrics_prom_exporter_port": 0,
        "test_hooks": True,
        # A machine that is busy with other tests may stall longer than the default wait of a send.
        "wait_time_mills_in_send_queue": 10_000,
        "authentication_clock_skew": 0,  # tests sign a fixed time
        **broker,
    }
    return Settings(
        BrokerConfig(**changed),
        StoreConfig(
            store_path_root_dir=str(directory),
            mapped_file_size_commit_log=SEGMENT,
            # A stop reads the slots of the index: of the default size for 10 ms.
            max_hash_slot_num=10_000,
            max_index_num=40_000,
            # Nor does a stall or a slow disk refuse a send.
            os_page_cache_busy_time_out_mills=60_000,
            sync_flush_timeout=60_000,
        ),
        HaConfig(ha_listen_port=0, ha_reconnect_max_ms=200),
    )


def follower_of(leader: Bound, directory: Path, **broker: Any) -> Settings:
    """Return settings of a slave that dials a leader's replication port."""
    base = settings(directory, broker_id=1, **broker)
    ha = replace(base.ha, broker_role="SLAVE", ha_master_address=leader.ha)
    return replace(base, ha=ha)


@dataclass(slots=True)
class Live:
    """A running broker."""

    server: BrokerServer
    bound: Bound

    @property
    def node(self) -> Broker:
        """Its parts."""
        return self.server.broker

    def client(self, client_id: str = "wire@1", language: str = "PYTHON") -> Wire:
        """Return a connection to its client port."""
        return Wire(self.bound.client, client_id, language)


@asynccontextmanager
async def running(
    chosen: Settings,
    clock: Clock | None = None,
    door: DoorConfig | None = None,
    tls: TlsConfig | None = None,
) -> AsyncIterator[Live]:
    """Start a broker; stop it cleanly at the end."""
    door = door or DoorConfig(front_door="grpcio")
    server = BrokerServer(chosen.broker, chosen.store, chosen.ha, door, clock, tls=tls)
    bound = await server.start()
    try:
        yield Live(server, bound)
    finally:
        await server.stop(1.0)


@asynccontextmanager
async def nameserver(token: str = "", **options: Any) -> AsyncIterator[str]:
    """Run a nameserver; yield HOST:PORT."""
    config = NameserverConfig(
        bind_address="127.0.0.1", listen_port=0, cluster_token=token, **options
    )
    server = NameserverServer(config)
    address = await server.start()
    try:
        yield address
    finally:
        await server.stop(0.5)


async def until(test: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until `test` returns a true value."""
    for _ in range(int(seconds * 100)):
        if test():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {seconds:g} s")


async def create_topic(
    wire: Wire, name: str, *, within_s: float = WITHIN_S, **fields: Any
) -> v1.CreateTopicResponse:
    """Call CreateTopic; return the response with any code."""
    request = v1.CreateTopicRequest(name=name, **fields)
    answer: v1.CreateTopicResponse = await wire.call(
        paths.CREATE_TOPIC, request, v1.CreateTopicResponse, within_s
    )
    return answer


async def create_group(wire: Wire, name: str, **fields: Any) -> v1.CreateGroupResponse:
    """Call CreateGroup; return the response with any code."""
    request = v1.CreateGroupRequest(name=name, **fields)
    answer: v1.CreateGroupResponse = await wire.call(
        paths.CREATE_GROUP, request, v1.CreateGroupResponse
    )
    return answer


async def route(wire: Wire, topic: str, dialled: str = "") -> v2.QueryRouteResponse:
    """Call QueryRoute."""
    request = v2.QueryRouteRequest(topic=v2.Resource(name=topic))
    for address in dialled.split(";") if dialled else ():
        host, _, port = address.rpartition(":")
        request.endpoints.addresses.add(host=host, port=int(port))
    answer: v2.QueryRouteResponse = await wire.call(
        paths.QUERY_ROUTE, request, v2.QueryRouteResponse
    )
    return answer


async def assignment(wire: Wire, topic: str, group: str) -> v2.QueryAssignmentResponse:
    """Call QueryAssignment."""
    request = v2.QueryAssignmentRequest(
        topic=v2.Resource(name=topic), group=v2.Resource(name=group)
    )
    answer: v2.QueryAssignmentResponse = await wire.call(
        paths.QUERY_ASSIGNMENT, request, v2.QueryAssignmentResponse
    )
    return answer


def telemetry(wire: Wire) -> Any:
    """Return an open telemetry stream."""
    call = wire.channel.stream_stream(
        paths.TELEMETRY,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=v2.TelemetryCommand.FromString,
    )
    return call(metadata=wire.metadata)


RpcError = grpc.aio.AioRpcError
