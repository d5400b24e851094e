"""Removal of unused queues: the consume queue files of deleted topics.

A queue is removed after retention has deleted the last of its messages. Until then it determines
where a new topic of the same name begins (`removal.py`). Promises: a call removes a bounded
number of queues, and only after the start of the log has moved; queues of existing topics, system
topics and light message queues stay (docs/formats/broker-semantics.md, section 8.7). A removal that
fails is retried after the next move of the log's start.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..metadata.tables import is_system_topic

if TYPE_CHECKING:
    from ...store.message_store import MessageStore
    from ..metadata.tables import Metadata

logger = logging.getLogger(__name__)

# A removal is a few system calls: this many take a millisecond or two of the loop.
_REMOVALS_PER_TURN = 16
_LMQ_PREFIX = "%LMQ%"


class QueueGc:
    """Removes the unused queues of this replica's store; runs on leaders and followers."""

    def __init__(self, store: MessageStore, metadata: Metadata) -> None:
        self._store = store
        self._metadata = metadata
        self._seen_log_start = -1
        self._candidates: list[tuple[str, int]] = []

    def turn(self) -> None:
        """Remove up to `_REMOVALS_PER_TURN` unused queues."""
        store = self._store
        if store.log_start != self._seen_log_start:
            self._seen_log_start = store.log_start
            self._candidates = [key for key in store.queues() if self._is_unused(key[0])]
        part = self._candidates[:_REMOVALS_PER_TURN]
        self._candidates = self._candidates[_REMOVALS_PER_TURN:]
        # A topic may have been created again meanwhile.
        unused = [queue for queue in part if self._is_unused(queue[0])]
        try:
            removed = store.removal.remove_expired(unused)
        except OSError as error:
            logger.warning("queue.not_removed queues=%s error=%s", unused, error)
            return
        for topic, queue_id in removed:
            logger.info("queue.removed topic=%s queue=%d", topic, queue_id)

    def _is_unused(self, topic: str) -> bool:
        return not (
            topic in self._metadata.topics
            or topic.startswith(_LMQ_PREFIX)
            or is_system_topic(topic)
        )
