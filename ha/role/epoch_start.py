"""Start of an epoch on a new leader, and drain before a planned step-down.

The log is flushed and the epoch's entry in the history is durable before anything of the epoch is
written (docs/formats/ha.md, section 6.7). A leader that steps down as planned waits until its
followers have everything, so that nothing has to be cut.
"""

import asyncio
from collections.abc import Callable

from ..core.drain import Drain
from ..core.group_state import Ref
from ..state.replica import Replica
from ..stream.leader import LeaderSide

_POLL_S = 0.005


async def begin_epoch(replica: Replica, epoch: int, is_wanted: Callable[[], bool]) -> str | None:
    """Flush everything, then assign the epoch while `is_wanted`; returns the failure or None."""
    log = replica.log
    while log.flushed_offset < log.log_end and is_wanted():
        if (refusal := write_failure(log)) is not None:
            return refusal
        log.flush_soon()
        await asyncio.sleep(_POLL_S)
    if is_wanted() and replica.history.last_epoch < epoch:
        try:
            replica.assign_epoch(epoch, log.log_end)
        except OSError as error:
            return f"epoch {epoch} could not be started: {error}"
    return None


def write_failure(log: object) -> str | None:
    """Return why the log is permanently unwritable, or None."""
    if getattr(log, "writable", True) or getattr(log, "paused", False):
        return None
    return str(getattr(log, "refusal", "")) or "the log cannot be written"


async def wait_drained(
    side: LeaderSide, seconds: float, successor: Ref | None, still_leads: Callable[[], bool]
) -> bool:
    """Wait until every in-sync follower, or after half of the time `successor`, has everything.

    Returns whether they have; False once the replica no longer leads.
    """
    steady_ns = side.replica.steady_ns
    drain = Drain(successor, steady_ns(), int(seconds * 1e9))
    while still_leads():
        verdict = drain.verdict(side.core, side.replica.log.log_end, steady_ns())
        if verdict is not None:
            return verdict
        await asyncio.sleep(_POLL_S)
    return False
