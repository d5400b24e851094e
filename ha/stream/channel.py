"""What both ends of a replication stream know about gRPC: its options, and how it says "gone"."""

import asyncio
from contextlib import suppress
from typing import Any

import grpc

from ..config import MAX_FRAME_BYTES


def channel_options(window_bytes: int) -> list[tuple[str, int]]:
    """For both ends. Beats find a dead peer sooner than keepalive would, so there is none."""
    return [
        ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
        ("grpc.max_send_message_length", MAX_FRAME_BYTES),
        # HTTP/2 lets a whole window travel before the first byte is read: no stall on long links.
        ("grpc.http2.lookahead_bytes", window_bytes),
        ("grpc.so_reuseport", 0),
        # Every attempt dials anew: the pause between attempts is ours, not the library's.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def is_stream_end(error: BaseException) -> bool:
    """Whether `error` only says that the stream is gone: gRPC has several ways, depending on where it
    notices."""
    if isinstance(error, grpc.RpcError | asyncio.InvalidStateError):
        return True
    return type(error).__module__.partition(".")[0] == "grpc"


async def raise_status(call: Any) -> None:
    """Raise the status of a call that has ended, unless it is OK."""
    code = await call.code()
    if code is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(
            code,
            await call.initial_metadata(),
            await call.trailing_metadata(),
            details=await call.details(),
        )


async def read_to_end(read: Any, seconds: float) -> None:
    """The other side has something to read and closes the stream then; it has so much time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while await read() is not grpc.aio.EOF:
                pass
