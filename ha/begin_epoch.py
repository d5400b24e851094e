"""Before an epoch begins and before one ends: what a leader waits for.

A new leader's log is on its disk, whole, and the epoch's entry in the history is, before anything of the epoch is written
(HA note, section 6.7). A leader that steps down by plan waits until its followers have everything, so that nothing
has to be cut.
"""

import asyncio
from collections.abc import Callable

from .core.group_state import Ref
from .leader import LeaderSide
from .replica import Replica

_POLL_S = 0.005


async def begin_epoch(replica: Replica, epoch: int, is_wanted: Callable[[], bool]) -> str | None:
    """Flush everything, then assign the epoch, unless it is not wanted any more. Returns what failed."""
    log = replica.log
    while log.flushed_offset < log.log_end and is_wanted():
        if (refusal := log_refusal(log)) is not None:
            return refusal
        log.flush_soon()
        await asyncio.sleep(_POLL_S)
    if is_wanted() and replica.history.last_epoch < epoch:
        try:
            replica.assign_epoch(epoch, log.log_end)
        except OSError as error:
            return f"epoch {epoch} could not be begun: {error}"
    return None


def log_refusal(log: object) -> str | None:
    """Why the log cannot be written any more for good, or None."""
    if getattr(log, "writable", True) or getattr(log, "paused", False):
        return None
    return str(getattr(log, "refusal", "")) or "the log cannot be written"


async def drained(
    side: LeaderSide, seconds: float, successor: Ref | None, still_leads: Callable[[], bool]
) -> bool:
    """Wait until every follower in sync has everything; after half of the time `successor` alone is enough."""
    waited_s = 0.0
    while still_leads() and not side.drained() and waited_s < seconds:
        if waited_s > seconds / 2 and _has_everything(side, successor):
            return True
        await asyncio.sleep(_POLL_S)
        waited_s += _POLL_S
    return not still_leads() or side.drained() or _has_everything(side, successor)


def _has_everything(side: LeaderSide, ref: Ref | None) -> bool:
    if ref is None:
        return False
    row = side.core.members.get(ref.broker_id)
    end = side.replica.log.log_end
    return row is not None and row.ref == ref and side.core.position(row) >= end
