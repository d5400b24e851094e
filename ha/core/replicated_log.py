"""What replication needs of a commit log; `store.MessageStore` is one, tests bring another.

`tests/ha/log_contract.py` is the conformance suite of this face.
"""

from typing import Protocol


class ReplicatedLog(Protocol):
    """Byte positions only: replication never parses a record. Called from the loop, never waits."""

    @property
    def log_start(self) -> int:
        """The oldest byte that is still there."""
        ...

    @property
    def log_end(self) -> int:
        """End of the last whole record."""
        ...

    @property
    def received_end(self) -> int:
        """End of what `append_raw` took: above `log_end` while a part of a record is there."""
        ...

    @property
    def flushed_offset(self) -> int:
        """Everything below is on disk."""
        ...

    def append_raw(self, offset: int, data: bytes) -> int:
        """Append bytes as they lie on the leader; returns the new `log_end`.

        `offset` is `received_end`, or `log_end`: then a part of a record that had arrived is dropped
        first. An empty log may begin at the start of any segment.
        """
        ...

    def read_log(self, offset: int, max_bytes: int) -> bytes:
        """At most `max_bytes` from `offset`: never beyond `log_end`, never across a segment's end,
        whole records where one fits, otherwise parts of one."""
        ...

    def log_crc(self, start: int, end: int) -> int:
        """CRC-32 of [start, end), across segments."""
        ...

    def flush_soon(self) -> None:
        """Let `flushed_offset` reach what `log_end` is now, as soon as the disk can."""
        ...
