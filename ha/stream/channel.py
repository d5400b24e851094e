"""gRPC options of replication streams, and the recognition of a lost stream."""

import asyncio
from contextlib import suppress
from typing import Any

import grpc

from ..config import MAX_FRAME_BYTES


def channel_options(window_bytes: int) -> list[tuple[str, int]]:
    """Return the options for both ends. There is no keepalive: heartbeats detect a dead peer
    sooner."""
    return [
        ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
        ("grpc.max_send_message_length", MAX_FRAME_BYTES),
        # HTTP/2 sends a whole window before the first byte is read: no stall on long links.
        ("grpc.http2.lookahead_bytes", window_bytes),
        ("grpc.so_reuseport", 0),
        # `stream/follower.py` decides when to reconnect, not the library.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def is_stream_end(error: BaseException) -> bool:
    """Return whether `error` only reports a lost stream: gRPC raises several types for that."""
    if isinstance(error, grpc.RpcError | asyncio.InvalidStateError):
        return True
    return type(error).__module__.partition(".")[0] == "grpc"


async def raise_status(call: Any) -> None:
    """Raise the status of an ended call, unless it is OK."""
    code = await call.code()
    if code is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            code,
            await call.initial_metadata(),
            await call.trailing_metadata(),
            details=await call.details(),
        )


async def read_to_end(read: Any, seconds: float) -> None:
    """Read until the peer closes the stream after its last frame, within a time limit."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while await read() is not grpc.aio.EOF:
                pass
