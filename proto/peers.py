"""How a process of a cluster dials another: gRPC options of every channel that outlives one exchange, and one thing
that whoever waits for a call has to know.

Promises: a peer that came back is dialled within two seconds (the library's own backoff grows to minutes); a
connection that carries nothing any more is given up within ten seconds, also where no packet says so - a host that
vanished, a container that came back with another address - because the kernel itself would keep it for a quarter
of an hour; then its name is looked up anew (the library would use what it knew for half a minute).
Source: HA note, section 6.11.
"""

import asyncio
from typing import Final

PEER_OPTIONS: Final = (
    # A connection of its own: an attempt of another channel to the same address decides nothing here.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # The least time that one attempt to connect gets, whatever its name says.
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # The library goes by this one (one minute), whatever the line above says.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # The caller decides about repetition; hidden retries would double a send.
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)


def cancel_requests() -> int:
    """How often the running task was asked to end.

    grpcio loses such a request when it comes in the turn in which the call ends by itself: the waiting task gets the
    call's error instead, and whoever calls again after errors never ends. More requests after a call than before it
    mean that the error stands for a cancellation. (A call that is cancelled with its channel is the opposite: an
    asyncio.CancelledError that nobody asked for.)
    """
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
