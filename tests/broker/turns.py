"""Counts what is done in each turn of the event loop: bounds of turns without a clock."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any


class Turns:
    """The number of steps of all turns, and of the turn with the most."""

    def __init__(self) -> None:
        self.all = self.most = self._now = 0
        self._is_open = False

    def step(self) -> None:
        """Count a step of this turn."""
        if not self._is_open:
            self._is_open = True
            asyncio.get_running_loop().call_soon(self._end)
        self.all += 1
        self._now += 1
        self.most = max(self.most, self._now)

    def _end(self) -> None:
        self._is_open, self._now = False, 0

    def counting(self, generate: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """Return a function whose iterator counts each element."""

        def counted(*arguments: Any) -> Iterator[Any]:
            for element in generate(*arguments):
                self.step()
                yield element

        return counted


async def busiest_turn(answer: Any) -> int:
    """Finish the answer of a handler; return the number of calls of functions, Python's and built
    in, of the turn with the most. `answer` is called without arguments."""
    most = calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        if event in ("call", "c_call"):
            calls += 1

    def turn(work: Callable[[], Any]) -> Any:
        nonlocal most, calls
        calls = 0
        sys.setprofile(count)
        try:
            return work()
        finally:
            sys.setprofile(None)
            most = max(most, calls)

    result = turn(answer)
    while inspect.iscoroutine(result):
        try:
            waits_for = turn(lambda: result.send(None))
        except StopIteration:
            break
        if waits_for is None:
            await asyncio.sleep(0)
        else:
            waits_for._asyncio_future_blocking = False
            await asyncio.wait([waits_for])
    return most
