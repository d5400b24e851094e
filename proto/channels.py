"""gRPC channels between the nodes of a cluster: their options, and detection of a lost
cancellation.

The options guarantee that a restarted peer is dialled again within two seconds (gRPC's own backoff
grows to minutes) and that a dead connection is closed within ten seconds even if no packet reports
the failure: a host that vanished, a container restarted with another address. (The kernel would
keep such a connection for a quarter of an hour.) The name is then resolved again; gRPC would reuse
the old address for half a minute. Source: docs/formats/ha.md, section 6.11.
"""

import asyncio
from typing import Final

PEER_OPTIONS: Final = (
    # Each channel has its own connection: backoff of one channel does not delay another.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name, the minimum time that one connection attempt is given.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # gRPC uses this value (default: one minute) instead of the keepalive timeout above.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # The caller decides about retries; a hidden retry would duplicate a send.
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)


def cancel_requests() -> int:
    """Return the number of pending cancellation requests of the running task.

    If `task.cancel()` is called in the same loop iteration in which a call ends, grpcio drops the
    cancellation and raises the call's error instead; a loop that retries after errors would then
    never end. A higher number after a call than before it means that the error replaced a
    cancellation. (The opposite also occurs: closing a channel raises asyncio.CancelledError in its
    calls although no cancellation was requested.)
    """
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
