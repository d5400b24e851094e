"""The end of a request: the wait for durability, and the answer.

Promises: an OK answer means what the durability policy promises
(docs/design/delivery-guarantees.md); waits for durability are added in log order; a client's
request gets exactly one answer, also if it was cancelled. `answer.py` makes the bytes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...proto.errors import WireError
from ...store.format.results import PutStatus
from .answer import FAILURES, cause_of, refused_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..base.counters import Counters
    from ..visible.durability import DurabilityGate
    from .planner import Appended
    from .send import Send

_PUT_OK = PutStatus.PUT_OK


class Settlement:
    """Answers requests."""

    def __init__(self, counters: Counters, durability: DurabilityGate) -> None:
        self._counters = counters
        self._durability = durability

    def counted(self, error: WireError) -> WireError:
        """Count a refused request by its cause; return the error."""
        self._counters.refused_sends[cause_of(error.code, error.message)] += 1
        return error

    def fail(self, send: Send, error: Exception) -> None:
        """Answer a request that is refused with a WireError, and count it; for another error
        fail the call."""
        if isinstance(error, WireError):
            # Bytes, not the exception: it references the caller's frame, and through it every
            # request of the turn, in a cycle with the answer until the next garbage collection.
            send.resolve(refused_answer(self.counted(error)))
        elif not send.done():  # a bug: the front door logs its position
            send.set_exception(error)

    def answer_unstored(self, send: Send, content: bytes) -> None:
        """Answer a request of which nothing was stored."""
        if send.spans is not None:
            send.spans.answered("not stored")
        send.resolve(content)

    def settle(self, appended: Appended) -> None:
        """Answer requests that are appended and counted, once their messages are as safe as
        promised."""
        answers = appended.answers
        if answers:
            done = partial(self._answer, appended.sends, answers)
            self._durability.wait(appended.end, done, len(answers))
        if appended.repeated:
            # If nothing was appended, no flush and no acknowledgement of a replica will follow.
            self._durability.advance()

    def settle_row(
        self, answers: list[bytes], end: int, answer: Callable[[list[bytes]], None]
    ) -> None:
        """Pass the answers of requests without futures to `answer`, as `settle` does."""

        def settled(outcome: PutStatus) -> None:
            safe = outcome is _PUT_OK
            answer(answers if safe else [self._unknown(outcome) for _ in answers])

        self._durability.wait(end, settled, len(answers))

    def _answer(self, sends: Sequence[Send], answers: Sequence[bytes], outcome: PutStatus) -> None:
        safe = outcome is _PUT_OK
        for send, content in zip(sends, answers, strict=True):
            if not safe:
                send.stored(content)
            if send.spans is not None:
                send.spans.answered("" if safe else outcome.value)
            send.resolve(content if safe else self._unknown(outcome))

    def _unknown(self, outcome: PutStatus) -> bytes:
        """Count a request whose messages are stored, but not as safe as promised in time; return
        its answer."""
        return refused_answer(self.counted(WireError(*FAILURES[outcome])))
