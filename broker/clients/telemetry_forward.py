"""Telemetry passed on: who leads must reach clients that talk to another node.

A client speaks to whichever node it knows; the questions for it (what became of a transaction, a
lite topic that it lost) come from the leader of the group that holds the message. So a node opens,
for each client that has a stream here, one stream to each leader concerned, in the client's name:
to the leader of its own group when this node follows it, and, for a producer, to those of other
groups that hold its topics (design, section 2). The client's last settings are said again when such
a stream opens, what it answers goes on to every leader, and what a leader asks comes out of the
client's own stream.

Promises: the settings that leaders answer with stay here (this node has answered already); a stream
that breaks, or whose leader changed, is opened again within two seconds; nothing of it delays the
client. Bounded: by the clients with a stream here (`maxClients`), a queue of `_ANSWERS_MAX` answers
each. What does not fit is dropped: the leader asks again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ...front.channels import ChannelPool
from ...front.context import FORWARDED
from ...front.service import OutboundFull
from ...proto import paths, v2
from ...proto.channels import cancel_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...front.clock import Clock
    from ...front.config import DoorConfig
    from ...front.context import RequestContext
    from ..routing.cluster_view import ClusterView
    from .registry import ClientRegistry

log = logging.getLogger(__name__)

_ANSWERS_MAX = 16
_RETRY_FIRST_S, _RETRY_MAX_S = 0.1, 2.0
# When a leader is back, the streams to it are opened over some time, so that thousands of them do
# not stop the loops of both.
_OPENED_A_SECOND = 5_000
# The settings are said again after so long, as a sign of life: a leader of another group hears no
# heartbeat of the client, and forgets who is silent for `channelExpiredTimeout` (two minutes).
_SAY_AGAIN_S = 45.0
# Settings and answers; what a leader sends to such a client is larger and comes the other way.
_LOST = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


@dataclass(slots=True)
class Guest:
    """A client with a stream here."""

    client_id: str
    metadata: tuple[tuple[str, str], ...]
    settings: bytes = b""
    topics: frozenset[str] = frozenset()
    links: dict[str, _Link] = field(default_factory=dict)
    """By the leader's address."""


@dataclass(slots=True)
class _Link:
    """One client at one leader."""

    task: asyncio.Task[None] | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    settings: bytes = b""
    """To be said; empty when they have been."""
    answers: deque[bytes] = field(default_factory=lambda: deque(maxlen=_ANSWERS_MAX))


class TelemetryForward:
    """All streams of this node to leaders, in the names of clients."""

    def __init__(
        self,
        *,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        clients: ClientRegistry,
        cluster: ClusterView,
        config: DoorConfig,
        leads: Callable[[], bool],
    ) -> None:
        """`leads` returns whether this node leads its own group; a proxy never does."""
        self._clock = clock
        self._loop = loop
        self._clients = clients
        self._cluster = cluster
        self._leads = leads
        self._pool = ChannelPool(config)
        self._guests: dict[str, Guest] = {}
        self._connected_to: tuple[bool, dict[str, str]] = False, {}
        """Whether this node led, and every group's leader, when all guests were connected last."""
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        """Streams that are open or to be opened."""
        return sum(len(guest.links) for guest in self._guests.values())

    def said(self, ctx: RequestContext, command: v2.TelemetryCommand) -> None:
        """A client said something to this node that was in order."""
        guest = self._guests.get(ctx.client_id)
        if command.HasField("settings"):
            if guest is None:
                guest = self._guests[ctx.client_id] = Guest(ctx.client_id, ctx.metadata)
            guest.metadata = ctx.metadata
            guest.settings = command.SerializeToString()
            guest.topics = self._topics_of(command.settings)
            for link in guest.links.values():
                link.settings = guest.settings
                link.news.set()
            self._connect(guest)
        elif guest is not None:
            for link in guest.links.values():
                link.answers.append(command.SerializeToString())
                link.news.set()

    def _topics_of(self, settings: v2.Settings) -> frozenset[str]:
        """That decide which leaders a client concerns."""
        return frozenset(topic.name for topic in settings.publishing.topics)

    def forget(self, client_id: str) -> None:
        """The client has no stream here any more."""
        guest = self._guests.pop(client_id, None)
        if guest is not None:
            for link in guest.links.values():
                self._end(link)

    def cluster_changed(self) -> None:
        """Leaders or topics may have changed."""
        groups = self._cluster.groups
        leaders = {name: group.leader() for name, group in groups.items()}
        addresses = {name: leader.client for name, leader in leaders.items() if leader}
        now = self._leads(), addresses
        if len(groups) == 1 and now == self._connected_to:
            return  # topics count only among several groups
        self._connected_to = now
        for guest in self._guests.values():
            self._connect(guest)

    async def close(self) -> None:
        """End all streams."""
        self._closed = True
        for client_id in list(self._guests):
            self.forget(client_id)
        for task in self._connecting.values():
            task.cancel()
        await asyncio.gather(*self._ending, *self._connecting.values(), return_exceptions=True)
        await self._pool.close()

    def _connect(self, guest: Guest) -> None:
        """Have a link to every leader concerned and to no other node."""
        if self._closed:
            return
        wanted = set(self._leaders(guest))
        for address in guest.links.keys() - wanted:
            self._end(guest.links.pop(address))
        for address in wanted - guest.links.keys():
            link = guest.links[address] = _Link(settings=guest.settings)
            link.task = self._loop.create_task(self._keep(guest, link, address))

    def _leaders(self, guest: Guest) -> Iterable[str]:
        view = self._cluster
        own = view.own().leader()
        if not self._leads() and own is not None:
            yield own.client
        for name, group in view.groups.items():
            leader = group.leader()
            if name != view.own_group and leader and not guest.topics.isdisjoint(group.topics):
                yield leader.client

    def _end(self, link: _Link) -> None:
        task = link.task
        if task is not None and not task.done():
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _keep(self, guest: Guest, link: _Link, address: str) -> None:
        """Hold the stream open, whatever happens to it, until the link is ended."""
        delay_s = _RETRY_FIRST_S
        metadata = (*(pair for pair in guest.metadata if pair[0] != FORWARDED), (FORWARDED, "1"))
        while True:
            await self._connected(address)
            start = self._pool.call(address, paths.TELEMETRY, requests=True, answers=True)
            link.settings = guest.settings
            link.news.set()
            heard = False
            call = None
            try:
                call = start(metadata=metadata)
                heard = await self._converse(guest, link, call)
            except _LOST as error:
                log.debug("telemetry.link_lost leader=%s error=%s", address, error)
            finally:
                if call is not None:
                    call.cancel()
            if cancel_requests():
                raise asyncio.CancelledError
            delay_s = _RETRY_FIRST_S if heard else min(_RETRY_MAX_S, 2 * delay_s)
            await asyncio.sleep(delay_s)

    async def _connected(self, address: str) -> None:
        """Until there is a connection; one task tries for all who wait."""
        if self._pool.ready(address):
            return
        task = self._connecting.get(address)
        if task is None:
            task = self._loop.create_task(self._reach(address))
            self._connecting[address] = task
            task.add_done_callback(lambda _: self._connecting.pop(address, None))
        await asyncio.shield(task)
        await asyncio.sleep(random.random() * min(_RETRY_MAX_S, len(self) / _OPENED_A_SECOND))

    async def _reach(self, address: str) -> None:
        while not self._pool.ready(address) and self._wanted(address):  # noqa: ASYNC110 - once for all
            await asyncio.sleep(_RETRY_FIRST_S)

    def _wanted(self, address: str) -> bool:
        return any(address in guest.links for guest in self._guests.values())

    async def _converse(self, guest: Guest, link: _Link, call: Any) -> bool:
        """Until the leader ends the stream; returns whether it said anything before."""
        heard = False
        writing = asyncio.ensure_future(self._write(guest, link, call))
        try:
            while (answer := await call.read()) is not grpc.aio.EOF:
                heard = True
                self._hand_over(guest, answer)
        except _LOST:
            if not heard:
                raise
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        return heard

    async def _write(self, guest: Guest, link: _Link, call: Any) -> None:
        """Say what there is to say; a stream that is gone is the reader's to notice."""
        while True:
            try:
                # Not `wait_for`: in Python 3.11 it may swallow the cancellation that ends this
                # task.
                async with asyncio.timeout(_SAY_AGAIN_S):
                    await link.news.wait()
            except TimeoutError:
                if not self._clients.alive(guest.client_id, self._clock.steady_ns()):
                    continue
                link.settings = guest.settings
            link.news.clear()
            if link.settings:
                settings, link.settings = link.settings, b""
                await call.write(settings)
            while link.answers:
                await call.write(link.answers.popleft())

    def _hand_over(self, guest: Guest, answer: bytes) -> None:
        """Give a leader's command to the client; drop its answers to settings."""
        try:
            kind = v2.TelemetryCommand.FromString(answer).WhichOneof("command")
        except DecodeError as error:
            log.warning("telemetry.unreadable_command error=%s", error)
            return
        if kind == "settings":
            self._settings_answered(guest, answer)
        elif kind is not None:
            self._give(guest, answer, kind)

    def _settings_answered(self, guest: Guest, answer: bytes) -> None:
        """The client has this node's own answer."""

    def _give(self, guest: Guest, answer: bytes, kind: str) -> None:
        client = self._clients.get(guest.client_id)
        if client is None:
            return
        for stream in reversed(client.streams):
            if stream.finished:
                continue
            try:
                stream.send(answer)
            except OutboundFull:
                continue
            return
        log.info("telemetry.command_dropped client=%s command=%s", guest.client_id, kind)
