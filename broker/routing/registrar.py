"""Registrar: registers this replica with every nameserver and receives the cluster's state.

Each nameserver has its own task, so that a slow or dead one delays neither the others nor the
broker. A heartbeat every second carries positions; the topic table is sent only when it changed or
on request. Failures back off up to two seconds and are logged once (docs/formats/ha.md, sections
1.5 and 6.8). The cluster token is sent with every call.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from msgspec import Struct

from ...ha.stream.redial import RedialedChannel
from ...nodes.addresses import host_port
from ...proto import paths, v1

if TYPE_CHECKING:
    from ...nodes.node_links import NodeLinks
    from ..base.cluster_view import ClusterView
    from ..metadata.tables import Metadata, Topic

logger = logging.getLogger(__name__)

_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 2.0
_DOUBLINGS_MAX = 10  # far above the limit
_GATHER_S = 0.05
# A nameserver that failed this many times is silent: its last response stops counting.
_SILENT_AFTER = 3
# A table of 100,000 topics is about 6 MB.
_MAX_ANSWER_BYTES = 64 << 20


class Registrant(Struct, frozen=True):
    """The registered replica, as callbacks."""

    links: NodeLinks
    period_ms: int
    timeout_ms: int
    #: Returns the current heartbeat: identity, addresses, role, epoch, positions.
    describe: Callable[[], v1.RegisterRequest]
    #: Called with each in-sync set that a majority of the nameservers has taken.
    set_registered: Callable[[v1.InSyncSet], None]
    metadata: Metadata
    view: ClusterView
    #: Registered beside those of `metadata`.
    template: Topic | None


class Registrar:
    """Keeps this replica registered with all nameservers until it is stopped."""

    def __init__(self, nameservers: list[tuple[str, int]], own: Registrant) -> None:
        self._links = [
            _NameserverLink(host_port(host, port), own, self._set_taken, len(nameservers))
            for host, port in nameservers
        ]
        self._own = own
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start registering with each nameserver; does not wait for any."""
        self._tasks = [asyncio.create_task(link.run()) for link in self._links]
        for task in self._tasks:
            task.add_done_callback(_ended)

    async def first_answers(self, timeout_s: float) -> None:
        """Wait until each nameserver has answered once, at most `timeout_s`."""
        waits = [asyncio.create_task(link.answered.wait()) for link in self._links]
        if waits:
            _, pending = await asyncio.wait(waits, timeout=timeout_s)
            for wait in pending:
                wait.cancel()

    def changed(self) -> None:
        """Notify the nameservers of a new topic table or role now instead of with the next
        heartbeat.
        """
        for link in self._links:
            link.wake.set()

    def _set_taken(self) -> None:
        """A nameserver has taken an in-sync set: report the one that a majority has."""
        taken = sorted(
            (link.taken for link in self._links if link.taken is not None),
            key=lambda one: (one.epoch, one.revision),
        )
        majority = len(self._links) // 2 + 1
        if len(taken) >= majority:
            self._own.set_registered(taken[-majority])

    async def stop(self) -> None:
        """Unregister from the nameservers that answer, and close."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        links, self._links = self._links, []
        await asyncio.gather(*(link.close() for link in links))


class _NameserverLink:
    """The connection to one nameserver."""

    def __init__(
        self, target: str, own: Registrant, set_taken: Callable[[], None], nameservers: int
    ) -> None:
        """`set_taken` is called when `taken` has changed; `nameservers`: how many there are."""
        self._target = target
        self._own = own
        self._set_taken = set_taken
        self._nameservers = nameservers
        self.taken: v1.InSyncSet | None = None  #: the in-sync set that it has
        options = (("grpc.max_receive_message_length", _MAX_ANSWER_BYTES),)
        self._channel = RedialedChannel(target, own.links, options)
        self._sequence = 0
        self._sent_version: int | None = None
        self._need_full = True
        self._cluster_version = 0
        self._failures = 0
        self._failure: grpc.StatusCode | None = None
        self.wake = asyncio.Event()
        self.answered = asyncio.Event()

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            self.wake.clear()
            try:
                pause_s = await self._heartbeat()
            except grpc.aio.AioRpcError as error:
                self._failed(error)
                await asyncio.sleep(self._retry_s())
            else:
                await self._pause(pause_s)

    async def close(self) -> None:
        """Unregister; a nameserver that does not answer removes the replica after its expiry."""
        if self._failures == 0 and self._sent_version is not None:
            request = v1.UnregisterRequest(
                replica=self._own.describe().replica, registration_seq=self._next_sequence()
            )
            try:
                await self._call(paths.UNREGISTER, request, timeout_s=1.0)
            except grpc.aio.AioRpcError as error:
                logger.info(
                    "nameserver.unregister_failed target=%s code=%s", self._target, error.code()
                )
        await self._channel.close()

    async def _heartbeat(self) -> float:
        """Send one heartbeat; return the seconds until the next one."""
        version = self._own.metadata.version
        full = self._need_full or version != self._sent_version
        request = self._own.describe()
        request.registration_seq = self._next_sequence()
        request.table_version = version
        if request.HasField("in_sync"):
            request.in_sync.nameservers = self._nameservers
        if full:
            request.full = True
            request.topics.extend(
                v1.TopicRoute(
                    name=topic.name,
                    read_queues=topic.read_queues,
                    write_queues=topic.write_queues,
                    perm=topic.perm,
                    message_type=topic.message_type,
                )
                for topic in self._topics()
            )
        answer = v1.RegisterResponse.FromString(await self._call(paths.REGISTER, request))
        if request.HasField("in_sync") and request.in_sync != self.taken:
            self.taken = request.in_sync
            self._set_taken()
        if answer.cluster_version != self._cluster_version:
            await self._fetch(answer.cluster_version)
        self._answered()
        self._sent_version = version
        self._need_full = answer.need_full
        self.answered.set()
        return 0.0 if answer.need_full and not full else self._own.period_ms / 1000

    def _topics(self) -> Iterator[Topic]:
        yield from self._own.metadata.topics.values()
        if self._own.template is not None:
            yield self._own.template

    async def _fetch(self, version: int) -> None:
        request = v1.GetClusterRequest(known_version=self._cluster_version)
        answer = v1.GetClusterResponse.FromString(await self._call(paths.GET_CLUSTER, request))
        self._cluster_version = version if answer.unchanged else answer.version
        if not answer.unchanged:
            view = self._own.view
            view.update(
                self._target,
                answer.groups,
                incomplete=answer.incomplete,
                absent=answer.absent_groups,
            )

    async def _call(
        self,
        path: str,
        request: v1.RegisterRequest | v1.GetClusterRequest | v1.UnregisterRequest,
        timeout_s: float | None = None,
    ) -> bytes:
        timeout_s = timeout_s or self._own.timeout_ms / 1000
        metadata = self._own.links.metadata(self._target)
        return await self._channel.call(path, request.SerializeToString(), metadata, timeout_s)

    def _answered(self) -> None:
        if self._failures:
            logger.info("nameserver.connected target=%s failures=%d", self._target, self._failures)
            self._own.view.found(self._target)
        self._failures = 0
        self._failure = None

    def _retry_s(self) -> float:
        """Return the pause after a failure: twice the last one, with a random part."""
        doubled = _RETRY_FIRST_S * (1 << min(self._failures - 1, _DOUBLINGS_MAX))
        return min(doubled, _RETRY_MAX_S) + random.uniform(0, _RETRY_FIRST_S)

    def _failed(self, error: grpc.aio.AioRpcError) -> None:
        """Log before the pause after a failure; the first failures may come from a starting
        nameserver.
        """
        self._failures += 1
        if error.code() is not self._failure:
            self._failure = error.code()
            logger.warning(
                "nameserver.failed target=%s code=%s reason=%s",
                self._target,
                error.code().name,
                error.details(),
            )
        if self._failures == _SILENT_AFTER:
            self._own.view.lost(self._target)

    def _next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.wake.wait()
            # A burst of new topics is one table.
            await asyncio.sleep(_GATHER_S)
        except TimeoutError:
            pass


def _ended(task: asyncio.Task[None]) -> None:
    """Log the exception of a link that ended without being cancelled: that is a bug."""
    if not task.cancelled() and task.exception() is not None:
        logger.error("nameserver.link_failed", exc_info=task.exception())
