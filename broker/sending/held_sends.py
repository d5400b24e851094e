"""Sends that this replica cannot take now: the access point keeps each until somebody takes it.

Promises: whoever waits gets the answer of the replica that took it, or the error that ended the wait; when the broker
stops, or begins another life, nothing of them goes on.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ...proto.errors import WireError
from .answer import refused

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

    from ...front.reply_future import ReplyFuture


class HeldSends:
    """Of one sender; as many as the door has calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, held: Coroutine[Any, Any, Any], answer: ReplyFuture) -> None:
        """`answer` gets what `held` brings."""
        task = self._loop.create_task(held)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(partial(_answered, answer))

    def close(self) -> None:
        """Wait for nobody any more; the door has given the clients up."""
        for task in self._tasks:
            task.cancel()


def _answered(answer: ReplyFuture, held: asyncio.Future[Any]) -> None:
    """The answer of a request that was passed on."""
    if held.cancelled():
        answer.cancel()
    elif answer.done():
        held.exception()  # its client has left; the error is of no use to anybody
    elif (error := held.exception()) is not None:
        if isinstance(error, WireError):
            answer.set_result(refused(error))
        else:
            answer.set_exception(error)
    else:
        answer.set_result(held.result())
