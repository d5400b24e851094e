"""Queues of topics that are gone: their files go when retention has taken the last of their messages.

Until then they say where a topic of the same name begins (`admin/removal.py`). Promises: a part of the work at
each call, only after the log's start has moved; nothing of a topic that there is, of the broker's own or of
light queues is touched (broker semantics, section 8.7). A removal that fails is tried again after the
next move of the log's start.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..metadata.tables import is_system_topic

if TYPE_CHECKING:
    from ..node import Node

log = logging.getLogger(__name__)

# A removal is a few system calls: a millisecond or two of the loop.
_REMOVED_A_TURN = 16
_LIGHT_PREFIX = "%LMQ%"


class QueueGc:
    """Looks for them on every replica, each in its own store."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._seen = -1
        self._rest: list[tuple[str, int]] = []

    def turn(self) -> None:
        """Remove some of what can go."""
        store = self._node.store
        if store.log_start != self._seen:
            self._seen = store.log_start
            self._rest = [key for key in store.queues() if self._is_unused(key[0])]
        part, self._rest = self._rest[:_REMOVED_A_TURN], self._rest[_REMOVED_A_TURN:]
        for topic, queue_id in part:
            if not self._is_unused(topic):
                continue  # it was made again meanwhile
            try:
                removed = store.remove_expired_queue(topic, queue_id)
            except OSError as error:
                log.warning("queue.not_removed topic=%s queue=%d error=%s", topic, queue_id, error)
                continue
            if removed:
                log.info("queue.removed topic=%s queue=%d", topic, queue_id)

    def _is_unused(self, topic: str) -> bool:
        return not (
            topic in self._node.metadata.topics
            or topic.startswith(_LIGHT_PREFIX)
            or is_system_topic(topic)
        )
