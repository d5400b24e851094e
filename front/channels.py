"""Connections from this node to others: a bounded pool of grpc.aio channels, one for each address.

Channels use `PEER_OPTIONS` (`proto/channels.py`). When there are too many, the least recently used
one is closed after a grace time for its calls. After a change of this node's certificate a channel
is replaced when its connection is lost: an open connection goes on.
"""

import asyncio
from collections import OrderedDict
from typing import Any

import grpc
import grpc.aio

from ..nodes.node_links import NodeLinks
from ..proto.channels import PEER_OPTIONS
from .config import DoorConfig

# Grace time for the calls of a channel that is evicted from the pool.
_EVICTED_GRACE_S = 30.0
# Grace time for the calls to a node that owns nothing any more.
_DROPPED_GRACE_S = 0.5
#: Bytes of an answer of another node: far above the largest, a message with its decompressed body.
_ANSWER_BYTES_MAX = 130 << 20
_KEEPALIVE = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
_KEEPALIVE_MS = 2_000
_MAKE = {
    (False, False): "unary_unary",
    (False, True): "unary_stream",
    (True, True): "stream_stream",
}


class _Peer:
    """One address: its channel, and the gRPC callables created on it, by path."""

    __slots__ = ("calls", "channel", "credentials")

    def __init__(
        self, channel: grpc.aio.Channel, credentials: grpc.ChannelCredentials | None
    ) -> None:
        self.channel = channel
        self.credentials = credentials
        self.calls: dict[str, Any] = {}

    def is_outdated(self, links: NodeLinks) -> bool:
        """Return True if the channel must connect again and would use a former certificate."""
        return (
            self.credentials is not None
            and self.channel.get_state() is not grpc.ChannelConnectivity.READY
            and self.credentials is not links.credentials()
        )


class ChannelPool:
    """The pool. Used on the event loop only; requests and answers are bytes."""

    def __init__(self, config: DoorConfig, links: NodeLinks) -> None:
        self._config = config
        self._links = links
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def call(
        self, address: str, path: str, *, requests: bool = False, answers: bool = False
    ) -> Any:
        """Return the gRPC callable; `requests` and `answers` are True for the side that streams."""
        peer = self._peer(address)
        call = peer.calls.get(path)
        if call is None:
            call = getattr(peer.channel, _MAKE[requests, answers])(path)
            peer.calls[path] = call
        return call

    def ready(self, address: str) -> bool:
        """Return True if the channel is connected; otherwise start to connect."""
        state = self._peer(address).channel.get_state(try_to_connect=True)
        return bool(state is grpc.ChannelConnectivity.READY)

    def failing(self, address: str) -> bool:
        """Return True if the last attempt to connect failed; False for an unused address."""
        peer = self._peers.get(address)
        if peer is None:
            return False
        return bool(peer.channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE)

    def __len__(self) -> int:
        return len(self._peers)

    async def close(self) -> None:
        """Close all channels and cancel their calls."""
        peers, self._peers = self._peers, OrderedDict()
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)
        for peer in peers.values():
            await peer.channel.close()

    def drop(self, address: str, *, at_once: bool = False) -> None:
        """Remove the channel from the pool; its calls have half a second to end, or no time."""
        peer = self._peers.pop(address, None)
        if peer is not None:
            self._close_later(peer, 0.0 if at_once else _DROPPED_GRACE_S)

    def drop_all(self) -> None:
        """Remove all channels; their calls have half a second to end."""
        for address in list(self._peers):
            self.drop(address)

    def distrust(self, address: str, path: str, call: Any) -> None:
        """Drop the channel of `call`, unless the pool has already replaced it.

        Called when another node answers at the address.
        """
        peer = self._peers.get(address)
        if peer is not None and peer.calls.get(path) is call:
            self.drop(address)

    def _close_later(self, peer: _Peer, grace_s: float) -> None:
        task = asyncio.get_running_loop().create_task(peer.channel.close(grace_s))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _peer(self, address: str) -> _Peer:
        peer = self._peers.get(address)
        if peer is not None and peer.is_outdated(self._links):
            self.drop(address)
            peer = None
        if peer is None:
            channel = self._links.channel(address, _options(self._config))
            peer = self._peers[address] = _Peer(channel, self._links.credentials())
            if len(self._peers) > self._config.front_forward_channels:
                _, oldest = self._peers.popitem(last=False)
                self._close_later(oldest, _EVICTED_GRACE_S)
        else:
            self._peers.move_to_end(address)
        return peer


def _options(config: DoorConfig) -> list[tuple[str, int]]:
    return [
        *PEER_OPTIONS,
        # Clients wait for a forwarded request: a node that vanished is noticed sooner than on the
        # streams of replication. The kernel closes a connection with unacknowledged bytes after
        # the same time (TCP_USER_TIMEOUT).
        *((name, _KEEPALIVE_MS) for name in _KEEPALIVE),
        # Requests and answers that the other node accepts must pass here too.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", _ANSWER_BYTES_MAX),
    ]
