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
        self._origins: list[tuple[Method, RequestContext]] = []
        self._entered = 0

    def add(self, call: Any, answer: Answer, method: Method, ctx: RequestContext) -> None:
        """Answer a call: now, or at the exit, or when `_TOGETHER_MAX` answers are collected."""
        self._calls.append(call)
        self._answers.append(answer)
        self._origins.append((method, ctx))
        if not self._entered or len(self._calls) >= _TOGETHER_MAX:
            self.pass_on()

    def add_all(
        self, calls: list[Any], answers: list[bytes], method: Method, ctx: RequestContext
    ) -> None:
        """Answer calls of one method without a callback for lost answers, as `add` does."""
        self._calls += calls
        self._answers += answers
        self._origins += [(method, ctx)] * len(calls)
        if not self._entered or len(self._calls) >= _TOGETHER_MAX:
            self.pass_on()

    def pass_on(self) -> None:
        """Pass the collected answers to the network."""
        if not self._calls:
            return
        calls, answers, origins = self._calls, self._answers, self._origins
        self._calls, self._answers, self._origins = [], [], []
        for position in self._reply_many(calls, answers):
            self._failures.undelivered(*origins[position])

    def __enter__(self) -> Self:
        self._entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._entered -= 1
        if not self._entered:
            self.pass_on()
