"""Waiting polls: ReceiveMessage calls without an answer yet, of ordinary groups and of lite topics.

Promises: a poll is answered once, at the latest when its polling time ends; a call that the client
cancelled is forgotten (docs/formats/grpc-api.md, sections 7.2 and 7.3). In memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ...proto import v2
from ...proto.errors import WireError

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


class Waiter(Struct):
    """A waiting ReceiveMessage."""

    number: int
    request: PopRequest
    ctx: RequestContext
    answer: asyncio.Future[list[bytes]]
    timer: asyncio.TimerHandle | None = None


class Waiting(Struct, eq=False, kw_only=True):
    """The polls that wait for the same messages: of a group on a topic, or of one client for its
    lite topics."""

    #: By number, oldest first.
    waiters: dict[int, Waiter] = field(default_factory=dict)
    #: They are served in this turn of the loop.
    scheduled: bool = False


class Polls:
    """The waiting polls of a service."""

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
        self._held: dict[str, dict[int, Waiting]] = {}
        self._count = 0

    def park(
        self, place: Waiting, request: PopRequest, ctx: RequestContext, poll_ms: int
    ) -> asyncio.Future[list[bytes]]:
        """Let a poll wait for its answer. Raises WireError if too many wait."""
        self._limit.check()
        self._count += 1
        waiter = Waiter(self._count, request, ctx, self._loop.create_future())
        place.waiters[waiter.number] = waiter
        self._held.setdefault(request.client_id, {})[waiter.number] = place
        self._limit.waiting += 1
        waiter.timer = self._loop.call_later(poll_ms / 1000, self._give_up, place, waiter)
        waiter.answer.add_done_callback(partial(self._left, place, waiter))
        return waiter.answer

    def oldest(self, place: Waiting) -> Waiter | None:
        """Return the poll to serve next; None if none waits."""
        while place.waiters:
            waiter = next(iter(place.waiters.values()))
            if not waiter.answer.done():
                return waiter
            self._remove(place, waiter)
        return None

    def answer(self, place: Waiting, waiter: Waiter, items: list[bytes]) -> None:
        """Answer a poll that waits."""
        self._remove(place, waiter)
        waiter.answer.set_result(items)

    def end(self, place: Waiting, error: WireError | None = None) -> None:
        """Answer all polls of a place without messages, with `error` or MESSAGE_NOT_FOUND."""
        for waiter in list(place.waiters.values()):
            self._give_up(place, waiter, error)

    def end_of_client(self, client_id: str) -> None:
        """Answer all polls of a client without messages."""
        for number, place in list(self._held.get(client_id, {}).items()):
            self._give_up(place, place.waiters[number])

    def _give_up(self, place: Waiting, waiter: Waiter, error: WireError | None = None) -> None:
        if waiter.answer.done():
            self._remove(place, waiter)
        else:
            self.answer(place, waiter, self._failure(error or WireError(*NOT_FOUND)))

    def _left(self, place: Waiting, waiter: Waiter, answer: asyncio.Future[list[bytes]]) -> None:
        """Forget a poll that the client cancelled."""
        if answer.cancelled():
            self._remove(place, waiter)

    def _remove(self, place: Waiting, waiter: Waiter) -> None:
        if place.waiters.pop(waiter.number, None) is None:
            return
        self._limit.waiting -= 1
        if waiter.timer is not None:
            waiter.timer.cancel()
        held = self._held[waiter.request.client_id]
        del held[waiter.number]
        if not held:
            del self._held[waiter.request.client_id]
