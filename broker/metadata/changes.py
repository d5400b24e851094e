"""Changes of topics, groups and offsets: whether one may be made now, and when it is durable.

Promises: only a leader whose log accepts records writes. The answer is OK only when the change is
as durable as the broker's policy promises (docs/formats/ha.md, rules R1 and R11).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.results import PutStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...store.message_store import MessageStore
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime
    from ..visible.dispatch_pump import DispatchPump
    from ..visible.durability import DurabilityGate
    from .log import MetaLog

Answer = TypeVar("Answer")

_UNKNOWN_OUTCOME = {
    PutStatus.FLUSH_DISK_TIMEOUT: (
        v2.MASTER_PERSISTENCE_TIMEOUT,
        "not flushed in time: the change may or may not be done, ask again",
    ),
    PutStatus.FLUSH_SLAVE_TIMEOUT: (
        v2.SLAVE_PERSISTENCE_TIMEOUT,
        "not replicated in time: the change may or may not be done, ask again",
    ),
}


class MetadataChanges:
    """Permission, durability and duration of changes."""

    def __init__(
        self,
        runtime: Runtime,
        store: MessageStore,
        log: MetaLog,
        leadership: Leadership,
        pump: DispatchPump,
        *,
        durability: DurabilityGate,
    ) -> None:
        self._runtime = runtime
        self._store = store
        #: Where changes are written.
        self.log = log
        self._leadership = leadership
        self._pump = pump
        self._durability = durability

    @property
    def log_end(self) -> int:
        """Where the log ends: what is accepted from now on lies behind."""
        return self._store.log_end

    def check_writable(self) -> None:
        """Raise WireError if nothing can be changed now."""
        if not self._leadership.is_leader:
            raise WireError(v2.HA_NOT_AVAILABLE, "the leader is not reachable: try again")
        if not self._store.writable:
            raise WireError(v2.INTERNAL_SERVER_ERROR, self._store.refusal)
        refusal = self._leadership.write_refusal()
        if refusal is not None:
            raise WireError(v2.HA_NOT_AVAILABLE, refusal)

    def when_durable(self, end: int, answer: Answer) -> asyncio.Future[Answer]:
        """Return `answer` as soon as the log is durable up to `end`. Fails with WireError."""
        future: asyncio.Future[Answer] = self._runtime.loop.create_future()

        def done(status: PutStatus) -> None:
            if future.done():
                return
            if status is PutStatus.PUT_OK:
                future.set_result(answer)
            else:
                future.set_exception(WireError(*_UNKNOWN_OUTCOME[status]))

        self._pump.appended()
        self._durability.wait(end, done)
        return future

    def create(
        self, write: Callable[[], int], answer: Answer, *, what: str, system: bool
    ) -> asyncio.Future[Answer]:
        """Write a new topic or group, as `when_durable`; count the creation and its duration.

        `write` returns the log offset behind the record.
        """
        begin_ns = self._runtime.clock.steady_ns()
        future = self.when_durable(write(), answer)

        def count(done: asyncio.Future[Answer]) -> None:
            failed = done.cancelled() or done.exception() is not None
            took_ms = (self._runtime.clock.steady_ns() - begin_ns) / 1_000_000
            outcome = "failure" if failed else "success"
            self._runtime.counters.add_created(what, outcome, system, took_ms)

        future.add_done_callback(count)
        return future
