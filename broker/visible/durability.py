"""Durability of answers: an append waits until its log offset is flushed and replicated.

`WaitingList` is the pure part: appends wait in log order, `advance` releases those that are
durable, `expire` those that have timed out. `DurabilityGate` is its shell: it reads the flushed and
the confirm offset and keeps one timer for the oldest wait.

Promises: an OK answer means what docs/design/delivery-guarantees.md states for the policy; a
timeout is an outcome of its own (FLUSH_DISK_TIMEOUT after syncFlushTimeout, FLUSH_SLAVE_TIMEOUT
after slaveTimeout, which has precedence) and means *unknown*, never *failed*: the record stays in
the log. Waits end in log order. State is in memory; a crash loses the answers, not the records.

The store's flush thread has request lists of its own (`store/group_commit.py`). The waits are kept
here, because one list in log order serves the disk and the replicas, and because timeouts need a
clock and answers an event loop, which the store does not have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ...store.format.results import PutStatus

if TYPE_CHECKING:
    import asyncio

    from ...front.service import Together
    from ...ha.engine import Replication
    from ...store.message_store import MessageStore
    from ..base.leadership import DurabilityPolicy
    from ..base.runtime import Runtime

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000

#: Called once with the outcome: PUT_OK or one of the timeouts.
Done = Callable[[PutStatus], None]


class Wait(Struct):
    """One append that is not durable yet."""

    #: Log offset after its last record.
    end: int
    since_ns: int
    done: Done
    #: Number of requests.
    requests: int = 1


class WaitingList(Struct):
    """Waiting appends in log order, and the rules that end a wait; pure."""

    #: None: answers do not wait for this broker's disk.
    flush_timeout_ns: int | None
    #: None: answers do not wait for the replicas.
    replication_timeout_ns: int | None
    waits: deque[Wait] = field(default_factory=deque)

    def add(self, end: int, now_ns: int, done: Done, requests: int = 1) -> None:
        """Add a wait for the log up to `end`. Calls come in log order."""
        assert not self.waits or self.waits[-1].end <= end, (self.waits[-1].end, end)
        self.waits.append(Wait(end, now_ns, done, requests))

    def safe_end(self, flushed: int, confirm: int) -> int | None:
        """Return the offset up to which the log is durable; None if the policy requires nothing."""
        if self.flush_timeout_ns is None:
            return None if self.replication_timeout_ns is None else confirm
        return flushed if self.replication_timeout_ns is None else min(flushed, confirm)

    def advance(self, flushed: int, confirm: int) -> list[Wait]:
        """Remove and return the waits that are durable now."""
        safe = self.safe_end(flushed, confirm)
        waits = self.waits
        released = []
        while waits and (safe is None or waits[0].end <= safe):
            released.append(waits.popleft())
        return released

    def expire(self, flushed: int, confirm: int, now_ns: int) -> list[tuple[Wait, PutStatus]]:
        """Remove and return the waits that have timed out, each with its outcome.

        Ends and start times both grow along the list and the timeouts are constants, so the expired
        waits are a prefix.
        """
        expired = []
        while self.waits:
            status = self._overdue(self.waits[0], flushed, confirm, now_ns)
            if status is None:
                break
            expired.append((self.waits.popleft(), status))
        return expired

    def next_deadline_ns(self) -> int | None:
        """Return the earliest time at which the oldest wait may expire."""
        if not self.waits:
            return None
        timeouts = [
            t for t in (self.flush_timeout_ns, self.replication_timeout_ns) if t is not None
        ]
        return self.waits[0].since_ns + min(timeouts, default=0)

    def _overdue(self, wait: Wait, flushed: int, confirm: int, now_ns: int) -> PutStatus | None:
        waited = now_ns - wait.since_ns
        slow_replica = self.replication_timeout_ns
        if slow_replica is not None and confirm < wait.end and waited >= slow_replica:
            return PutStatus.FLUSH_SLAVE_TIMEOUT
        slow_disk = self.flush_timeout_ns
        if slow_disk is not None and flushed < wait.end and waited >= slow_disk:
            return PutStatus.FLUSH_DISK_TIMEOUT
        return None


class DurabilityGate:
    """The waiting list of a broker, with the offsets and a timer."""

    def __init__(
        self,
        runtime: Runtime,
        store: MessageStore,
        replication: Replication,
        policy: DurabilityPolicy,
    ) -> None:
        self._clock = runtime.clock
        self._loop = runtime.loop
        self._store = store
        self._replication = replication
        self._policy = policy
        self._list = WaitingList(_flush_timeout_ns(policy), _replication_timeout_ns(policy))
        self._requests = 0
        self._timer: asyncio.TimerHandle | None = None
        self._together: Together = nullcontext
        #: Whether an append satisfies the policy as soon as it returns.
        self.immediate = policy.immediate

    def __len__(self) -> int:
        """Return the number of requests that wait."""
        return self._requests

    def connect(self, together: Together) -> None:
        """Connect the front door: `together` is `Door.together`."""
        self._together = together

    def wait(self, end: int, done: Done, requests: int = 1) -> None:
        """Call `done(status)` when the log is durable up to `end`, or after a timeout; `requests`
        wait for it."""
        if self.immediate:
            done(PutStatus.PUT_OK)
            return
        self._list.add(end, self._clock.steady_ns(), done, requests)
        self._requests += requests
        if self._timer is None:
            self._arm()

    def advance(self) -> None:
        """Complete waits after a move of the flushed or the confirm offset."""
        if not self._list.waits:
            return
        with self._together():
            for wait in self._list.advance(*self._offsets()):
                self._complete(wait, PutStatus.PUT_OK)

    def set_policy(self, policy: DurabilityPolicy) -> None:
        """Apply the policy of a new epoch, while no append waits."""
        self._policy = policy
        self._list.replication_timeout_ns = _replication_timeout_ns(policy)
        self.immediate = policy.immediate

    def abandon(self) -> None:
        """Complete every wait with an unknown outcome: this replica stopped to lead."""
        status = (
            PutStatus.FLUSH_SLAVE_TIMEOUT
            if self._policy.sync_replication
            else PutStatus.FLUSH_DISK_TIMEOUT
        )
        waits = self._list.waits
        with self._together():
            while waits:
                self._complete(waits.popleft(), status)

    def close(self) -> None:
        """Stop the timer; pending waits are not completed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _offsets(self) -> tuple[int, int]:
        return self._store.flushed_offset, self._replication.confirm

    def _arm(self) -> None:
        deadline = self._list.next_deadline_ns()
        if deadline is None:
            self._timer = None
            return
        delay_ns = max(0, deadline - self._clock.steady_ns())
        # A timer may fire a clock tick early; one more millisecond saves a second timer.
        self._timer = self._loop.call_later(delay_ns / _NS_PER_S + 0.001, self._expire)

    def _expire(self) -> None:
        self.advance()
        now_ns = self._clock.steady_ns()
        with self._together():
            for wait, status in self._list.expire(*self._offsets(), now_ns):
                self._complete(wait, status)
        self._arm()

    def _complete(self, wait: Wait, status: PutStatus) -> None:
        """Call `done`; an exception (a bug) must not affect later waits or the timer."""
        self._requests -= wait.requests
        try:
            wait.done(status)
        except Exception as error:
            self._loop.call_exception_handler(
                {"message": "a callback of the durability gate failed", "exception": error}
            )


def _flush_timeout_ns(policy: DurabilityPolicy) -> int | None:
    return policy.flush_timeout_ms * _NS_PER_MS if policy.sync_flush else None


def _replication_timeout_ns(policy: DurabilityPolicy) -> int | None:
    return policy.slave_timeout_ms * _NS_PER_MS if policy.sync_replication else None
