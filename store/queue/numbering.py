"""Numbers of records that do not follow the last one of their queue: gaps, and numbers passed."""

import logging
from typing import Final

from ..format.record_layout import RECORD_BYTES_MIN
from ..format.topic_names import is_lmq
from .consume_queue import ConsumeQueue

logger = logging.getLogger(__name__)
#: Gaps of up to this many units are filled without a comparison with the space in the log.
GAP_UNITS: Final = 4096


class QueueGapError(Exception):
    """A queue lacks units before the new ones (raised only while strict)."""


class QueueNumberError(ValueError):
    """A record names a queue offset that it cannot have: its header is damaged."""

    def __init__(self, queue: ConsumeQueue, number: int, physical_offset: int) -> None:
        super().__init__(
            f"the record names queue offset {number} of {queue.topic}/{queue.queue_id}, which ends "
            f"at {queue.max_offset}: fewer records fit between."
        )
        self.physical_offset = physical_offset


def note_gap(queue: ConsumeQueue, number: int, physical_offset: int) -> None:
    """Log missing records before this one. Raises QueueNumberError for a wide gap for which the log
    has no space."""
    end = -1 if is_lmq(queue.topic) else queue.known_end()
    if end < 0:
        return
    missing = number - queue.max_offset
    if missing > GAP_UNITS and missing * RECORD_BYTES_MIN > physical_offset - end:
        raise QueueNumberError(queue, number, physical_offset)
    logger.warning(
        "queue.gap topic=%s queue=%d offset=%d messages=%d physical_offset=%d: the log lacks "
        "the records before this one.",
        queue.topic,
        queue.queue_id,
        queue.max_offset,
        missing,
        physical_offset,
    )


class PassedNumbers:
    """Queues with records that name an offset that the queue has passed; such records get no
    unit."""

    def __init__(self) -> None:
        self._queues: set[ConsumeQueue] = set()

    def note(self, queue: ConsumeQueue, number: int, physical_offset: int) -> None:
        """Log such a record behind the last one of its queue, once for each queue."""
        if queue not in self._queues and 0 <= queue.known_end() <= physical_offset:
            self._queues.add(queue)
            logger.warning(
                "queue.offset_passed topic=%s queue=%d offset=%d physical_offset=%d end=%d: the "
                "record has no place in the queue; further ones of it are not logged.",
                queue.topic,
                queue.queue_id,
                number,
                physical_offset,
                queue.max_offset,
            )

    def forget(self, queue: ConsumeQueue) -> None:
        """Log again: the queue restarts."""
        self._queues.discard(queue)
