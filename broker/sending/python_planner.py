"""Python's planner of sends: records of any request, by the rules of its protocol.

It serves requests that the crate does not accept, and all of them without the crate. Promises: a
request that is refused is answered alone; an error in one request does not fail the others; what
deduplication, traces and counters need is taken from the records that are stored.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...proto import v2
from ...store.format.errors import StoreError
from ...store.format.results import AppendResult, PutStatus
from .answer import answer_to, failed_answer
from .planner import Appended

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...store.message_store import MessageStore
    from ..base.counters import Counters
    from ..trace.service import TraceService
    from ..trace.spans import Spans
    from .dedup import SendDedup
    from .planner import Batch
    from .send import Prepared, Send
    from .settlement import Settlement

logger = logging.getLogger(__name__)

_PUT_OK = PutStatus.PUT_OK


class PythonPlanner:
    """Appends requests."""

    def __init__(
        self,
        *,
        store: MessageStore,
        counters: Counters,
        settlement: Settlement,
        dedup: SendDedup,
        dedups: bool,
        trace: TraceService | None,
        spans: Spans | None,
    ) -> None:
        self._store = store
        self._counters = counters
        self._settlement = settlement
        self._dedup = dedup
        self._dedups = dedups
        self._trace = trace
        self._spans = spans

    def made(self, sends: Sequence[Send]) -> list[tuple[Send, Prepared]]:
        """Return the valid requests with their records; answer the others."""
        valid = []
        for send in sends:
            try:
                if send.is_readable():
                    valid.append((send, send.prepared()))
            except Exception as error:
                self._settlement.fail(send, error)
        return valid

    def append(self, batch: Batch, at: int, until: int) -> Appended:
        """Append the valid requests, and answer the others."""
        made = self.made(batch.sends[at:until])
        appended = Appended(until, until, [], [], 0)
        if not made:
            return appended
        for send, ready in made:
            if self._spans is not None:
                send.spans = self._spans.arrived(ready, send.ctx.begin_ns)
            if send.is_once or (self._dedups and send.held is not None):
                self._dedup.reserve(ready)
        everything = [message for _, ready in made for message in ready.messages]
        try:
            results = self._store.writer.append_many(everything)
        except (StoreError, OSError) as error:
            logger.error("send.append_failed messages=%d error=%s", len(everything), error)
            self._fail(made, failed_answer(v2.INTERNAL_SERVER_ERROR, str(error)))
            return appended
        appended.end = self._store.log_end
        at = 0
        for send, ready in made:
            own = results[at : at + len(ready.messages)]
            at += len(own)
            try:
                self._finish(appended, send, ready, own)
            except Exception as error:  # a bug in a handler of a message type
                self._settlement.fail(send, error)
        return appended

    def _fail(self, made: list[tuple[Send, Prepared]], content: bytes) -> None:
        """Answer requests of which nothing was stored."""
        for send, ready in made:
            if ready.reservation is not None:
                self._dedup.window.release(ready.reservation)
            self._settlement.answer_unstored(send, content)

    def _finish(
        self, appended: Appended, send: Send, ready: Prepared, results: list[AppendResult]
    ) -> None:
        """Count a request and make its answer; `results` are those of its messages."""
        repeated = 0
        if ready.reservation is not None:
            self._dedup.window.settle(ready.reservation, results)
            repeated = ready.reservation.duplicates
        if ready.extras is not None:
            ready.notify_stored(results)
        stored = any(result.status is _PUT_OK for result in results)
        if stored:
            self._counters.add_sent(ready.topic, ready.message_type, len(results), ready.size)
            if self._trace is not None:
                self._trace.sent(ready, results)
            if send.spans is not None:
                send.spans.stored()
        if ready.reservation is not None and repeated:
            # Each duplicate gets the result of the first message again.
            self._counters.repeated += repeated
            appended.repeated = True
            ready.extras = [sent.extras for sent in ready.reservation.sent]
            results = [sent.result for sent in ready.reservation.sent if sent.result is not None]
        answer = answer_to(self._store, ready.ids, results, ready.extras)
        if stored or repeated:
            appended.sends.append(send)
            appended.answers.append(answer)
        else:
            self._settlement.answer_unstored(send, answer)
