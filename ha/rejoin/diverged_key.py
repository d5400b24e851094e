"""Which archived tails of different replicas hold the same bytes (HA note, R7)."""

from ...proto import v1


def same_bytes(tail: v1.ArchivedTail) -> tuple[int, int, int, int] | None:
    """Equal for archives of the same bytes; None: the replica does not say its checksum, so nobody can tell."""
    return (tail.epoch, tail.start, tail.end, tail.crc32) if tail.crc32 else None
