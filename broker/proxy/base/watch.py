"""Cluster watch: polls the nameservers for the cluster's state, for a node that is not a member.

Each nameserver has its own task, which polls every second, and at once after an owner could not be
reached (`poll_soon`), but not more often than `_POLL_SOON_S`. A silent nameserver delays no other,
and its last response counts only while all are silent (`broker/base/cluster_view.py`). Removed
members disappear after half a minute.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ....ha.stream.redial import RedialedChannel
from ....nodes.addresses import host_port
from ....proto import paths, v1

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ....nodes.node_links import NodeLinks
    from ...base.cluster_view import ClusterView

logger = logging.getLogger(__name__)

_POLL_SOON_S = 0.05
_TIMEOUT_S = 2.0
_SILENT_AFTER = 3
_OPTIONS = (
    # A table of 100,000 topics is about 6 MB.
    ("grpc.max_receive_message_length", 64 << 20),
)


class ClusterWatch:
    """Keeps one cluster view up to date."""

    def __init__(
        self,
        view: ClusterView,
        nameservers: Iterable[tuple[str, int]],
        links: NodeLinks,
        period_ms: int,
    ) -> None:
        self._view = view
        self._targets = [host_port(host, port) for host, port in nameservers]
        self._links = links
        self._period_s = period_ms / 1000
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        #: Nameservers that answered the last poll.
        self.answered: set[str] = set()

    async def start(self, wait_s: float) -> None:
        """Start; wait for the first responses, at most `timeout_s`."""
        self._tasks = [asyncio.create_task(self._watch(target)) for target in self._targets]
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while len(self.answered) < len(self._targets) and loop.time() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def poll_soon(self) -> None:
        """Poll soon: an owner cannot be reached."""
        self._news.set()

    async def stop(self) -> None:
        """Stop polling."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(self, target: str) -> None:
        channel = RedialedChannel(target, self._links, _OPTIONS)
        try:
            await self._poll_forever(target, channel)
        finally:
            await channel.close()

    async def _poll_forever(self, target: str, channel: RedialedChannel) -> None:
        version, failures = 0, 0
        while True:
            try:
                request = v1.GetClusterRequest(known_version=version)
                token = self._links.metadata(target)
                raw = await channel.call(
                    paths.GET_CLUSTER, request.SerializeToString(), token, _TIMEOUT_S
                )
                answer = v1.GetClusterResponse.FromString(raw)
                if not answer.unchanged:
                    version = answer.version
                    self._view.update(
                        target,
                        answer.groups,
                        incomplete=answer.incomplete,
                        absent=answer.absent_groups,
                    )
                if failures:
                    logger.info("nameserver.connected target=%s failures=%d", target, failures)
                    self._view.found(target)
                failures = 0
                self.answered.add(target)
            except (grpc.aio.AioRpcError, DecodeError) as error:
                failures += 1
                self.answered.discard(target)
                version = 0  # it may be another process next time
                if failures == 1:
                    logger.warning("nameserver.failed target=%s reason=%s", target, _reason(error))
                if failures == _SILENT_AFTER:
                    self._view.lost(target)
            await self._pause()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._period_s):
                await self._news.wait()
            await asyncio.sleep(_POLL_SOON_S)
            self._news.clear()
        except TimeoutError:
            pass


def _reason(error: grpc.aio.AioRpcError | DecodeError) -> str:
    if isinstance(error, DecodeError):
        return f"no answer of a nameserver: {error}"
    return f"{error.code().name} {error.details()}"
