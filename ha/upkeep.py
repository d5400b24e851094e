"""Upkeep of a replica: scrub, replay of archived tails, and handover when the disk is full.

It starts when the replica is announced and stops before the store closes. Peers are the replicas in
the group's state; in a static group, the leader that is followed. With `replayTail=auto` archived
tails are replayed as soon as the group has a leader, in the order of the cuts, and retried until
all messages were sent. If several replicas archived the same bytes, the one with the lowest broker
id sends them, and the others after a delay. Scrub results are counted in `Replication.counters` as
`scrub_*` (docs/formats/ha.md, R7, R14 and drill 27).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Protocol

from ..proto import v1, v2
from .engine import Replication
from .errors import HaError
from .record_reads import read_places
from .rejoin import (
    diverged_tails as tails,
)
from .rejoin.diverged_key import content_key
from .role.disk_full_handover import DiskFullHandover, DiskSpace
from .scrub.api import Options, Result, ScrubbedStore
from .scrub.peer import Peer, PeerError
from .scrub.scrub import Scrub

logger = logging.getLogger(__name__)

_Bytes = tuple[int, int, int, int]

#: An automatic replay checks for a leader at this interval.
_CHECK_S = 0.2
#: Pause before the retry of an incomplete replay.
_RETRY_S = 10.0
#: Number of checks whether another replica replays a tail that both archived, before this one does.
_WAIT_CHECKS = 3


class UpkeepStore(ScrubbedStore, DiskSpace, Protocol):
    """The part of a store that upkeep needs."""


class Upkeep:
    """Runs the upkeep tasks and serves digests, ranges and tails (`ReplicaServices`)."""

    def __init__(
        self,
        replication: Replication,
        store: UpkeepStore,
        own_client: Callable[[], str],
        *,
        send: tails.Send | None = None,
    ) -> None:
        """`own_client` returns this node's client address, which forwards; `send` replaces a
        producer."""
        self._replication = replication
        self._own_client = own_client
        replica, config = replication.replica, replication.config
        directory = replica.directory
        options = Options(config.ha_scrub_interval_ms / 1000, config.ha_scrub_rate)
        self.scrub = Scrub(directory, store, self._peers, options, count=self._count)
        self.disk_full_handover = DiskFullHandover(replication, store, self._peer)
        self.replay = tails.Replay(
            directory, send or tails.send_to(self._client_of_leader, replication.links)
        )
        self._blocks = store.blocks
        replication.serve(self)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.scrub.start()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self.disk_full_handover.run())]
        if self._replication.config.replay_tail == "auto":
            self._tasks.append(loop.create_task(self._replay_on()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self.scrub.stop()

    # --- requests of operators and other replicas ----------------------------------------------

    def archived_tails(self) -> list[v1.ArchivedTail]:
        return tails.list_tails(self._replication.replica.directory)

    async def replay_tail(self, request: v1.ReplayTailRequest) -> v1.ControlResponse:
        return await self.replay.run(request)

    def get_digests(self, request: v1.DigestsRequest) -> AsyncIterator[v1.BlockDigest]:
        return self.scrub.get_digests(request)

    def read_range(self, request: v1.ReadRangeRequest) -> AsyncIterator[v1.LogBytes]:
        return self.scrub.read_range(request)

    async def read_places(self, request: v1.ReadPlacesRequest) -> v1.ReadPlacesResponse:
        return await read_places(self._blocks, request)

    # --- replay of archived tails ----------------------------------------------------------------

    async def _replay_on(self) -> None:
        """Replay tails until none is open. Tails are only created before a start, so none is added
        later."""
        looks = 0
        while True:
            try:
                if not self._open_tails():
                    return
                if not self._replication.leader_alive:
                    await asyncio.sleep(_CHECK_S)
                    continue
                looks += 1
                await self._replay_all(wait=looks <= _WAIT_CHECKS)
                if not self._open_tails():
                    return
            except (OSError, HaError) as error:  # of the archive; the next attempt may succeed
                logger.error("ha.tails.not_replayed error=%s", error)
            await asyncio.sleep(_RETRY_S)

    def _open_tails(self) -> list[v1.ArchivedTail]:
        return [tail for tail in self.archived_tails() if not tail.replayed]

    async def _replay_all(self, *, wait: bool) -> None:
        """Replay the open tails. Those sent by others are only marked; with `wait`, tails that a
        lower broker id also holds are left to it."""
        sent, left = await self._archived_by_others()
        for tail in self._open_tails():
            bytes_ = content_key(tail)
            if wait and bytes_ in left and bytes_ not in sent:
                continue
            marked = [tail.file_id] if bytes_ in sent else []
            request = v1.ReplayTailRequest(file_id=tail.file_id, sent_elsewhere=marked)
            answer = await self.replay.run(request)
            logger.info("ha.tails.replayed messages=%d message=%s", answer.messages, answer.message)
            if answer.code != v2.OK:
                return

    async def _archived_by_others(self) -> tuple[set[_Bytes], set[_Bytes]]:
        """Return the tails that other replicas archived and sent, and those that lower broker ids
        have not sent yet. Unreachable replicas are ignored."""
        sent, left = set[_Bytes](), set[_Bytes]()
        for peer in self._peers():
            try:
                status = await peer.status()
            except PeerError as error:
                logger.info("ha.tails.unreached peer=%s error=%s", peer.address, error)
                continue
            lower = status.beat.replica.broker_id < self._replication.identity.broker_id
            for tail in status.tails:
                content = content_key(tail)
                if content is not None and (tail.replayed or lower):
                    (sent if tail.replayed else left).add(content)
        return sent, left

    def _count(self, result: Result) -> None:
        """Count the results of one round; unrepaired damage counts in every round."""
        counts = self._replication.roles.counts
        for name in ("rounds", "blocks", "lost", "different"):
            counts[f"scrub_{name}"] += getattr(result, name)
        counts["scrub_rotten"] += result.damaged
        counts["scrub_mended"] += result.repaired
        counts["scrub_unreached"] += len(result.unreached)

    def _client_of_leader(self) -> str:
        """Return the leader's client address. Any node forwards, so without a known leader it is
        this one."""
        hint = None if self._replication.is_leader else self._replication.leader_hint
        return self._own_client() if hint is None or not hint[1] else hint[1]

    def _peers(self) -> Iterable[Peer]:
        return [self._peer(address) for address in self._peer_addresses()]

    def _peer(self, address: str) -> Peer:
        return Peer(address, self._replication.links)

    def _peer_addresses(self) -> list[str]:
        """Return the replication addresses of the other replicas."""
        replication = self._replication
        state, mine = replication.state, replication.replica.meta.replica_uuid
        members = () if state is None else state.members
        named = [
            member.addresses.ha
            for member in members
            if member.replica_uuid != mine and member.addresses.ha
        ]
        follower = replication.roles.follower
        if not named and follower is not None and follower.address:
            named = [follower.address]
        return named
