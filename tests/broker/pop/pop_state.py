"""A group without order with one queue, shared by the tests of pop state."""

from __future__ import annotations

from cometmq.broker.names.delivery import DeliveryRef
from cometmq.broker.pop.group import PopGroup
from cometmq.broker.pop.queue import PopQueue

START_MS = 1_000_000
HIDDEN_MS = 10_000


def none_active(client_id: str) -> bool:
    """Return that no client is active."""
    return False


def all_active(client_id: str) -> bool:
    """Return that every client is active."""
    return True


def group(committed: int = 0, limit: int = 1_000) -> tuple[PopGroup, PopQueue]:
    """Return a group with one queue."""
    made = PopGroup("t", "g", limit, START_MS)
    return made, made.add_queue((0, 0), committed)


def claim(
    offset: int, pop_ms: int = START_MS, expires_ms: int = START_MS + HIDDEN_MS
) -> DeliveryRef:
    """Return a handle of queue 0."""
    return DeliveryRef((0, 0), offset, pop_ms, expires_ms)
