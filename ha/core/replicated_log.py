"""Protocol of a commit log for replication; `store.MessageStore` implements it.

`tests/ha/log_contract.py` is the conformance suite.
"""

from typing import Protocol


class ReplicatedLog(Protocol):
    """A log of bytes: replication never parses a record. Called on the event loop; never blocks."""

    @property
    def log_start(self) -> int:
        """The oldest byte kept."""
        ...

    @property
    def log_end(self) -> int:
        """End of the last whole record."""
        ...

    @property
    def received_end(self) -> int:
        """End of the bytes taken by `append_raw`: above `log_end` while a record is partly
        received."""
        ...

    @property
    def flushed_offset(self) -> int:
        """Everything below is on disk."""
        ...

    def append_raw(self, offset: int, data: bytes) -> int:
        """Append the leader's bytes unchanged; returns the new `log_end`.

        `offset` is `received_end`, or `log_end`, which first drops a partly received record. An
        empty log may begin at the start of any segment.
        """
        ...

    def read_log(self, offset: int, max_bytes: int) -> bytes:
        """Return at most `max_bytes` from `offset`: never beyond `log_end`, never across a
        segment's end, whole records where one fits, otherwise parts of one."""
        ...

    def log_crc(self, start: int, end: int) -> int:
        """Return the CRC-32 of [start, end), across segments."""
        ...

    def flush_soon(self) -> None:
        """Start a flush of everything up to the current `log_end`."""
        ...
