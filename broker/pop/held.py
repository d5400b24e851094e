"""Messages in flight as tools see them: which message, since when, until when, with which client.

Simple consumers are not named: a delivery names only the push consumer for which it is renewed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...proto import v1
from .fifo.ordered_group import OrderedGroup

if TYPE_CHECKING:
    from ..names.delivery import Alive
    from .subscription import Core


def deliveries_of(core: Core, now_ms: int, alive: Alive) -> Iterator[v1.GroupDelivery]:
    """Return the deliveries of a group on a topic that are in flight."""
    if isinstance(core, OrderedGroup):
        yield from _ordered(core, now_ms, alive)
        return
    for queue in core.queues.values():
        for delivery in queue.unacked.values():
            yield v1.GroupDelivery(
                topic=queue.topic,
                queue_id=queue.queue_id,
                offset=delivery.offset,
                attempt=delivery.attempt,
                delivered_ms=delivery.since_ms,
                visible_ms=delivery.visible_ms,
                client_id=delivery.owner,
            )


def _ordered(core: OrderedGroup, now_ms: int, alive: Alive) -> Iterator[v1.GroupDelivery]:
    for queue in core.queues.values():
        batch = queue.batch
        if batch is None or not batch.is_locked(now_ms, alive):
            continue
        for offset in batch.unacked():
            yield v1.GroupDelivery(
                topic=core.topic,
                queue_id=queue.queue_id,
                offset=offset,
                attempt=batch.attempts.get(offset, 1),
                delivered_ms=batch.since_ms,
                visible_ms=batch.visible.get(offset, batch.visible_ms),
                client_id=batch.owner,
            )
