"""Connections from this node to others: a bounded pool of grpc.aio channels, one for each address.

They come back fast after a restart of the other side (the library's own backoff grows to minutes) and
find a dead peer by keepalive (HA note, section 6.11). The connection that was unused longest is
closed when there are too many; calls on it may still end.
"""

import asyncio
from collections import OrderedDict
from typing import Any

import grpc
import grpc.aio

from ..proto.peers import PEER_OPTIONS
from .config import DoorConfig

# A call that began on a connection that is pushed out of the pool has this long to end.
_EVICTED_GRACE_S = 30.0
# Who owns nothing any more answers what it has at once, or not at all.
_DROPPED_GRACE_S = 0.5
_MAKE = {
    (False, False): "unary_unary",
    (False, True): "unary_stream",
    (True, True): "stream_stream",
}


class _Peer:
    """One address: its channel, and the callables that were made on it."""

    __slots__ = ("calls", "channel")

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.calls: dict[str, Any] = {}


class ChannelPool:
    """Used on the event loop only; bytes in, bytes out."""

    def __init__(self, config: DoorConfig) -> None:
        self._config = config
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def call(
        self, address: str, path: str, *, requests: bool = False, answers: bool = False
    ) -> Any:
        """What starts a call of this path there; `requests` and `answers` say which side streams."""
        peer = self._peer(address)
        call = peer.calls.get(path)
        if call is None:
            call = getattr(peer.channel, _MAKE[requests, answers])(path)
            peer.calls[path] = call
        return call

    def ready(self, address: str) -> bool:
        """The connection stands. Asking starts one where there is none."""
        state = self._peer(address).channel.get_state(try_to_connect=True)
        return bool(state is grpc.ChannelConnectivity.READY)

    def failing(self, address: str) -> bool:
        """Connecting to it has just failed; nothing is known of one that was never tried."""
        peer = self._peers.get(address)
        if peer is None:
            return False
        return bool(peer.channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE)

    def __len__(self) -> int:
        return len(self._peers)

    async def close(self) -> None:
        """Close all, calls in flight included."""
        peers, self._peers = self._peers, OrderedDict()
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        for peer in peers.values():
            await peer.channel.close()

    def drop(self, address: str) -> None:
        """Nothing new goes over the connection; what it carries ends within half a second."""
        peer = self._peers.pop(address, None)
        if peer is not None:
            self._let_go(peer, _DROPPED_GRACE_S)

    def distrust(self, address: str, path: str, call: Any) -> None:
        """Somebody else answers over the connection of this call: `drop` it, unless a newer one took its place."""
        peer = self._peers.get(address)
        if peer is not None and peer.calls.get(path) is call:
            self.drop(address)

    def _let_go(self, peer: _Peer, grace_s: float) -> None:
        task = asyncio.get_running_loop().create_task(peer.channel.close(grace_s))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _peer(self, address: str) -> _Peer:
        peer = self._peers.get(address)
        if peer is None:
            channel = grpc.aio.insecure_channel(address, options=_options(self._config))
            peer = self._peers[address] = _Peer(channel)
            if len(self._peers) > self._config.front_forward_channels:
                _, oldest = self._peers.popitem(last=False)
                self._let_go(oldest, _EVICTED_GRACE_S)
        else:
            self._peers.move_to_end(address)
        return peer


def _options(config: DoorConfig) -> list[tuple[str, int]]:
    return [
        *PEER_OPTIONS,
        # A request that came in must go out, and an answer that went out there must come in here.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", config.front_max_receive_message_size),
    ]
