"""A channel to a peer for single calls, made anew after a failure.

A name may mean another address by then (containers come back with exchanged addresses), and the library goes on with the
address that it has for as long as anybody answers there: the call would reach the wrong process, and nobody would
notice. A new channel looks the name up. Calls that are under way on the old one have the time that they were given.

Promises: a call ends with its answer or with an RpcError. The library cancels what is still under way when a channel
closes, and tells so by CancelledError: whoever waited would take it for his own cancellation, and his task would end.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from ...proto.peers import PEER_OPTIONS, cancel_requests

#: Later than this after its time is over, a call on a channel that was replaced is cut off.
_CLOSE_LATE_S = 1.0


class RedialedChannel:
    """To one `host:port`; used on one loop."""

    def __init__(self, target: str, options: Sequence[tuple[str, int]] = ()) -> None:
        self._target = target
        self._options = (*PEER_OPTIONS, *options)
        self._channel: Any = None
        self._longest_s = 0.0  #: that a call was given
        self._closing: set[asyncio.Task[None]] = set()

    async def call(self, path: str, request: bytes, metadata: Any, timeout_s: float) -> bytes:
        """One call. Raises grpc.aio.AioRpcError; the next one dials then."""
        if self._channel is None:
            self._channel = grpc.aio.insecure_channel(self._target, options=self._options)
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
            if channel is self._channel:  # else another call was the first to notice
                self.redial()
            if cancel_requests() > asked_to_end:
                raise asyncio.CancelledError from None
            raise
        return answer

    def redial(self) -> None:
        """The next call looks the name up."""
        channel, self._channel = self._channel, None
        if channel is not None:
            closing = channel.close(self._longest_s + _CLOSE_LATE_S)
            task = asyncio.get_running_loop().create_task(closing)
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Let all connections go, with what they carry."""
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
