"""`ReplyFuture`: a light future for the answers of hot unary handlers.

It has the part of `asyncio.Future` that a door needs, under the same names, with one callback. The
callback runs inside `set_result`; `asyncio.Future` would copy a context and schedule the callback
for the next loop iteration. Code that resolves many of them thus passes all answers to the network
in one step. It is set or cancelled once; a callback added afterwards is called at once. It can be
awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

_WAITING, _DONE, _CANCELLED = range(3)


class ReplyFuture:
    """A pending answer. Used on the event loop only."""

    __slots__ = ("_answer", "_callback", "_error", "_state")

    def __init__(self) -> None:
        self._state = _WAITING
        self._callback: Callable[[ReplyFuture], None] | None = None
        self._answer: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Return True if a result or an error was set, or the future was cancelled."""
        return self._state != _WAITING

    def cancelled(self) -> bool:
        """Return True if the future was cancelled."""
        return self._state == _CANCELLED

    def set_result(self, answer: Any) -> None:
        """Set the answer. Raises InvalidStateError if the future is done."""
        self._answer = answer
        self._settle(_DONE)

    def set_exception(self, error: BaseException) -> None:
        """Fail with `error`. Raises InvalidStateError if the future is done."""
        self._error = error
        self._settle(_DONE)

    def cancel(self) -> bool:
        """Cancel the future. Returns False if it was done."""
        if self._state != _WAITING:
            return False
        self._settle(_CANCELLED)
        return True

    def exception(self) -> BaseException | None:
        """Return the error, or None; raises CancelledError or InvalidStateError like a future."""
        self._check()
        return self._error

    def result(self) -> Any:
        """Return the answer, or raise the error."""
        self._check()
        if self._error is not None:
            raise self._error
        return self._answer

    def add_done_callback(self, callback: Callable[[ReplyFuture], None]) -> None:
        """Call `callback` once when the future is done. Only one callback is supported."""
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
            raise asyncio.InvalidStateError("the result is not set")

    def _settle(self, state: int) -> None:
        if self._state != _WAITING:
            raise asyncio.InvalidStateError("the result is already set")
        self._state = state
        callback = self._callback
        if callback is not None:
            self._callback = None
            callback(self)
