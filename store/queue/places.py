"""Between places in the log and offsets in a queue: for readers that plan by ranges of the log.

Pure questions about an open queue; derived data, like the queue itself. Units of a queue point upwards in the
log (fillers aside), so a place is found by bisection (store format, section 3.1).
"""

from bisect import bisect_left

from ..format.queue_unit import FILLER_SIZE
from .consume_queue import ConsumeQueue


def place_of(queue: ConsumeQueue, offset: int) -> tuple[int, int] | None:
    """Physical offset and size of a message's record; None where the queue holds no such message."""
    if not queue.min_offset <= offset < queue.max_offset:
        return None
    place, size, _ = queue.unit(offset)
    return None if size == FILLER_SIZE else (place, size)


def offset_at(queue: ConsumeQueue, place: int) -> int:
    """The first offset of the queue whose record lies at `place` or above; its end where none does."""
    first, end = queue.min_offset, queue.max_offset
    return first + bisect_left(range(first, end), place, key=lambda number: queue.unit(number)[0])
