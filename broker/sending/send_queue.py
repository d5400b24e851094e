"""The queue of collected requests: one append for all requests of a turn.

Promises: requests leave in the order of arrival, in one slice per turn of the loop, or per one to
two milliseconds while many clients send at once through a front door that delivers requests one by
one. The number and the bytes of collected requests are bounded; above a bound the error is
TOO_MANY_REQUESTS with the name of the guard. A slice is bounded, so that no turn of the loop takes
more than some tens of milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...proto import v2
from ...proto.errors import WireError
from .answer import BYTES_FULL, QUEUE_FULL

if TYPE_CHECKING:
    from ..base.runtime import Runtime
    from ..visible.durability import DurabilityGate
    from .send import Send

# Bytes of collected requests; the configuration bounds their number.
PENDING_BYTES_MAX = 256 << 20
# With many senders an append lingers for a moment instead of one loop turn. A request alone costs
# three times as much as one of five (code and data of the interpreter have left the caches in
# between), and while requests queue for the processor the delay is not noticeable. Lingering starts
# when a turn brings three sends at once, which one or two senders never do, and ends when a
# millisecond brings fewer than two.
LINGER_FROM = 3
LINGER_WHILE = 2
LINGER_S = 0.001
# From this many per linger on, enough requests are in flight for a longer one; with four senders
# all of them would only wait.
LINGER_LONG_FROM = 5
LINGER_LONG_S = 0.002
# From this many on, requests are appended before the turn ends: all requests held for a new leader
# arrive in one turn, and the first of them must not grow too old in it.
APPEND_AT = 1_000
# An append of one turn of the loop has at most this many messages and bytes, about 30 ms; the rest
# follows in the next turns. One request is never split. Below _SLICE_FROM bytes there are fewer.
SLICE_MESSAGES = 1_000
SLICE_BYTES = 16 << 20
_SLICE_FROM = 64 << 10


class SendQueue:
    """Collects requests; passes them to `append`."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        durability: DurabilityGate,
        append: Callable[[list[Send]], None],
        count: Callable[[Send], int],
        counted: Callable[[WireError], WireError],
    ) -> None:
        """`append` handles the requests of a slice, `count` returns the number of a request's
        messages, `counted` counts a refused request."""
        self._clock = runtime.clock
        self._loop = runtime.loop
        self._durability = durability
        self._append = append
        self._count = count
        self._counted = counted
        #: Bounds the requests that are collected or wait for durability.
        self._capacity = runtime.config.send_thread_pool_queue_capacity
        #: Whether appends linger under load; False if the front door delivers requests in batches.
        self.lingers = True
        self._linger_s = 0.0
        self._pending: list[Send] = []
        self._pending_bytes = 0
        #: Arrival of the oldest collected request.
        self.since_ns = 0

    def __len__(self) -> int:
        """Return the number of collected requests."""
        return len(self._pending)

    def has_room(self, requests: int) -> bool:
        """Return whether no request is collected and `requests` more do not exceed the capacity."""
        return not self._pending and requests + len(self._durability) <= self._capacity

    def add(self, send: Send) -> None:
        """Collect a request. Raises WireError."""
        if len(self._pending) >= APPEND_AT:
            self.append_all()
        pending = self._pending
        if len(pending) + len(self._durability) >= self._capacity:
            raise self._counted(WireError(v2.TOO_MANY_REQUESTS, QUEUE_FULL))
        if self._pending_bytes >= PENDING_BYTES_MAX:
            raise self._counted(WireError(v2.TOO_MANY_REQUESTS, BYTES_FULL))
        if not pending:
            self.since_ns = self._clock.steady_ns()
            if self._linger_s:
                self._loop.call_later(self._linger_s, self._append_turn)
            else:
                self._loop.call_soon(self._append_turn)
        pending.append(send)
        self._pending_bytes += send.ctx.request_bytes

    def append_all(self) -> None:
        """Append all collected requests now."""
        while self._pending:
            self._append_slice()

    def _append_turn(self) -> None:
        """Append the part of the collected requests that one turn of the loop has time for."""
        if self._pending:
            self._append_slice()
        if self._pending:
            self._loop.call_soon(self._append_turn)

    def _append_slice(self) -> None:
        pending = self._take_slice()
        if self.lingers:
            self._linger_s = next_linger_s(self._linger_s, len(pending))
        self._append(pending)

    def _take_slice(self) -> list[Send]:
        """Remove and return the first collected requests, up to the bounds of one append."""
        pending = self._pending
        if self._pending_bytes > _SLICE_FROM:
            messages = size = 0
            for index, send in enumerate(pending):
                messages += self._count(send)
                more = send.ctx.request_bytes
                if index and (messages > SLICE_MESSAGES or size + more > SLICE_BYTES):
                    self._pending = pending[index:]
                    self._pending_bytes -= size
                    return pending[:index]
                size += more
        self._pending = []
        self._pending_bytes = 0
        return pending


def next_linger_s(linger_s: float, count: int) -> float:
    """Return how long the next append lingers if the last one, of `linger_s`, brought `count`.

    0 means one turn of the loop.
    """
    if count >= LINGER_LONG_FROM:
        return LINGER_LONG_S
    return LINGER_S if count >= (LINGER_WHILE if linger_s else LINGER_FROM) else 0.0
