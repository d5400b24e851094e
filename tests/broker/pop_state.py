"""A group without order and one queue of it: what the tests of the pop state share."""

from __future__ import annotations

from cometmq.broker.pop.delivery import DeliveryRef
from cometmq.broker.pop.group import PopGroup
from cometmq.broker.pop.queue import PopQueue

START_MS = 1_000_000
HIDDEN_MS = 10_000


def nobody(client_id: str) -> bool:
    """No client is alive."""
    return False


def everybody(client_id: str) -> bool:
    """Every client is alive."""
    return True


def group(committed: int = 0, limit: int = 1_000) -> tuple[PopGroup, PopQueue]:
    """A group with one queue."""
    made = PopGroup("t", "g", limit, START_MS)
    return made, made.add_queue((0, 0), committed)


def claim(
    offset: int, pop_ms: int = START_MS, expires_ms: int = START_MS + HIDDEN_MS
) -> DeliveryRef:
    """A handle of queue 0."""
    return DeliveryRef((0, 0), offset, pop_ms, expires_ms)
