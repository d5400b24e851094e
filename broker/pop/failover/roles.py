"""Role changes of the pop state, and the parts of it that are replicated beside the log.

A leader keeps its pop state in the journal, and the locks of its FIFO queues in
`consumerOrderInfo.json`; the text of that file is sent to the followers when it changes (LOCKS,
docs/formats/ha.md, rule R11), so that the next leader, or a replica that serves without one, keeps
the queues locked. A follower that serves without a leader keeps its own state (`pop/handover.py`)
and sends it to the next leader (POP), which may be itself (`takeover.py`).

An elected replica leads pops as soon as its queues hold everything that the log held at the
promotion, the journal's records included; with synchronous replication that is a moment after it
accepts writes. Until then it serves pops as a follower without a leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from ....proto import v1

if TYPE_CHECKING:
    from ....store.message_store import MessageStore
    from ...base.leadership import Leadership
    from ...visible.dispatch_pump import DispatchPump
    from ..handover import Handover
    from ..journal_api import Journal
    from ..order_info import OrderInfo
    from ..receive import PopService
    from .takeover import Takeover

logger = logging.getLogger(__name__)

_POLL_S = 0.005
#: Far above the size of a handover with the maximum of entries.
_PAYLOAD_MAX = 32 << 20
#: At least the number of replicas of a group; further handovers cost repeated deliveries.
_EARLY_MAX = 16


class PopRoles:
    """Switches the pop state between leader and follower."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        store: MessageStore,
        leadership: Leadership,
        pump: DispatchPump,
        journal: Journal,
        pop: PopService,
        order_info: OrderInfo,
        handover: Handover,
        takeover: Takeover,
    ) -> None:
        self._loop = loop
        self._store = store
        self._leadership = leadership
        self._pump = pump
        self._journal = journal
        self._pop = pop
        self._order_info = order_info
        self._handover = handover
        self._takeover = takeover
        self._waiting: asyncio.TimerHandle | None = None
        self._fail: Callable[[Exception], None] = _raise
        #: Handovers that arrived before this leader leads pops, by broker id.
        self._early: dict[int, v1.PopHandover] = {}

    def on_failure(self, listener: Callable[[Exception], None]) -> None:
        """Call `listener` if this leader cannot lead pops after its promotion has returned."""
        self._fail = listener

    # -- roles --------------------------------------------------------------------------------

    def lead(self) -> None:
        """Lead pops as soon as the queues hold everything that the log holds now."""
        self._lead_from(self._store.log_end)

    def _lead_from(self, end: int) -> None:
        self._waiting = None
        if not self._leadership.is_leader:
            return
        self._pump.run()
        if self._store.dispatched_offset < end:
            self._waiting = self._loop.call_later(_POLL_S, self._retry, end)
            return
        self._begin()

    def _retry(self, end: int) -> None:
        try:
            self._lead_from(end)
        except Exception as error:
            self._fail(error)

    def _begin(self) -> None:
        """Lead: due messages are copied and the locks of FIFO queues written from now on."""
        given_out = self._handover.discard()
        self._pop.forget_everything()
        self._leadership.lead_pops()
        self._order_info.lead()
        self._journal.lead(self._pop.core)
        self._pop.rearm_all()
        taken = self._takeover.merge(given_out)
        logger.info("pop.leads taken_over=%d", taken)
        early, self._early = self._early, {}
        for handover in early.values():
            self._merge(handover)

    def follow(self) -> None:
        """Forget the pop state: another replica leads."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self._early = {}
        if self._leadership.pop_leads:
            self._leadership.end_pops()
            # The journal in the log counts, here as on the next leader.
            self._handover.discard()
            self._journal.follow()
        else:
            self._handover.leave()
        self._order_info.follow()
        self._pop.forget_everything()

    def close(self) -> None:
        """Cancel a pending `lead`."""
        if self._waiting is not None:
            self._waiting.cancel()

    # -- replicated state ---------------------------------------------------------------------

    def locks_snapshot(self) -> bytes | None:
        """On a leader: return the delivered FIFO batches; the same object until they change."""
        return self._order_info.snapshot() if self._leadership.pop_leads else None

    def locks_apply(self, payload: bytes) -> None:
        """On a follower: store the leader's delivered FIFO batches."""
        if not self._leadership.pop_leads:
            self._order_info.receive(payload)

    def handover_snapshot(self) -> bytes | None:
        """On a follower that served without a leader: return its handover, once."""
        return self._handover.snapshot()

    def handover_apply(self, payload: bytes) -> None:
        """On a leader: merge the handover of a follower."""
        leadership = self._leadership
        if not leadership.is_leader or len(payload) > _PAYLOAD_MAX:
            logger.warning(
                "pop_handover.refused bytes=%d leads=%s", len(payload), leadership.is_leader
            )
            return
        try:
            given_out = v1.PopHandover.FromString(payload)
        except DecodeError as error:
            logger.warning("pop_handover.refused error=%s", error)
            return
        if leadership.pop_leads:
            self._merge(given_out)
        elif len(self._early) < _EARLY_MAX:
            # An in-sync follower sends it before the acknowledgement that this replica waits for.
            self._early[given_out.replica.broker_id] = given_out

    def _merge(self, given_out: v1.PopHandover) -> None:
        taken = self._takeover.merge(given_out)
        logger.info(
            "pop_handover.taken_over queues=%d deliveries=%d from=%d",
            len(given_out.queues),
            taken,
            given_out.replica.broker_id,
        )


def _raise(error: Exception) -> None:
    raise error
