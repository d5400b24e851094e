"""Who waits for a flush or for the replicas: an answer is given when the log offset is safe enough.

`WaitingList` is the pure part: appends wait in log order, `advance` lets go those whose end is safe,
`expire` those whose time is over. `DurabilityGate` is its shell: it reads the flushed and the confirm
offset and keeps one timer for the oldest wait.

Promises: what an OK answer means is the table of design, section 4; a timeout is its own outcome
(FLUSH_DISK_TIMEOUT after syncFlushTimeout, FLUSH_SLAVE_TIMEOUT after slaveTimeout; the replicas' wins)
and means *unknown*, never *failed*: the record stays in the log. Waits end in log order. State is in
memory; a crash loses the answers, not the records.

The store's flush thread swaps its own two lists of requests (`store/group_commit.py`); who waits is
kept here, because one list in log order answers for the disk and the replicas at once, and because
timeouts need a clock and answers a loop, which the store has not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...store.format.results import PutStatus

if TYPE_CHECKING:
    import asyncio

    from ...ha.engine import Replication
    from ...store.message_store import MessageStore
    from ..leadership import DurabilityPolicy
    from ..runtime import Runtime

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000

Done = Callable[[PutStatus], None]
"""Called once with the outcome: PUT_OK or one of the timeouts."""


@dataclass(slots=True)
class Wait:
    """One append (of one request) that is not safe yet."""

    end: int
    """Log offset behind its last record."""
    since_ns: int
    done: Done


@dataclass(slots=True)
class WaitingList:
    """Appends in log order and the rules that end their wait; pure."""

    flush_timeout_ns: int | None
    """None: an OK does not wait for this broker's disk."""
    replication_timeout_ns: int | None
    """None: an OK does not wait for the replicas."""
    waits: deque[Wait] = field(default_factory=deque)

    def add(self, end: int, now_ns: int, done: Done) -> None:
        """Wait for the log up to `end`; calls come in log order."""
        assert not self.waits or self.waits[-1].end <= end, (self.waits[-1].end, end)
        self.waits.append(Wait(end, now_ns, done))

    def safe_end(self, flushed: int, confirm: int) -> int | None:
        """The offset up to which everything asked for is done; None when nothing is asked for."""
        if self.flush_timeout_ns is None:
            return None if self.replication_timeout_ns is None else confirm
        return flushed if self.replication_timeout_ns is None else min(flushed, confirm)

    def advance(self, flushed: int, confirm: int) -> list[Wait]:
        """Take out the waits that are safe now."""
        safe = self.safe_end(flushed, confirm)
        waits = self.waits
        released = []
        while waits and (safe is None or waits[0].end <= safe):
            released.append(waits.popleft())
        return released

    def expire(self, flushed: int, confirm: int, now_ns: int) -> list[tuple[Wait, PutStatus]]:
        """Take out the waits whose time is over, each with its outcome.

        Ends and start times both grow along the list and the timeouts are constants, so what has
        expired is a prefix.
        """
        expired = []
        while self.waits:
            status = self._overdue(self.waits[0], flushed, confirm, now_ns)
            if status is None:
                break
            expired.append((self.waits.popleft(), status))
        return expired

    def next_deadline_ns(self) -> int | None:
        """When the oldest wait may expire."""
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
    """The node's waiting list, with its offsets and its timer."""

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
        self._timer: asyncio.TimerHandle | None = None
        self.immediate = policy.immediate
        """An append is as safe as the policy demands as soon as it is done."""

    def __len__(self) -> int:
        return len(self._list.waits)

    def wait(self, end: int, done: Done) -> None:
        """Call `done(status)` when the log up to `end` is safe, or when the time for it is over."""
        if self.immediate:
            done(PutStatus.PUT_OK)
            return
        self._list.add(end, self._clock.steady_ns(), done)
        if self._timer is None:
            self._arm()

    def advance(self) -> None:
        """The flushed or the confirm offset moved."""
        if not self._list.waits:
            return
        for wait in self._list.advance(*self._offsets()):
            self._tell(wait, PutStatus.PUT_OK)

    def set_policy(self, policy: DurabilityPolicy) -> None:
        """Apply the policy of a new epoch; no append waits at that moment."""
        self._policy = policy
        self._list.replication_timeout_ns = _replication_timeout_ns(policy)
        self.immediate = policy.immediate

    def abandon(self) -> None:
        """This replica stopped to lead: complete every wait with an unknown outcome."""
        status = (
            PutStatus.FLUSH_SLAVE_TIMEOUT
            if self._policy.sync_replication
            else PutStatus.FLUSH_DISK_TIMEOUT
        )
        waits = self._list.waits
        while waits:
            self._tell(waits.popleft(), status)

    def close(self) -> None:
        """Stop the timer; nothing is answered any more."""
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
        # A timer may fire a clock tick early; one more millisecond saves a second round.
        self._timer = self._loop.call_later(delay_ns / _NS_PER_S + 0.001, self._expire)

    def _expire(self) -> None:
        self.advance()
        now_ns = self._clock.steady_ns()
        for wait, status in self._list.expire(*self._offsets(), now_ns):
            self._tell(wait, status)
        self._arm()

    def _tell(self, wait: Wait, status: PutStatus) -> None:
        """One that fails (a bug) must leave nobody behind it without an answer, nor stop the timer."""
        try:
            wait.done(status)
        except Exception as error:
            self._loop.call_exception_handler(
                {"message": "what waited for the log failed", "exception": error}
            )


def _flush_timeout_ns(policy: DurabilityPolicy) -> int | None:
    return policy.flush_timeout_ms * _NS_PER_MS if policy.sync_flush else None


def _replication_timeout_ns(policy: DurabilityPolicy) -> int | None:
    return policy.slave_timeout_ms * _NS_PER_MS if policy.sync_replication else None
