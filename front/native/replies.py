"""Answers at the native door: those of one turn go to the network together.

To pass an answer on wakes the network thread, a system call that costs more than the rest of an
answer. While a `Replies` is entered, answers are collected; its exit passes them on in one step.
Code that answers many calls in a row enters it: the door for the events of a turn, the sender for
the requests of an append, and the durability gate for the waits that it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeAlias

if TYPE_CHECKING:
    from ..context import RequestContext
    from ..failure import FailureHandler
    from ..service import Method
    from .calls import StreamCall


#: An encoded message, or those of a stream.
Answer: TypeAlias = "bytes | list[bytes]"

#: Enough for the cost of a wake-up; more would only wait for each other.
_TOGETHER_MAX = 64


class Replies:
    """The answers that one door has not passed on yet. Used on the event loop only."""

    def __init__(
        self,
        reply_many: Callable[[list[Any], list[Answer]], list[int]],
        failures: FailureHandler,
    ) -> None:
        """`reply_many` answers calls and returns the positions of those whose client has left."""
        self._reply_many = reply_many
        self._failures = failures
        self._calls: list[Any] = []
        self._answers: list[Answer] = []
        #: Method and context of each call, and the call if it is registered with the door.
        self._origins: list[tuple[Method, RequestContext, StreamCall | None]] = []
        self._entered = 0

    def add(self, call: Any, answer: bytes, method: Method, ctx: RequestContext) -> None:
        """Answer a unary call: now, or at the exit, or when `_TOGETHER_MAX` answers are
        collected."""
        self._calls.append(call)
        self._answers.append(answer)
        self._origins.append((method, ctx, None))
        if not self._entered or len(self._calls) >= _TOGETHER_MAX:
            self.pass_on()

    def add_stream(self, pending: StreamCall, answer: list[bytes]) -> None:
        """Answer a call of a stream as `add` does; it is registered until its messages are
        delivered. If its client has left, it is unregistered."""
        self._calls.append(pending.call)
        self._answers.append(answer)
        self._origins.append((pending.method, pending.ctx, pending))
        if not self._entered or len(self._calls) >= _TOGETHER_MAX:
            self.pass_on()

    def add_all(
        self, calls: list[Any], answers: list[bytes], method: Method, ctx: RequestContext
    ) -> None:
        """Answer calls of one method together, as `add` does. `ctx` has no callback for lost
        answers."""
        self._calls += calls
        self._answers += answers
        self._origins += [(method, ctx, None)] * len(calls)
        if not self._entered or len(self._calls) >= _TOGETHER_MAX:
            self.pass_on()

    def pass_on(self) -> None:
        """Pass the collected answers to the network."""
        if not self._calls:
            return
        calls, answers, origins = self._calls, self._answers, self._origins
        self._calls, self._answers, self._origins = [], [], []
        for position in self._reply_many(calls, answers):
            method, ctx, pending = origins[position]
            if pending is not None:
                pending.door.leave(pending)
            self._failures.undelivered(method, ctx)

    def __enter__(self) -> Self:
        self._entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._entered -= 1
        if not self._entered:
            self.pass_on()
