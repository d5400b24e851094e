"""Channel for single calls to a peer, reconnected after a failure.

A name may resolve to another address later (containers return with exchanged addresses), and gRPC
keeps the old address as long as any process answers there: the call would reach the wrong process
unnoticed. A new channel resolves the name again. Calls in progress on the old channel keep their
time limit.

A call ends with its answer or with an RpcError. gRPC cancels calls in progress when a channel
closes and raises CancelledError, which the caller would take for its own cancellation; it is
converted here.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from ...nodes.node_links import NodeLinks
from ...proto.channels import PEER_OPTIONS, cancel_requests

#: Calls on a replaced channel are cut off this long after their time limit.
_CLOSE_LATE_S = 1.0


class RedialedChannel:
    """Channel to one `host:port`; used on one event loop."""

    def __init__(
        self, target: str, links: NodeLinks, options: Sequence[tuple[str, int]] = ()
    ) -> None:
        self._target = target
        self._links = links
        self._options = (*PEER_OPTIONS, *options)
        self._channel: Any = None
        self._longest_s = 0.0  #: of any call
        self._closing: set[asyncio.Task[None]] = set()

    async def call(self, path: str, request: bytes, metadata: Any, timeout_s: float) -> bytes:
        """Call once. Raises grpc.aio.AioRpcError; then the next call reconnects."""
        if self._channel is None:
            self._channel = self._links.channel(self._target, self._options)
        channel = self._channel
        self._longest_s = max(self._longest_s, timeout_s)
        asked_to_end = cancel_requests()
        try:
            method = channel.unary_unary(path)
            answer: bytes = await method(request, metadata=metadata, timeout=timeout_s)
        except asyncio.CancelledError:
            if cancel_requests() > asked_to_end:
                raise
            raise _closed(self._target) from None
        except grpc.RpcError:
            if channel is self._channel:  # else another call already replaced it
                self.redial()
            if cancel_requests() > asked_to_end:
                raise asyncio.CancelledError from None
            raise
        return answer

    def redial(self) -> None:
        """Let the next call resolve the name again."""
        channel, self._channel = self._channel, None
        if channel is not None:
            closing = channel.close(self._longest_s + _CLOSE_LATE_S)
            task = asyncio.get_running_loop().create_task(closing)
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all connections with their calls."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)


def _closed(target: str) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    text = f"the connection to {target} was closed"
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, details=text)
