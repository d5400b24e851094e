"""One call to another node: a nameserver, or the replication port of a replica."""

import asyncio
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from ...nodes.node_links import NodeLinks
from ...proto.channels import PEER_OPTIONS, cancel_requests
from .channel import is_stream_end

R = TypeVar("R", bound=Message)

_SILENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class NodeCallError(Exception):
    """The node did not answer, or sent an invalid answer."""

    def __init__(self, text: str, *, silent: bool) -> None:
        """`silent`: nothing answers at the address."""
        super().__init__(text)
        self.silent = silent


async def call_node(
    links: NodeLinks, address: str, path: str, request: Message, kind: type[R], *, timeout_s: float
) -> R:
    """Return the answer of HOST:PORT. Raises NodeCallError."""
    asked_to_end = cancel_requests()
    try:
        async with links.channel(address, PEER_OPTIONS) as channel:
            call: Any = channel.unary_unary(path)
            metadata = links.metadata(address)
            raw = await call(request.SerializeToString(), timeout=timeout_s, metadata=metadata)
            return kind.FromString(raw)
    except DecodeError as error:
        raise NodeCallError(f"{address} sent an invalid message", silent=False) from error
    except Exception as error:
        if cancel_requests() > asked_to_end:
            raise asyncio.CancelledError from None
        if not is_stream_end(error):
            raise
        code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
        details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
        raise NodeCallError(f"{address}: {details}", silent=code in _SILENT) from error
