"""What the pop state does when the role of its node changes, and what of it travels to other replicas.

A leader's pop state is in its journal, and the locks of its FIFO queues are in `consumerOrderInfo.json`; the text of
that file goes to the followers whenever it changes (HA, R11: LOCKS), so that whoever leads next, or serves alone
meanwhile, keeps the queues locked. A follower that serves alone keeps its own state (`handover.py`) and gives it to
the next leader (POP), which may be itself (`takeover.py`).

A replica that was elected begins to lead pops when the log that it had then is in its queues, the journal's
records among it; with replication that waits for followers that is a moment after it takes writes. Until then it
goes on as a follower that serves alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from ....proto import v1
from .takeover import take_over

if TYPE_CHECKING:
    from ...node import Node
    from ..fifo.order_info import OrderInfo
    from ..receive import PopService
    from ..table import Subscriptions
    from ..timer import PopTimer

log = logging.getLogger(__name__)

_LOOK_S = 0.005
_PAYLOAD_MAX = 32 << 20
"""A hand-over has at most as many entries as its file may have; this is far more."""
_EARLY_MAX = 16
"""As many as a group has replicas, at most; what is not kept is delivered again."""


class PopRoles:
    """Of one node's `PopService`."""

    def __init__(
        self,
        node: Node,
        pop: PopService,
        subs: Subscriptions,
        timer: PopTimer,
        order_info: OrderInfo,
    ) -> None:
        self._node = node
        self._pop = pop
        self._subs = subs
        self._timer = timer
        self._order_info = order_info
        self._waiting: asyncio.TimerHandle | None = None
        self.on_failure: Callable[[Exception], None] = _unheard
        """Told when it cannot lead, of which nobody else hears: it begins behind the promotion."""
        self._early: dict[int, v1.PopHandover] = {}
        """By replica: what followers gave out alone, which came before this leader leads pops."""

    # -- roles --------------------------------------------------------------------------------

    def lead(self) -> None:
        """This replica was elected: lead as soon as the queues hold what the log holds now."""
        self._lead_from(self._node.store.log_end)

    def _lead_from(self, end: int) -> None:
        self._waiting = None
        node = self._node
        if not node.leadership.is_leader:
            return
        node.pump.run()
        if node.store.dispatched_offset < end:
            self._waiting = node.loop.call_later(_LOOK_S, self._look_again, end)
            return
        self._begin()

    def _look_again(self, end: int) -> None:
        try:
            self._lead_from(end)
        except Exception as error:
            self.on_failure(error)

    def _begin(self) -> None:
        """What is due is copied from now on, and the locks of FIFO queues are written."""
        handover = self._subs.handover
        given_out = handover.discard()
        self._pop.forget_everything()
        self._node.leadership.lead_pops()
        self._order_info.begin()
        self._node.journal.lead()
        for sub in self._subs:
            self._timer.arm(sub)
        taken = take_over(self._node, self._pop, given_out)
        log.info("pop.leads taken_over=%d", taken)
        early, self._early = self._early, {}
        for one in early.values():
            self._take_over(one)

    def follow(self) -> None:
        """Somebody else leads: forget what was given out here."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self._early = {}
        if self._node.leadership.pop_leads:
            self._node.leadership.end_pops()
            # The journal has what counts, for this replica's readers as for the next leader's.
            self._subs.handover.discard()
            self._node.journal.follow()
        else:
            self._subs.handover.leave()
        self._order_info.end()
        self._pop.forget_everything()
        self._node.lite.follow()

    def leader_changed(self, alive: bool) -> None:
        """On a follower: it serves while the leader is gone, and hands over when one is there."""
        if alive and not self._node.leadership.is_leader:
            self.follow()

    def close(self) -> None:
        """Begin nothing any more."""
        if self._waiting is not None:
            self._waiting.cancel()

    # -- what travels -------------------------------------------------------------------------

    def locks_snapshot(self) -> bytes | None:
        """On a leader: which batches of FIFO groups are out; the same object until that changes."""
        return self._order_info.snapshot() if self._node.leadership.pop_leads else None

    def locks_apply(self, payload: bytes) -> None:
        """On a follower: what the leader says of them."""
        if not self._node.leadership.pop_leads:
            self._order_info.hear(payload)

    def handover_snapshot(self) -> bytes | None:
        """On a follower that has served alone: what it gave out, once."""
        return self._subs.handover.snapshot()

    def handover_apply(self, payload: bytes) -> None:
        """On a leader: what a follower gave out while nobody led."""
        if not self._node.leadership.is_leader or len(payload) > _PAYLOAD_MAX:
            log.warning(
                "pop_handover.refused bytes=%d leads=%s",
                len(payload),
                self._node.leadership.is_leader,
            )
            return
        try:
            given_out = v1.PopHandover.FromString(payload)
        except DecodeError as error:
            log.warning("pop_handover.refused error=%s", error)
            return
        if self._node.leadership.pop_leads:
            self._take_over(given_out)
        elif len(self._early) < _EARLY_MAX:
            # A follower in sync says it before it acknowledges what this replica waits for to lead.
            self._early[given_out.replica.broker_id] = given_out

    def _take_over(self, given_out: v1.PopHandover) -> None:
        taken = take_over(self._node, self._pop, given_out)
        log.info(
            "pop_handover.taken_over queues=%d deliveries=%d from=%d",
            *(len(given_out.queues), taken, given_out.replica.broker_id),
        )


def _unheard(error: Exception) -> None:
    raise error
