"""`ReplyFuture`: the answer of a hot UNARY handler that must wait for something, without a future's turn.

As much of `asyncio.Future` as a door needs, under the same names; what differs is that its one
callback runs inside of `set_result`, where a future asks the loop for a turn and copies a context for
it. Who sets the results of many thus has their answers handed to the network before the loop goes on.
Promises: set or cancelled once; a callback that comes late is called at once; it can be awaited, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

_WAITING, _DONE, _CANCELLED = range(3)


class ReplyFuture:
    """An answer that is still to come. Used on the loop only."""

    __slots__ = ("_answer", "_callback", "_error", "_state")

    def __init__(self) -> None:
        self._state = _WAITING
        self._callback: Callable[[ReplyFuture], None] | None = None
        self._answer: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether it was set or cancelled."""
        return self._state != _WAITING

    def cancelled(self) -> bool:
        """Whether it was given up."""
        return self._state == _CANCELLED

    def set_result(self, answer: Any) -> None:
        """Here it is. Raises InvalidStateError the second time."""
        self._answer = answer
        self._settle(_DONE)

    def set_exception(self, error: BaseException) -> None:
        """There will be none, because of this. Raises InvalidStateError the second time."""
        self._error = error
        self._settle(_DONE)

    def cancel(self) -> bool:
        """Nobody wants it any more. False: it was there already."""
        if self._state != _WAITING:
            return False
        self._settle(_CANCELLED)
        return True

    def exception(self) -> BaseException | None:
        """What was set instead of an answer."""
        self._check()
        return self._error

    def result(self) -> Any:
        """The answer; raises what was set instead of it."""
        self._check()
        if self._error is not None:
            raise self._error
        return self._answer

    def add_done_callback(self, callback: Callable[[ReplyFuture], None]) -> None:
        """Call back, once, when it is done. One listener: that is whoever serves the call."""
        if self._state != _WAITING:
            callback(self)
            return
        assert self._callback is None
        self._callback = callback

    def __await__(self) -> Generator[Any, None, Any]:
        if self._state == _WAITING:
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def wake(_: ReplyFuture) -> None:
                if not woken.done():
                    woken.set_result(None)

            self.add_done_callback(wake)
            try:
                yield from woken
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()

    def _check(self) -> None:
        if self._state == _CANCELLED:
            raise asyncio.CancelledError
        if self._state == _WAITING:
            raise asyncio.InvalidStateError("there is no answer yet")

    def _settle(self, state: int) -> None:
        if self._state != _WAITING:
            raise asyncio.InvalidStateError("there is an answer already")
        self._state = state
        callback = self._callback
        if callback is not None:
            self._callback = None
            callback(self)
