"""Messages that readers skip because their records are damaged and no replica has restored them."""

import os
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from .log.commit_log import CommitLog

#: Maximum number of messages that are listed and counted.
LISTED_MAX: Final = 1000


class Gap(Struct, frozen=True):
    """A message without a readable record."""

    topic: str
    queue_id: int
    offset: int
    file: str  #: segment that should hold the record; "" if unknown

    def __str__(self) -> str:
        return f"topic={self.topic} queue={self.queue_id} offset={self.offset} file={self.file}"


class Gaps:
    """The messages that were skipped since the start, until their log is repaired."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._listed: dict[tuple[str, int, int], Gap] = {}

    def __len__(self) -> int:
        return len(self._listed)

    def __iter__(self) -> Iterator[Gap]:
        return iter(sorted(self._listed.values(), key=lambda gap: (gap.topic, gap.queue_id)))

    def of(self, topic: str, queue_id: int) -> list[Gap]:
        """Return the listed gaps of one queue, in queue order."""
        gaps = [gap for gap in self._listed.values() if gap.topic == topic]
        gaps = [gap for gap in gaps if gap.queue_id == queue_id]
        return sorted(gaps, key=lambda gap: gap.offset)

    def note(self, topic: str, queue_id: int, offset: int, physical_offset: int) -> bool:
        """Note a skipped message; return whether it is new."""
        key = topic, queue_id, offset
        if key in self._listed or len(self._listed) >= LISTED_MAX:
            return False
        log = self._log
        file = ""
        if log.start <= physical_offset < log.readable_end:
            file = os.path.basename(log.segment_at(physical_offset).path)
        self._listed[key] = Gap(topic, queue_id, offset, f"commitlog/{file}" if file else "")
        return True

    def clear(self) -> None:
        """Forget all: the log was repaired, and readers note what is still missing."""
        self._listed.clear()
