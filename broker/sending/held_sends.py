"""Held sends: requests that this replica cannot accept now and that the access point keeps.

Promises: each caller gets the answer of the replica that accepts its request, or the error that
ends the wait; a stop of the broker, or the start of a new instance, cancels all of them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ...proto.errors import WireError
from .answer import refused_answer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

    from ...front.reply_future import ReplyFuture


class HeldSends:
    """The held requests of one sender; the front door's limit on open calls bounds them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, held: Coroutine[Any, Any, Any], answer: ReplyFuture) -> None:
        """Run `held` and complete `answer` with its result."""
        task = self._loop.create_task(held)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(partial(_complete, answer))

    def close(self) -> None:
        """Cancel all requests; the front door has already closed their calls."""
        for task in self._tasks:
            task.cancel()


def _complete(answer: ReplyFuture, held: asyncio.Future[Any]) -> None:
    if held.cancelled():
        answer.cancel()
    elif answer.done():
        held.exception()  # the client has disconnected: mark the error as retrieved
    elif (error := held.exception()) is not None:
        if isinstance(error, WireError):
            answer.set_result(refused_answer(error))
        else:
            answer.set_exception(error)
    else:
        answer.set_result(held.result())
