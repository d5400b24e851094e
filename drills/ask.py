"""Direct calls of a drill to its nodes, bypassing the proxies: small, blocking, never retried.

None or an empty result means that the node did not answer in time; drills poll.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from ..proto import paths, v1, v2

WITHIN_S = 2.0
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),  # minimum time per attempt
)
#: Of clusters on several hosts; others need none.
TOKEN = "the-token-of-the-drills"
_METADATA = (
    ("x-mq-client-id", "drill@1"),
    ("x-mq-language", "PYTHON"),
    ("x-cometmq-token", TOKEN),
)
_channels: dict[str, Any] = {}


def _channel(address: str) -> Any:
    channel = _channels.get(address)
    if channel is None:
        channel = _channels[address] = grpc.insecure_channel(address, options=_OPTIONS)
    return channel


def forget(prefix: str) -> None:
    """Close the connections to a stopped cluster."""
    for address in [address for address in list(_channels) if address.startswith(prefix)]:
        channel = _channels.pop(address, None)
        if channel is not None:
            channel.close()


def call(
    address: str, path: str, request: Any, answer: type[Any], within_s: float = WITHIN_S
) -> Any:
    """Make one unary call. Raises grpc.RpcError."""
    channel = _channel(address)
    method = channel.unary_unary(
        path,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=answer.FromString,
    )
    try:
        return method(request, timeout=within_s, metadata=_METADATA)
    except grpc.RpcError as error:
        # The next call opens a new channel. A call on a channel that has failed returns at once,
        # and gRPC continues to connect only while a call waits. Other threads may be using the
        # channel: the last of them closes it.
        failed = error.code() is grpc.StatusCode.UNAVAILABLE
        if failed and _channels.get(address) is channel:
            _channels.pop(address, None)
        raise


def quietly(
    address: str, path: str, request: Any, answer: type[Any], within_s: float = WITHIN_S
) -> Any:
    """Make one unary call; return None if it fails."""
    try:
        return call(address, path, request, answer, within_s)
    except grpc.RpcError:
        return None


def status(address: str) -> Any:
    """Return a replica's v1.ReplicaStatus."""
    return quietly(address, paths.REPLICA_STATUS, v1.StatusRequest(), v1.ReplicaStatus)


def groups(address: str) -> Sequence[Any]:
    """Return every v1.GroupReport of a nameserver."""
    found = quietly(address, paths.GET_GROUPS, v1.GetGroupRequest(), v1.GroupsResponse)
    return [] if found is None else list(found.groups)


def registered_set(address: str, group: str) -> list[str]:
    """Return the uuids of the in-sync set that a nameserver has of a static group."""
    found = quietly(address, paths.GET_CLUSTER, v1.GetClusterRequest(), v1.GetClusterResponse)
    routes = [] if found is None else found.groups
    return [uuid for one in routes if one.group == group for uuid in one.in_sync.replica_uuids]


def create_group(address: str, name: str, *, orderly: bool = False) -> Any:
    """Create a consumer group; raises grpc.RpcError."""
    request = v1.CreateGroupRequest(name=name, orderly=orderly)
    return call(address, paths.CREATE_GROUP, request, v1.CreateGroupResponse, 10.0)


def process_exited(address: str, request: Any) -> bool:
    """Report the end of a broker's process to a nameserver."""
    found = quietly(address, paths.PROCESS_EXITED, request, v1.ProcessExitedResponse)
    return found is not None


def members(address: str) -> Sequence[Any]:
    """Return every v1.MemberStatus of a broker's view."""
    request = v1.DescribeClusterRequest()
    found = quietly(address, paths.DESCRIBE_CLUSTER, request, v1.DescribeClusterResponse)
    return [] if found is None else list(found.members)


def in_sync(address: str) -> list[int]:
    """Return the broker ids of the in-sync set of the leader at this address."""
    return sorted(int(m.replica.broker_id) for m in members(address) if m.in_sync)


def create_topic(address: str, name: str, *, kind: int = v2.FIFO, queues: int = 4) -> Any:
    """Create a topic; raises grpc.RpcError."""
    request = v1.CreateTopicRequest(name=name, queues=queues, message_type=kind)
    return call(address, paths.CREATE_TOPIC, request, v1.CreateTopicResponse, 10.0)


def fault(address: str, identity: str, **fields: Any) -> Any:
    """Inject a fault through testHooks. Raises grpc.RpcError."""
    request = v1.PutFaultRequest(fault=v1.Fault(id=identity, **fields))
    return call(address, paths.PUT_FAULT, request, v1.PutFaultResponse)


def clear_faults(address: str) -> Any:
    """Remove every injected fault."""
    return quietly(address, paths.CLEAR_FAULTS, v1.ClearFaultsRequest(), v1.ClearFaultsResponse)


def set_clock(address: str, wall_ms: int) -> Any:
    """Step the wall clock of a broker."""
    request = v1.SetClockRequest(wall_ms=wall_ms)
    return call(address, paths.SET_CLOCK, request, v1.ClockResponse)


def clock(address: str) -> Any:
    """Return the clock of a broker."""
    return call(address, paths.GET_CLOCK, v1.GetClockRequest(), v1.ClockResponse)
