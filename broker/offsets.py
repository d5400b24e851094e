"""Consumer offsets: the next offset that a group has to consume, by topic, group and queue.

Promises: an offset never passes the first message that is not acknowledged; `consumerOffset.json` in
RocketMQ's form is written at most a few seconds after a change, and at the stop (store format,
section 12.3; broker semantics, section 2.3). Replicas merge by maximum, so that a stale snapshot
cannot take progress back; a commit below the present value (a deliberate rewind) starts a new
generation, and the higher generation wins. Losing the file costs deliveries that are repeated, never
a message. Fields of the file that are not ours are kept and written back.

Beside the offset travels the end of what was handed out: after a failover it tells how many
deliveries are repeated because pop state is not handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from ..proto import v1
from ..store.config_files import number_table
from . import json_file
from .wire import field

_SEPARATOR = "@"
# As in RocketMQ, whose brokers compare versions: moving it on every commit would tell them nothing.
_COMMITS_PER_VERSION = 500

Key = tuple[str, str]
"""Topic and group."""


@dataclass(slots=True)
class Position:
    """How far one group is in one queue."""

    offset: int
    """Everything below is consumed."""
    generation: int = 0
    """Counts deliberate rewinds."""
    handed_out: int = 0
    """Everything below was delivered at least once by some replica."""
    encoded: bytes = dataclass_field(default=b"", compare=False, repr=False)
    """Its entry of a snapshot; empty after a change."""


class ConsumerOffsets:
    """The table, its file and its snapshots."""

    def __init__(
        self, path: Path, wall_ms: Callable[[], int], flush_interval_ms: int = 5_000
    ) -> None:
        self._path = path
        self._wall_ms = wall_ms
        self._table: dict[Key, dict[int, Position]] = {}
        self._rest: dict[str, Any] = {}
        self._foreign: dict[str, dict[int, int]] = {}  # under names that we cannot read
        self._version = {"counter": 0, "stateVersion": 0, "timestamp": 0}
        self._commits = 0
        self._snapshot: bytes | None = None
        self._saver = json_file.Saver(path, self.render, flush_interval_ms / 1000)
        self._saving = False
        self.on_merged: Callable[[str, str, int, Position], None] | None = None
        """Told of every position that a replica's snapshot moved."""

    def load(self) -> None:
        """Read the file, or its backup; none at all is an empty table."""
        found = json_file.load(self._path, _offsets_of)
        if found is None:
            return
        self._rest = {
            key: value
            for key, value in found.items()
            if key not in ("dataVersion", "offsetTable", "groupTopicMap")
        }
        self._version.update(found.get("dataVersion") or {})
        for name, queues in _offsets_of(found).items():
            topic, separator, group = name.partition(_SEPARATOR)
            if separator and topic and group:
                self._table[topic, group] = {
                    queue_id: Position(offset) for queue_id, offset in queues.items()
                }
            else:
                self._foreign[name] = queues

    def start(self) -> None:
        """From now on changes are written a few seconds after they happen; needs the running loop."""
        self._saving = True
        self._saver.changed()

    async def close(self) -> None:
        """Write what is left."""
        self._saving = False
        await self._saver.close()

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """The committed offset; None before the first commit."""
        queues = self._table.get((topic, group))
        position = queues.get(queue_id) if queues else None
        return None if position is None else position.offset

    def position(self, topic: str, group: str, queue_id: int) -> Position | None:
        """The offset and what travels with it."""
        queues = self._table.get((topic, group))
        return queues.get(queue_id) if queues else None

    def commit(
        self, topic: str, group: str, queue_id: int, offset: int, handed_out: int = 0
    ) -> None:
        """Everything below `offset` is consumed; below `handed_out` it was delivered once."""
        queues = self._table.setdefault((topic, group), {})
        position = queues.get(queue_id)
        if position is None:
            queues[queue_id] = Position(offset, 0, handed_out)
        else:
            if offset < position.offset:
                position.generation += 1
            position.offset = offset
            position.handed_out = max(position.handed_out, handed_out)
            position.encoded = b""
        self._changed()

    def forget_topic(self, topic: str) -> None:
        """The topic is gone."""
        self._forget(lambda key: key[0] == topic)

    def forget_group(self, group: str) -> None:
        """The group is gone."""
        self._forget(lambda key: key[1] == group)

    def __iter__(self) -> Iterator[tuple[str, str, int, int]]:
        """Topic, group, queue id and offset of everything."""
        for (topic, group), queues in self._table.items():
            for queue_id, position in queues.items():
                yield topic, group, queue_id, position.offset

    def snapshot(self) -> bytes:
        """A `v1.Offsets` of the whole table; the same object until something changes."""
        if self._snapshot is None:
            # Only what changed is encoded: with many groups most entries stay as they are.
            self._snapshot = b"".join(
                [
                    position.encoded or _encode(topic, group, queue_id, position)
                    for (topic, group), queues in self._table.items()
                    for queue_id, position in queues.items()
                ]
            )
        return self._snapshot

    def apply(self, snapshot: bytes) -> int:
        """Merge a replica's snapshot; returns how many offsets moved. Raises ValueError."""
        try:
            offsets = v1.Offsets.FromString(snapshot)
        except DecodeError as error:
            raise ValueError(f"not a snapshot of consumer offsets: {error}") from error
        return sum(self._merge(entry) for entry in offsets.entries)

    def render(self) -> str:
        """The text of `consumerOffset.json`."""
        self._version["timestamp"] = self._wall_ms()
        table = {
            f"{topic}{_SEPARATOR}{group}": {
                queue_id: queues[queue_id].offset for queue_id in sorted(queues)
            }
            for (topic, group), queues in self._table.items()
        }
        content = {
            "pullOffsetTable": {},
            **self._rest,
            "dataVersion": self._version,
            "groupTopicMap": self._topics_of_groups(),
            "offsetTable": {**self._foreign, **table},
        }
        return json_file.dumps(json_file.ordered(content))

    def _topics_of_groups(self) -> dict[str, list[str]]:
        """What Apache writes beside the offsets and nobody reads."""
        topics: dict[str, list[str]] = {}
        for topic, group in self._table:
            topics.setdefault(group, []).append(topic)
        return topics

    def _merge(self, entry: v1.OffsetEntry) -> bool:
        queues = self._table.setdefault((entry.topic, entry.group), {})
        mine = queues.get(entry.queue_id)
        if mine is None:
            mine = queues[entry.queue_id] = Position(-1, -1)
        moved = (entry.generation, entry.offset) > (mine.generation, mine.offset)
        ahead = entry.next_offset > mine.handed_out
        if moved:
            mine.generation, mine.offset = entry.generation, entry.offset
        if ahead:
            mine.handed_out = entry.next_offset
        if moved or ahead:
            mine.encoded = b""
            self._changed()
            if self.on_merged is not None:
                self.on_merged(entry.topic, entry.group, entry.queue_id, mine)
        return moved

    def _forget(self, matches: Callable[[Key], bool]) -> None:
        gone = [key for key in self._table if matches(key)]
        for key in gone:
            del self._table[key]
        if gone:
            self._changed()

    def _changed(self) -> None:
        self._snapshot = None
        self._commits += 1
        if self._commits % _COMMITS_PER_VERSION == 0:
            self._version["counter"] += 1
        if self._saving:
            self._saver.changed()


def _offsets_of(content: dict[Any, Any]) -> dict[str, dict[int, int]]:
    table = content.get("offsetTable") or {}
    return {str(name): number_table(queues) for name, queues in table.items()}


def _encode(topic: str, group: str, queue_id: int, position: Position) -> bytes:
    """One element of the repeated field `entries` of `v1.Offsets`, kept in the position."""
    entry = v1.OffsetEntry(
        group=group,
        topic=topic,
        queue_id=queue_id,
        offset=position.offset,
        next_offset=position.handed_out,
        generation=position.generation,
    )
    position.encoded = field(b"\x0a", entry.SerializeToString())
    return position.encoded
