"""Waiting polls: each with its timer and its future, by group and by client.

Promises: a poll is answered once, at the latest when its polling time ends; a call that the client
cancelled is forgotten (docs/formats/grpc-api.md, sections 7.2 and 7.3). In memory.
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


class PollLimit:
    """Number of waiting ReceiveMessage polls, and the limit `popPollingSize`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.waiting = 0

    def check(self, others: int = 0) -> None:
        """Raise WireError if no further poll may wait; `others` are polls counted elsewhere."""
        if self.waiting + others >= self._limit:
            raise WireError(
                v2.TOO_MANY_REQUESTS,
                "[POLLING_FULL] too many polls wait: flow limit, popPollingSize",
            )


class Polls:
    """The waiting polls of `PopService`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limit: PollLimit,
        failure: Callable[[WireError], list[bytes]],
    ) -> None:
        """`failure` returns the stream of an answer without messages."""
        self._loop = loop
        self._limit = limit
        self._failure = failure
        #: By client and number.
        self._held: dict[str, dict[int, Subscription]] = {}
        self._count = 0

    def park(
        self, sub: Subscription, request: PopRequest, ctx: RequestContext, poll_ms: int
    ) -> asyncio.Future[list[bytes]]:
        """Let a poll wait for its answer."""
        answer: asyncio.Future[list[bytes]] = self._loop.create_future()
        waiter = Waiter(request, ctx, answer)
        self._count += 1
        key = self._count
        sub.waiters[key] = waiter
        self._held.setdefault(request.client_id, {})[key] = sub
        self._limit.waiting += 1
        waiter.timer = self._loop.call_later(poll_ms / 1000, self.give_up, sub, key)
        answer.add_done_callback(partial(self._left, sub, key))
        return answer

    def remove(self, sub: Subscription, key: int) -> Waiter | None:
        """Remove and return a waiting poll; None if it does not wait."""
        waiter = sub.waiters.pop(key, None)
        if waiter is not None:
            self._limit.waiting -= 1
            if waiter.timer is not None:
                waiter.timer.cancel()
            held = self._held[waiter.request.client_id]
            del held[key]
            if not held:
                del self._held[waiter.request.client_id]
        return waiter

    def give_up(self, sub: Subscription, key: int, error: WireError | None = None) -> None:
        """Answer a poll without messages, with `error` or MESSAGE_NOT_FOUND."""
        waiter = self.remove(sub, key)
        if waiter is not None and not waiter.answer.done():
            waiter.answer.set_result(self._failure(error or WireError(*NOT_FOUND)))

    def end(self, sub: Subscription, error: WireError | None = None) -> None:
        """End all polls of a group."""
        for key in list(sub.waiters):
            self.give_up(sub, key, error)

    def end_of_client(self, client_id: str) -> None:
        """End all polls of a client."""
        for key, sub in list(self._held.get(client_id, {}).items()):
            self.give_up(sub, key)

    def _left(self, sub: Subscription, key: int, answer: asyncio.Future[list[bytes]]) -> None:
        """Forget a poll that the client cancelled."""
        if answer.cancelled():
            self.remove(sub, key)
