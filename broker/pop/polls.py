"""The polls that wait: each with its timer and its future, by group and by client.

Promises: a poll is answered once, at the latest when its polling time is over; a call that the client has
taken back is forgotten (gRPC API, sections 7.2 and 7.3). In memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
from .subscription import Subscription, Waiter

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from .request import PopRequest

NOT_FOUND = (v2.MESSAGE_NOT_FOUND, "no new message")


class Polls:
    """Every poll that `PopService` holds."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        failure: Callable[[WireError], list[bytes]],
    ) -> None:
        """`failure` makes the stream of an answer that brings nothing."""
        self._loop = loop
        self._failure = failure
        self._held: dict[str, dict[int, Subscription]] = {}
        """By client and number."""
        self._count = 0
        self.waiting = 0

    def park(
        self, sub: Subscription, request: PopRequest, ctx: RequestContext, poll_ms: int
    ) -> asyncio.Future[list[bytes]]:
        """Hold a poll."""
        answer: asyncio.Future[list[bytes]] = self._loop.create_future()
        waiter = Waiter(request, ctx, answer)
        self._count += 1
        key = self._count
        sub.waiters[key] = waiter
        self._held.setdefault(request.client_id, {})[key] = sub
        self.waiting += 1
        waiter.timer = self._loop.call_later(poll_ms / 1000, self.give_up, sub, key)
        answer.add_done_callback(partial(self._left, sub, key))
        return answer

    def remove(self, sub: Subscription, key: int) -> Waiter | None:
        """It waits no longer; None if it did not."""
        waiter = sub.waiters.pop(key, None)
        if waiter is not None:
            self.waiting -= 1
            if waiter.timer is not None:
                waiter.timer.cancel()
            held = self._held[waiter.request.client_id]
            del held[key]
            if not held:
                del self._held[waiter.request.client_id]
        return waiter

    def give_up(self, sub: Subscription, key: int, error: WireError | None = None) -> None:
        """The polling time is over, or the client is: answer that there is nothing."""
        waiter = self.remove(sub, key)
        if waiter is not None and not waiter.answer.done():
            waiter.answer.set_result(self._failure(error or WireError(*NOT_FOUND)))

    def end(self, sub: Subscription, error: WireError | None = None) -> None:
        """All polls of a group end now."""
        for key in list(sub.waiters):
            self.give_up(sub, key, error)

    def end_of_client(self, client_id: str) -> None:
        """All polls of a client end now."""
        for key, sub in list(self._held.get(client_id, {}).items()):
            self.give_up(sub, key)

    def _left(self, sub: Subscription, key: int, answer: asyncio.Future[list[bytes]]) -> None:
        """The future is done: by us, or cancelled because the client left."""
        if answer.cancelled():
            self.remove(sub, key)
