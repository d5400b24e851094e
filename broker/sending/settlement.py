"""The end of a request: counters, the wait for durability, and the answer.

Promises: an OK answer means what the durability policy promises
(docs/design/delivery-guarantees.md); waits for durability are added in log order; a client's
request gets exactly one answer, also if it was cancelled or a handler's callback fails.
`answer.py` makes the bytes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from ...front.reply_future import ReplyFuture
from ...proto.errors import WireError
from ...store.format.results import AppendResult, PutStatus
from .answer import FAILURES, answer_to, cause_of, refused_answer
from .late_send import LateSend
from .send import Prepared

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...store.message_store import MessageStore
    from ..metrics.counters import Counters
    from ..trace.service import TraceService
    from .dedup import SendDedup
    from .durability import DurabilityGate

_PUT_OK = PutStatus.PUT_OK

#: One request whose messages are ready for the log.
Batch: TypeAlias = "tuple[ReplyFuture, Prepared]"


class Settlement:
    """Counts and answers requests."""

    def __init__(
        self,
        *,
        store: MessageStore,
        counters: Counters,
        durability: DurabilityGate,
        dedup: SendDedup | None,
        trace: TraceService | None,
    ) -> None:
        self._store = store
        self._counters = counters
        self._durability = durability
        self._dedup = dedup
        self._trace = trace

    def counted(self, error: WireError) -> WireError:
        """Count a refused request by its cause; return the error."""
        self._counters.refused_sends[cause_of(error.code, error.message)] += 1
        return error

    def refuse(self, answer: ReplyFuture, error: WireError) -> None:
        """Count and answer a refused request."""
        # Bytes, not the exception: it references the caller's frame, and through it every request
        # of the turn, in a cycle with the answer until the next garbage collection.
        resolve(answer, refused_answer(self.counted(error)))

    def fail(self, batches: list[Batch], content: bytes) -> None:
        """Answer requests of which nothing was stored."""
        for answer, ready in batches:
            if ready.reservation is not None and self._dedup is not None:
                self._dedup.release(ready.reservation)
            if ready.spans is not None:
                ready.spans.answered("not stored")
            resolve(answer, content)

    def settle_native(self, answer: ReplyFuture, content: bytes, end: int) -> None:
        """Answer a request that the native path has appended and counted, once everything below
        `end` is as safe as promised."""
        if self._durability.immediate:
            resolve(answer, content)
        else:
            self._durability.wait(end, partial(self._durable_native, answer, content))

    def _durable_native(self, answer: ReplyFuture, content: bytes, outcome: PutStatus) -> None:
        if outcome is not _PUT_OK:
            if isinstance(answer, LateSend):
                answer.stored(content)
            content = refused_answer(self.counted(WireError(*FAILURES[outcome])))
        resolve(answer, content)

    def when_durable(
        self, answers: list[bytes], end: int, answer: Callable[[list[bytes]], None]
    ) -> None:
        """Answer requests that the native path has appended and counted, together, once everything
        below `end` is as safe as promised."""

        def durable(outcome: PutStatus) -> None:
            if outcome is _PUT_OK:
                answer(answers)
                return
            error = WireError(*FAILURES[outcome])
            answer([refused_answer(self.counted(error)) for _ in answers])

        self._durability.wait(end, durable, len(answers))

    def settle(self, batches: list[Batch], results: list[AppendResult]) -> None:
        """Count and answer appended requests; `results` has those of all their messages."""
        at = 0
        with_duplicates = []
        for answer, ready in batches:
            count = len(ready.messages)
            own = results[at : at + count]
            at += count
            if ready.reservation is not None and self._dedup is not None:
                self._dedup.settle(ready.reservation, own)
            if ready.extras is not None and not _notify_stored(answer, ready, own):
                continue
            if ready.reservation is not None and ready.reservation.duplicates:
                with_duplicates.append((answer, ready))
                continue
            self._settle(answer, ready, own)
        for answer, ready in with_duplicates:
            self._settle_duplicates(answer, ready)

    def _settle(self, answer: ReplyFuture, ready: Prepared, results: list[AppendResult]) -> None:
        end = -1
        for result in results:
            if result.status is _PUT_OK:
                end = result.physical_offset + result.size
        if end >= 0:
            self._counters.add_sent(ready.topic, ready.message_type, len(results), ready.size)
            if self._trace is not None:
                self._trace.sent(ready, results)
            if ready.spans is not None:
                ready.spans.stored()
        elif ready.spans is not None:
            ready.spans.answered("not stored")
        if end < 0 or self._durability.immediate:
            self._answer(answer, ready, results)
        else:
            self._durability.wait(end, partial(self._durable, answer, ready, results))

    def _settle_duplicates(self, answer: ReplyFuture, ready: Prepared) -> None:
        """Answer a request with duplicates: each of them gets its first result again.

        The answer waits for the log end, after all other requests of the turn, because waits must
        be added in log order.
        """
        reservation = ready.reservation
        assert reservation is not None
        if reservation.fresh:
            self._counters.add_sent(
                ready.topic, ready.message_type, len(reservation.fresh), ready.size
            )
        self._counters.repeated += reservation.duplicates
        ready.extras = [sent.extras for sent in reservation.sent]
        results = [sent.result for sent in reservation.sent if sent.result is not None]
        self._durability.wait(self._store.log_end, partial(self._durable, answer, ready, results))
        # If nothing was appended, no flush and no acknowledgement of a replica will follow.
        self._durability.advance()

    def _durable(
        self, answer: ReplyFuture, ready: Prepared, results: list[AppendResult], outcome: PutStatus
    ) -> None:
        if outcome is _PUT_OK:
            self._answer(answer, ready, results)
        else:
            if ready.spans is not None:
                ready.spans.answered(outcome.value)
            self.refuse(answer, WireError(*FAILURES[outcome]))

    def _answer(self, answer: ReplyFuture, ready: Prepared, results: list[AppendResult]) -> None:
        if ready.spans is not None:
            ready.spans.answered()
        if not answer.done():
            answer.set_result(answer_to(self._store, ready.ids, results, ready.extras))


def _notify_stored(answer: ReplyFuture, ready: Prepared, results: list[AppendResult]) -> bool:
    """Call the handlers' callbacks; an exception fails this request only."""
    try:
        ready.notify_stored(results)
    except Exception as error:  # a bug: the front door logs its position
        if not answer.done():
            answer.set_exception(error)
        return False
    return True


def resolve(answer: ReplyFuture, content: bytes) -> None:
    """Set the answer of a request, unless its client has cancelled it."""
    if not answer.done():
        answer.set_result(content)
