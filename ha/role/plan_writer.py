"""Plans for the next start: cut or reseed, written while the replica still runs.

The plan is durable before `on_reopen` is called; on a full disk the write is retried, because the
replica can do nothing else meanwhile. At most one plan per start. `rejoin/pending.py` carries it
out (docs/formats/ha.md, R6 and R9).
"""

import asyncio
import logging

from ...proto import v1
from ...store.format.disk import Disk
from ..events import ReplicationEvents
from ..rejoin import archive
from ..rejoin.plan import CUT, RESEED, Plan, write_plan
from ..state.replica import Replica

logger = logging.getLogger(__name__)

_RETRY_S = 5.0


class PlanWriter:
    def __init__(self, replica: Replica, events: ReplicationEvents) -> None:
        self._replica = replica
        self._events = events
        self._plan: Plan | None = None
        self._cuts_reported = False

    def cut(self, to: int, epoch: int, reason: str, leader: str, *, accept_loss: bool) -> None:
        """Plan a cut of everything from `to` on, which is archived first."""
        entries = self._replica.history.entries
        plan = Plan(
            CUT,
            to=to,
            epoch=epoch,
            epochs=tuple((each.epoch, each.start) for each in entries if each.start < to),
            reason=reason,
            leader=leader,
            accept_loss=accept_loss,
        )
        self._reopen(plan)

    def reseed(self, reason: str) -> None:
        """Plan to move all data aside and copy it again."""
        self._reopen(Plan(RESEED, epoch=self._replica.epoch, reason=reason))

    def _reopen(self, plan: Plan) -> None:
        if self._plan is None:
            self._plan = plan
            self._replica.counts[f"plan_{plan.kind}"] += 1
            self._write()

    def _write(self) -> None:
        plan = self._plan
        assert plan is not None
        try:
            write_plan(self._replica.directory, plan, Disk())
        except OSError as error:
            logger.error("ha.plan.not_written kind=%s error=%s", plan.kind, error)
            asyncio.get_running_loop().call_later(_RETRY_S, self._write)
            return
        self._events.reopen(f"{plan.kind}: {plan.reason}")

    def unreported_cuts(self) -> list[v1.CutDone]:
        """Return the unreported cuts for the leader's log; once per start."""
        if self._cuts_reported:
            return []
        self._cuts_reported = True
        return [
            v1.CutDone(
                epoch=tail.decided_epoch,
                log_end=tail.start,
                archived=v1.ArchivedRange(
                    start=tail.start, end=tail.end, messages=tail.messages, file_id=tail.file_id
                ),
            )
            for tail in archive.load_tails(self._replica.directory)
            if not tail.reported
        ]
