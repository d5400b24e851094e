"""Handover from a leader with a full disk to an in-sync replica with free space.

A full disk is not a failure: no record is torn, reads continue, and writes resume when space is
free (`store/log/write_gate.py`). But the group need not wait for that while an in-sync replica
could lead, so the leader asks the controller for a switchover, which loses nothing. Without such a
replica, and in static groups, the leader stays and is read-only (docs/formats/ha.md, drill 27).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from ...proto import v2
from ..core.group_state import GroupState
from ..engine import Replication
from ..scrub.peer import Peer, PeerError

__all__ = ["DiskSpace", "DiskFullHandover"]

logger = logging.getLogger(__name__)

_CHECK_EVERY_S: Final = 0.5
#: Consecutive checks, so that a short shortage (a segment being deleted) does not count.
_CHECKS: Final = 2
#: Pause after a refusal by the controller.
_RETRY_S: Final = 10.0
_MAX_WAIT_MS: Final = 1_500


class Segments(Protocol):
    """Why the last segment could not be created."""

    @property
    def allocation_failure(self) -> str: ...

    @property
    def out_of_buffers(self) -> bool: ...


class DiskSpace(Protocol):
    """The part of a store that the handover needs."""

    @property
    def paused(self) -> bool: ...

    @property
    def writer(self) -> Segments: ...


class DiskFullHandover:
    def __init__(
        self, replication: Replication, store: DiskSpace, peer: Callable[[str], Peer]
    ) -> None:
        """`peer` returns a client for an address."""
        self._replication = replication
        self._store = store
        self._peer = peer

    async def run(self) -> None:
        """Check the disk until cancelled."""
        looks = 0
        while True:
            looks = looks + 1 if self._is_stuck() else 0
            if looks >= _CHECKS:
                looks = 0
                if not await self.hand_over():
                    await asyncio.sleep(_RETRY_S)
            await asyncio.sleep(_CHECK_EVERY_S)

    def _is_stuck(self) -> bool:
        store = self._store
        writer = store.writer
        full = store.paused or (bool(writer.allocation_failure) and not writer.out_of_buffers)
        return full and self._replication.is_leader

    async def hand_over(self) -> bool:
        """Request the switchover; returns whether the controller accepted it."""
        state = self._replication.state
        if state is None:
            return False
        for address, broker_id in self._in_sync(state):
            try:
                status = await self._peer(address).status()
            except PeerError as error:
                logger.info("ha.disk_full.unreached peer=%s error=%s", address, error)
                continue
            if status.beat.no_room:
                continue
            answer = await self._replication.hand_over(broker_id, _MAX_WAIT_MS)
            if answer is None:
                return False
            logger.warning(
                "ha.disk_full.handed_over to=%d code=%d message=%s",
                broker_id,
                answer.code,
                answer.message,
            )
            self._replication.roles.counts["handed_over_without_room"] += answer.code == v2.OK
            return bool(answer.code == v2.OK)
        logger.warning("ha.disk_full.read_only: no in-sync replica has free disk space")
        return False

    def _in_sync(self, state: GroupState) -> list[tuple[str, int]]:
        """Return replication addresses and broker ids of the other in-sync members."""
        mine = self._replication.identity.broker_id
        members = [state.member(ref.broker_id) for ref in state.in_sync if ref.broker_id != mine]
        return [(m.addresses.ha, m.broker_id) for m in members if m is not None and m.addresses.ha]
