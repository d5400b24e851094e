"""Identity of archived tails: equal for replicas that archived the same bytes (docs/formats/ha.md,
R7)."""

from ...proto import v1


def content_key(tail: v1.ArchivedTail) -> tuple[int, int, int, int] | None:
    """Return a key that is equal for archives of the same bytes; None without a checksum."""
    return (tail.epoch, tail.start, tail.end, tail.crc32) if tail.crc32 else None
