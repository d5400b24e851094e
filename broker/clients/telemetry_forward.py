"""Telemetry forwarding: connects leaders with clients whose telemetry stream is on another node.

A client may use any node; commands for it (transaction checks, lite topics that it lost) come from
the leader of the group that holds the message. For each client with a stream here, the node opens
one stream in the client's name to each leader concerned: to the leader of its own group while this
node follows it, and, for a producer, to the leaders of other groups that hold its topics
(docs/formats/front-door.md). Such a stream starts with the client's last settings; the
client's answers go to every leader, and a leader's commands go to the client's own stream.

Promises: the leaders' answers to settings are dropped (this node has answered already); a stream
that breaks, or whose leader changed, is reopened within two seconds; the client is never delayed.
Bounded by the clients with a stream here (`maxClients`), with `_ANSWERS_MAX` queued answers each;
further answers are dropped, and the leader repeats its command.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from msgspec import Struct, field

from ...front.admission import forward_mark
from ...front.channels import ChannelPool
from ...front.service import OutboundFull
from ...proto import paths, v2
from ...proto.channels import cancel_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...front.clock import Clock
    from ...front.config import DoorConfig
    from ...front.context import RequestContext
    from ...nodes.node_links import NodeLinks
    from ..base.cluster_view import ClusterView
    from .registry import ClientRegistry

logger = logging.getLogger(__name__)

_ANSWERS_MAX = 16
_RETRY_FIRST_S, _RETRY_MAX_S = 0.1, 2.0
# Streams to a returning leader are opened over some time: thousands at once would block both loops.
_OPENED_A_SECOND = 5_000
# Interval at which settings are repeated as a heartbeat: a leader of another group receives none of
# the client's heartbeats, and removes it after `channelExpiredTimeout` (two minutes).
_REPEAT_S = 45.0
_LOST = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


class ForwardedClient(Struct):
    """A client with a stream here."""

    client_id: str
    peer: str
    metadata: tuple[tuple[str, str], ...]
    settings: bytes = b""
    topics: frozenset[str] = frozenset()
    #: By the leader's address.
    links: dict[str, _Link] = field(default_factory=dict)


class _Link(Struct):
    """The stream of one client to one leader."""

    task: asyncio.Task[None] | None = None
    pending: asyncio.Event = field(default_factory=asyncio.Event)
    #: Settings to send; empty if they were sent.
    settings: bytes = b""
    answers: deque[bytes] = field(default_factory=lambda: deque(maxlen=_ANSWERS_MAX))


class TelemetryForward:
    """All streams of this node to leaders in the names of clients."""

    def __init__(
        self,
        *,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        clients: ClientRegistry,
        cluster: ClusterView,
        config: DoorConfig,
        leads: Callable[[], bool],
        links: NodeLinks,
    ) -> None:
        """`leads` returns whether this node leads its own group; a proxy never does."""
        self._clock = clock
        self._loop = loop
        self._clients = clients
        self._cluster = cluster
        self._leads = leads
        self._links = links
        self._pool = ChannelPool(config, links)
        self._forwarded: dict[str, ForwardedClient] = {}
        #: Whether this node led, and each group's leader, when all clients were connected last.
        self._connected_to: tuple[bool, dict[str, str]] = False, {}
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        """Return the number of streams that are open or being opened."""
        return sum(len(client.links) for client in self._forwarded.values())

    def forward(self, ctx: RequestContext, command: v2.TelemetryCommand) -> None:
        """Forward a valid command of a client."""
        client = self._forwarded.get(ctx.client_id)
        if command.HasField("settings"):
            if client is None:
                client = self._forwarded[ctx.client_id] = ForwardedClient(
                    ctx.client_id, ctx.peer, ctx.metadata
                )
            client.metadata = ctx.metadata
            client.settings = command.SerializeToString()
            client.topics = self._topics_of(command.settings)
            for link in client.links.values():
                link.settings = client.settings
                link.pending.set()
            self._connect(client)
        elif client is not None:
            for link in client.links.values():
                link.answers.append(command.SerializeToString())
                link.pending.set()

    def _topics_of(self, settings: v2.Settings) -> frozenset[str]:
        """Return the topics that decide to which leaders a client is connected."""
        return frozenset(topic.name for topic in settings.publishing.topics)

    def forget(self, client_id: str) -> None:
        """End the streams of a client without a stream here."""
        client = self._forwarded.pop(client_id, None)
        if client is not None:
            for link in client.links.values():
                self._end(link)

    def cluster_changed(self) -> None:
        """Connect clients again after a change of leaders or topics."""
        groups = self._cluster.groups
        leaders = {name: group.leader() for name, group in groups.items()}
        addresses = {name: leader.client for name, leader in leaders.items() if leader}
        now = self._leads(), addresses
        if len(groups) == 1 and now == self._connected_to:
            return  # topics matter only among several groups
        self._connected_to = now
        for client in self._forwarded.values():
            self._connect(client)

    async def close(self) -> None:
        """End all streams."""
        self._closed = True
        for client_id in list(self._forwarded):
            self.forget(client_id)
        for task in self._connecting.values():
            task.cancel()
        await asyncio.gather(*self._ending, *self._connecting.values(), return_exceptions=True)
        await self._pool.close()

    def _connect(self, client: ForwardedClient) -> None:
        """Open streams to the leaders concerned, and end all others."""
        if self._closed:
            return
        wanted = set(self._leaders(client))
        for address in client.links.keys() - wanted:
            self._end(client.links.pop(address))
        for address in wanted - client.links.keys():
            link = client.links[address] = _Link(settings=client.settings)
            link.task = self._loop.create_task(self._maintain(client, link, address))

    def _leaders(self, client: ForwardedClient) -> Iterable[str]:
        view = self._cluster
        own = view.own().leader()
        if not self._leads() and own is not None:
            yield own.client
        for name, group in view.groups.items():
            leader = group.leader()
            if name != view.own_group and leader and not client.topics.isdisjoint(group.topics):
                yield leader.client

    def _end(self, link: _Link) -> None:
        task = link.task
        if task is not None and not task.done():
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _maintain(self, client: ForwardedClient, link: _Link, address: str) -> None:
        """Keep the stream open until the link is ended."""
        delay_s = _RETRY_FIRST_S
        metadata = (*client.metadata, *forward_mark(self._links, address, client.peer))
        while True:
            await self._connected(address)
            start = self._pool.call(address, paths.TELEMETRY, requests=True, answers=True)
            link.settings = client.settings
            link.pending.set()
            answered = False
            call = None
            try:
                call = start(metadata=metadata)
                answered = await self._exchange(client, link, call)
            except _LOST as error:
                logger.debug("telemetry.link_lost leader=%s error=%s", address, error)
            finally:
                if call is not None:
                    call.cancel()
            if cancel_requests():
                raise asyncio.CancelledError
            delay_s = _RETRY_FIRST_S if answered else min(_RETRY_MAX_S, 2 * delay_s)
            await asyncio.sleep(delay_s)

    async def _connected(self, address: str) -> None:
        """Wait for a connection; one task connects for all waiting streams."""
        if self._pool.ready(address):
            return
        task = self._connecting.get(address)
        if task is None:
            task = self._loop.create_task(self._wait_ready(address))
            self._connecting[address] = task
            task.add_done_callback(lambda _: self._connecting.pop(address, None))
        await asyncio.shield(task)
        await asyncio.sleep(random.random() * min(_RETRY_MAX_S, len(self) / _OPENED_A_SECOND))

    async def _wait_ready(self, address: str) -> None:
        ready, wanted = self._pool.ready, self._wanted
        while not ready(address) and wanted(address):  # noqa: ASYNC110 - one poll for all streams
            await asyncio.sleep(_RETRY_FIRST_S)

    def _wanted(self, address: str) -> bool:
        return any(address in client.links for client in self._forwarded.values())

    async def _exchange(self, client: ForwardedClient, link: _Link, call: Any) -> bool:
        """Read and write until the leader ends the stream; return whether it sent anything."""
        answered = False
        writing = asyncio.ensure_future(self._write(client, link, call))
        try:
            while (answer := await call.read()) is not grpc.aio.EOF:
                answered = True
                self._process(client, answer)
        except _LOST:
            if not answered:
                raise
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        return answered

    async def _write(self, client: ForwardedClient, link: _Link, call: Any) -> None:
        """Write settings and answers; the reader detects the end of the stream."""
        while True:
            try:
                # Not `wait_for`: in Python 3.11 it may swallow this task's cancellation.
                async with asyncio.timeout(_REPEAT_S):
                    await link.pending.wait()
            except TimeoutError:
                if not self._clients.alive(client.client_id, self._clock.steady_ns()):
                    continue
                link.settings = client.settings
            link.pending.clear()
            if link.settings:
                settings, link.settings = link.settings, b""
                await call.write(settings)
            while link.answers:
                await call.write(link.answers.popleft())

    def _process(self, client: ForwardedClient, answer: bytes) -> None:
        """Send a leader's command to the client; drop its answers to settings."""
        try:
            kind = v2.TelemetryCommand.FromString(answer).WhichOneof("command")
        except DecodeError as error:
            logger.warning("telemetry.unreadable_command error=%s", error)
            return
        if kind == "settings":
            self._settings_answered(client, answer)
        elif kind is not None:
            self._send(client, answer, kind)
        else:
            self._refused(client, answer)

    def _refused(self, client: ForwardedClient, answer: bytes) -> None:
        """Handle a status without settings, with which a leader refuses the client: do nothing.

        This node has accepted the client, so the stream is reopened.
        """

    def _settings_answered(self, client: ForwardedClient, answer: bytes) -> None:
        """Drop the answer: the client has this node's own one."""

    def _send(self, client: ForwardedClient, answer: bytes, kind: str) -> None:
        registered = self._clients.get(client.client_id)
        if registered is None:
            return
        for stream in reversed(registered.streams):
            if stream.finished:
                continue
            try:
                stream.send(answer)
            except OutboundFull:
                continue
            return
        logger.info("telemetry.command_dropped client=%s command=%s", client.client_id, kind)
