"""Delay levels: the levels, the schedule topic's queues, and the delivery progress of each.

    messageDelayLevel = 1s 5s 10s 30s 1m ... 2h      level 1, 2, 3, ... (s, m, h and d)

A message with DELAY = n lies in queue n - 1 of SCHEDULE_TOPIC_XXXX; the tags code of its queue unit
is its due time, store time + delay (docs/formats/store-format.md, sections 3.2, 11.1 and 11.3). A
level above the last one counts as the last. `config/delayOffset.json` holds the next queue offset
of every level that was delivered from; after its loss (or a crash: it is written every few seconds)
the messages since then are delivered again. Levels that this configuration does not have stay in
the file.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ..format.disk import Disk
from ..format.json_file import STORE_KEY, dumps, load, ordered, persist
from ..format.properties import DELAY_LEVELS_MS
from .catalog import number_table

_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL: Final = re.compile(r"(\d{1,9})([smhd])", re.ASCII)


@lru_cache(maxsize=16)
def parse_levels(text: str) -> tuple[int, ...]:
    """Return the delays in ms of `messageDelayLevel`. Raises ValueError with a sentence."""
    levels = []
    for part in text.split():
        match = _LEVEL.fullmatch(part)
        if match is None:
            raise ValueError(
                f"messageDelayLevel has {part!r}: write numbers with s, m, h or d, like 30s or 2h."
            )
        levels.append(int(match[1]) * _UNITS_MS[match[2]])
    if not levels:
        raise ValueError("messageDelayLevel is empty: name at least one delay, like 1s.")
    return tuple(levels)


def queue_of(level: int, levels_ms: Sequence[int] = DELAY_LEVELS_MS) -> int:
    """Return the queue of the schedule topic for a level above 0."""
    return min(level, len(levels_ms)) - 1


def due_ms(store_ms: int, level: int, levels_ms: Sequence[int] = DELAY_LEVELS_MS) -> int:
    """Return the due time of a message: the tags code of its queue unit."""
    return store_ms + levels_ms[queue_of(level, levels_ms)]


class DelayOffsets:
    """`config/delayOffset.json`: level -> next offset in its queue."""

    def __init__(self, path: Path, wall_ms: Callable[[], int], disk: Disk | None = None) -> None:
        self._path = path
        self._wall_ms = wall_ms
        self._disk = disk or Disk()
        self._content: dict[Any, Any] = {}
        self._version: dict[Any, Any] = {"counter": 0, "stateVersion": 0, "timestamp": 0}
        self._offsets: dict[int, int] = {}
        self._changed = False
        self._store_id = ""

    def load(self, store_id: str = "") -> None:
        """Read the file or its backup; an empty table without both. `store_id` names the store in
        the file. Raises ConfigFileError."""
        self._store_id = store_id
        self._content = load(self._path, _offsets_of) or {}
        self._version.update(self._content.get("dataVersion") or {})
        self._offsets = _offsets_of(self._content)
        # The id of a former store would be refused at the next start.
        self._changed = self._version.get(STORE_KEY, store_id) != store_id

    def offset(self, level: int, first: int, end: int) -> int:
        """Return where delivery continues, within the queue's bounds."""
        return max(first, min(self._offsets.get(level, 0), end))

    def set(self, level: int, offset: int) -> None:
        if self._offsets.get(level) != offset:
            self._offsets[level] = offset
            self._changed = True

    def render(self) -> str:
        if self._store_id:
            self._version[STORE_KEY] = self._store_id
        content = {**self._content, "dataVersion": self._version, "offsetTable": self._offsets}
        return dumps(ordered(content))

    def save(self) -> None:
        """Write the file if an offset moved. Raises OSError."""
        if self._changed:
            persist(self._path, self.next_version(), self._disk)

    def next_version(self) -> str:
        """Return the text of the file for a caller that writes it; with a new version if an offset
        moved."""
        if self._changed:
            self._changed = False
            self._version["counter"] += 1
            self._version["timestamp"] = self._wall_ms()
        return self.render()


def _offsets_of(content: dict[Any, Any]) -> dict[int, int]:
    return number_table(content.get("offsetTable") or {})
