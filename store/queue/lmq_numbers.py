"""Light queue offsets of a message during append.

Called by the appender for every message that names light queues. A message is refused as a whole; a
queue created for it counts against `maxLmqConsumeQueueNum`; no offset is used twice, because the
appender raises the next offsets when the record is written (docs/formats/store-format.md, section
3.9).
"""

from dataclasses import replace

from ..format.lmq_queues import MULTI_DISPATCH, asked_for, numbered
from ..format.record import Message, record_size
from ..format.results import PutStatus
from .consume_queue import ConsumeQueue
from .table import QueueTable


class LmqNumbers:
    """Offsets in the light queues of one log."""

    def __init__(self, queues: QueueTable, queues_max: int, record_bytes_max: int) -> None:
        self._queues = queues
        self._queues_max = queues_max  # 0: light queues are disabled
        self._record_bytes_max = record_bytes_max

    def of(self, message: Message) -> tuple[Message, PutStatus, list[ConsumeQueue]]:
        """Return the message with its light queue offsets, the status, and its light queues."""
        properties, queues = message.properties, list[ConsumeQueue]()
        if self._queues_max:
            table = self._queues
            try:
                names = asked_for(message)
                fresh = sum((name, 0) not in table.queues for name in names)
                if fresh and table.lmq_count + fresh > self._queues_max:
                    return message, PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED, []
                queues = [table.queue(name, 0) for name in names]
            except ValueError:
                return message, PutStatus.MESSAGE_ILLEGAL, []
        if queues:
            properties = numbered(properties, [queue.next_offset for queue in queues])
        sys_flag = message.sys_flag & ~MULTI_DISPATCH
        message = replace(message, properties=properties, sys_flag=sys_flag)
        # Such a record is limited as a whole, not by its body alone (docs/formats/store-format.md,
        # 2.5).
        if queues and record_size(message) > self._record_bytes_max:
            return message, PutStatus.MESSAGE_ILLEGAL, []
        return message, PutStatus.PUT_OK, queues
