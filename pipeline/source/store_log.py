"""Logs of store directories, read from their files. Takes no lock and writes nothing.

`snapshot` determines the bounds of logs and queues; they hold until the next one.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ...store.format.record import BORN_HOST_V6, HOST_V4_BYTES, HOST_V6_BYTES
from ..errors import DataLossError, UnreachableError
from ..safe_end import safe_end
from ..segments import Segment, segments
from ..splits import brokers_of, split_segment
from .log import AnySplit, BrokerLog, QueueName
from .queue_units import OpenFiles, Units, open_units, queues_of
from .store_topics import topics_of

logger = logging.getLogger(__name__)
_FLAGS_AT: Final = 36
_STORE_TIMESTAMP_AT: Final = 56
_LONG: Final = struct.Struct(">q")


class _Store:
    """One store directory."""

    def __init__(self, root: str, wants: Callable[[str, int], bool]) -> None:
        self.root = root
        self._wants = wants
        self._known_end = 0
        self.segments: list[Segment] = []
        self.queues: dict[QueueName, Units] = {}
        self._files = OpenFiles()

    def snapshot(self, *, queues: bool) -> BrokerLog:
        self.close()
        self.segments = segments(self.root)
        end = self._known_end = safe_end(self.root, self.segments, self._known_end)
        start = self.segments[0].base if self.segments else 0
        if queues:
            self.queues = {
                (topic, queue): open_units(folder, start, end, self._files)
                for topic, queue, folder in queues_of(self.root)
                if self._wants(topic, queue)
            }
        bounds = {name: (one.first, one.end) for name, one in self.queues.items()}
        return BrokerLog(start, end, bounds)

    def close(self) -> None:
        """Close the files."""
        self._files.close()
        self.queues = {}

    def time_at(self, position: int) -> int:
        """Return the store time of the record at a physical offset; -1 if it is deleted."""
        segment = next((one for one in self.segments if one.base <= position < one.end), None)
        if segment is None:
            return -1
        try:
            with open(segment.path, "rb") as file:
                head = os.pread(
                    file.fileno(), _STORE_TIMESTAMP_AT + 8 + HOST_V6_BYTES, position - segment.base
                )
        except FileNotFoundError:
            return -1
        at = _STORE_TIMESTAMP_AT
        if int.from_bytes(head[_FLAGS_AT : _FLAGS_AT + 4], "big") & BORN_HOST_V6:
            at += HOST_V6_BYTES - HOST_V4_BYTES
        found: int = _LONG.unpack_from(head, at)[0]
        return found


class StoreLog:
    """The logs of the directories of `path`."""

    physical = True

    def __init__(
        self,
        paths: Sequence[str],
        brokers: Sequence[str],
        wants: Callable[[str, str, int], bool],
        *,
        fail_on_loss: bool = True,
    ) -> None:
        """`wants(broker, topic, queue id)` selects the queues to read."""
        self._fail_on_loss = fail_on_loss
        names = brokers_of(paths, brokers)
        for path in paths:
            if not Path(path).is_dir():
                raise UnreachableError(
                    f"{path} is not a directory on this machine. The driver and every executor "
                    "must see a store under the same path (a shared file system, or one machine)."
                )
        self._stores = {
            name: _Store(path, partial(wants, name))
            for name, path in zip(names, paths, strict=True)
        }

    def snapshot(self) -> dict[str, BrokerLog]:
        return {name: store.snapshot(queues=True) for name, store in self._stores.items()}

    def log_bounds(self) -> dict[str, BrokerLog]:
        """Return the logs without queues, for reads of complete logs."""
        return {name: store.snapshot(queues=False) for name, store in self._stores.items()}

    def offsets_at_position(self, broker: str, position: int) -> dict[QueueName, int]:
        queues = self._stores[broker].queues
        return {name: units.bisect(lambda at: at, position) for name, units in queues.items()}

    def offsets_at_time(self, broker: str, time_ms: int) -> dict[QueueName, int]:
        store = self._stores[broker]
        return {name: units.bisect(store.time_at, time_ms) for name, units in store.queues.items()}

    def positions(
        self, broker: str, messages: Sequence[tuple[str, int, int]]
    ) -> list[tuple[int, int] | None]:
        queues = self._stores[broker].queues
        return [
            queues[topic, queue].position(offset) if (topic, queue) in queues else None
            for topic, queue, offset in messages
        ]

    def split_range(self, broker: str, start: int, end: int, split_bytes: int) -> list[AnySplit]:
        store = self._stores[broker]
        found: list[AnySplit] = []
        reached = start
        for segment in store.segments:
            if segment.end <= start or segment.base >= end:
                continue
            if segment.base > reached:
                self._miss(_gap(store.root, reached, segment.base))
            part = (max(segment.base, start), min(segment.end, end))
            found += split_segment(store.root, broker, segment, part, split_bytes)
            reached = segment.end
        if reached < end:
            self._miss(_gap(store.root, reached, end))
        return found

    def _miss(self, text: str) -> None:
        if self._fail_on_loss:
            raise DataLossError(
                f"{text} Set failOnDataLoss=false to continue with the existing messages."
            )
        logger.warning("pipeline.data_loss %s", text)

    def missing_topics(self, topics: Sequence[str]) -> list[str]:
        known = set(self.topic_names())
        # A directory with only a commit log names no topics: every name is accepted.
        return [topic for topic in topics if topic not in known] if known else []

    def topic_names(self) -> list[str]:
        return sorted({name for store in self._stores.values() for name in topics_of(store.root)})

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


def _gap(root: str, begin: int, end: int) -> str:
    return (
        f"The log of {root} has no file for offsets {begin} to {end}: it was deleted, by retention "
        "or otherwise, or this machine has another directory under the path."
    )
