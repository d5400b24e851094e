"""The part of the message store that timers read."""

from typing import Protocol


class TimerMessages(Protocol):
    """Log end, records and the bounds of the timer topic; `MessageStore` implements it."""

    @property
    def log_end(self) -> int: ...

    def record_at(self, physical_offset: int) -> bytes: ...

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...
