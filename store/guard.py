"""The interface by which a reader of the log asks the scrub about damage in finished segments."""

from typing import Protocol


class BlockGuard(Protocol):
    """Called on the store's thread."""

    def will_repair(self, offset: int, size: int) -> bool:
        """Return whether the damaged record that a reader reached will be repaired, so that the
        reader stops in front of it; else it is lost, and skipped."""

    def before_raw_read(self, begin: int, end: int) -> None:
        """Check the bytes [begin, end) of a finished segment, which are read as they are
        (replication). Raises CorruptLogError."""
