"""What every change of topics, groups and offsets needs: whether one may be made, and when it is safe.

Promises: nothing is written by a follower, nor while the log takes nothing; an answer says OK only
when the log is as durable up to the change as the broker's mode promises (HA, rules R1 and R11).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from ...proto import v2
from ...proto.errors import WireError
from ...store.format.results import PutStatus

if TYPE_CHECKING:
    from ..node import Node

Answer = TypeVar("Answer")

_UNKNOWN_OUTCOME = {
    PutStatus.FLUSH_DISK_TIMEOUT: (
        v2.MASTER_PERSISTENCE_TIMEOUT,
        "not flushed in time: it may or may not be done, ask again",
    ),
    PutStatus.FLUSH_SLAVE_TIMEOUT: (
        v2.SLAVE_PERSISTENCE_TIMEOUT,
        "not replicated in time: it may or may not be done, ask again",
    ),
}


def check_writable(node: Node) -> None:
    """Raise WireError where nothing can be changed now."""
    if not node.leadership.is_leader:
        raise WireError(v2.HA_NOT_AVAILABLE, "the leader is not reachable: try again")
    if not node.store.writable:
        raise WireError(v2.INTERNAL_SERVER_ERROR, node.store.refusal)
    refusal = node.leadership.write_refusal()
    if refusal is not None:
        raise WireError(v2.HA_NOT_AVAILABLE, refusal)


def count_creation(
    node: Node, what: str, system: bool, begin_ns: int, future: asyncio.Future[Any]
) -> None:
    """Note how long it took to make a topic or a group, once that is known."""

    def note(done: asyncio.Future[Answer]) -> None:
        failed = done.cancelled() or done.exception() is not None
        took_ms = (node.clock.steady_ns() - begin_ns) / 1_000_000
        node.counters.add_created(what, "failure" if failed else "success", system, took_ms)

    future.add_done_callback(note)


def when_durable(node: Node, end: int, answer: Answer) -> asyncio.Future[Answer]:
    """The answer, when the log is safe up to `end`."""
    future: asyncio.Future[Answer] = node.loop.create_future()

    def done(status: PutStatus) -> None:
        if future.done():
            return
        if status is PutStatus.PUT_OK:
            future.set_result(answer)
        else:
            future.set_exception(WireError(*_UNKNOWN_OUTCOME[status]))

    node.pump.appended()
    node.durability.wait(end, done)
    return future
