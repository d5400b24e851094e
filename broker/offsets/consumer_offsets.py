"""Consumer offsets: the next offset to consume, by topic, group and queue.

An offset never passes a message that is neither acknowledged nor, as a checkpoint, in the log.
`consumerOffset.json`, in RocketMQ's format, is written at most a few seconds after a change, and at
the stop (docs/formats/store-format.md, section 12.3; docs/formats/broker-semantics.md, section
2.3). Replicas merge by maximum, so that a stale snapshot cannot undo progress; a commit below the
current value (a deliberate rewind) starts a new generation, and the higher generation wins. Losing
the file costs repeated deliveries, never a message. Fields of the file that CometMQ does not
interpret are kept and written back.

The file is never newer than the log on the same disk (`_log_flushed`), and a replica applies a
snapshot when its log is as long as the leader's was (`catch_up`). Changes since the file was
written are in `ha/offsets-recent` (`recent.py`). The log's end at a rewind is kept in the file,
under a CometMQ key that Apache ignores: acknowledgements before it no longer count.

Each offset travels with the end of what was delivered: after a failover it gives the number of
repeated deliveries, because pop state is not replicated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from ...proto import v1
from ...store.format.json_file import STORE_KEY
from ..base import json_file
from .entries import Position, encode, gone, offsets_of, tables
from .recent import Log, RecentOffsets

logger = logging.getLogger(__name__)

_SEPARATOR = "@"
# As in RocketMQ, whose brokers compare versions: a version per commit would be meaningless.
_COMMITS_PER_VERSION = 500
_REWOUND = "rewoundAtTable"
#: In files of earlier versions: times in its place.
_REWOUND_MS = "rewoundTable"
# Snapshots that wait for the log; beyond this the newest replaces the last.
_LATER_MAX = 8
_FLUSH_LOOK_S = 0.02
_FLUSH_LOOKS = 500
_NOTE_S = 0.2


#: Topic and group.
Key = tuple[str, str]


class ConsumerOffsets:
    """The table, its file and its snapshots."""

    def __init__(
        self,
        path: Path,
        wall_ms: Callable[[], int],
        flush_interval_ms: int = 5_000,
        *,
        log: Log | None = None,
        recent: RecentOffsets | None = None,
        store_id: Callable[[], str] = str,
    ) -> None:
        """`log` is the log on which the offsets rely; `recent` keeps changes since the last
        write; `store_id` names their store."""
        self._path = path
        self._wall_ms = wall_ms
        self._table: dict[Key, dict[int, Position]] = {}
        self._rest: dict[str, Any] = {}
        self._foreign: dict[str, dict[int, int]] = {}  # keys that CometMQ does not interpret
        self._version: dict[str, Any] = {"counter": 0, "stateVersion": 0, "timestamp": 0}
        self._commits = 0
        self._snapshot: bytes | None = None
        self._saver = json_file.Saver(path, self.render, flush_interval_ms / 1000)
        self._saving = False
        self._later: deque[v1.Offsets] = deque()
        self._merge_listeners: list[Callable[[str, str, int, Position], None]] = []
        self._removal_listeners: list[Callable[[str | None, str | None], None]] = []
        self._log = log
        self._recent = recent
        self._store_id = store_id
        self._moved: dict[tuple[str, str, int], Position | None] = {}
        self._note_timer: asyncio.TimerHandle | None = None

    def subscribe_merges(self, listener: Callable[[str, str, int, Position], None]) -> None:
        """Call `listener` with every position that a replica's snapshot changes."""
        self._merge_listeners.append(listener)

    def subscribe_removals(self, listener: Callable[[str | None, str | None], None]) -> None:
        """Call `listener(topic, group)` when the offsets of a removed topic or group are
        dropped."""
        self._removal_listeners.append(listener)

    def load(self) -> None:
        """Read the file or its backup; no file is an empty table.

        A broker writes the file in its first seconds and at each stop. A store that has messages
        but no file has lost it.
        """
        document = json_file.load(self._path, offsets_of)
        if document is None:
            if self._log is not None and self._log.log_end:
                logger.warning(
                    "consumer_offsets.missing path=%s: the store has messages but no file of "
                    "offsets; without newer progress, groups receive messages again.",
                    self._path,
                )
            return
        self._rest = {
            key: value
            for key, value in document.items()
            if key not in ("dataVersion", "offsetTable", "groupTopicMap", _REWOUND, _REWOUND_MS)
        }
        self._version.update(document.get("dataVersion") or {})
        for name, queues in offsets_of(document).items():
            topic, separator, group = name.partition(_SEPARATOR)
            if separator and topic and group:
                self._table[topic, group] = {
                    queue_id: Position(offset) for queue_id, offset in queues.items()
                }
            else:
                self._foreign[name] = queues
        for key in (_REWOUND_MS, _REWOUND):
            for name, ends in tables(document.get(key)).items():
                topic, _, group = name.partition(_SEPARATOR)
                for queue_id, end in ends.items():
                    position = self.position(topic, group, queue_id)
                    if position is not None:
                        # After a rewind at an unknown place nothing counts: it is delivered again.
                        position.rewound_at = end if key == _REWOUND else self._log_end()

    def load_recent(self) -> None:
        """Apply the changes after the last write of the file, as far as the log reaches."""
        assert self._recent is not None
        assert self._log is not None
        for offsets in self._recent.read(self._path, self._version["timestamp"], self._log.log_end):
            for entry in offsets.entries:
                queues = self._table.setdefault((entry.topic, entry.group), {})
                if entry.offset < 0:
                    queues.pop(entry.queue_id, None)
                else:
                    self.commit(
                        entry.topic, entry.group, entry.queue_id, entry.offset, entry.next_offset
                    )
        self._table = {key: queues for key, queues in self._table.items() if queues}
        self._recent.begin(self._take_moved(), self._now_ms())

    def start(self) -> None:
        """Write changes a few seconds after they happen; needs the running loop."""
        self._saving = True
        if self._recent is not None:
            self._saver.written = self._recent.covered
        if self._log is not None:
            self._saver.ready = self._log_flushed
        self._saver.changed()

    async def close(self) -> None:
        """Write pending changes."""
        self._saving = False
        if self._note_timer is not None:
            self._note_timer.cancel()
        await self._saver.close()

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the committed offset; None before the first commit."""
        queues = self._table.get((topic, group))
        position = queues.get(queue_id) if queues else None
        return None if position is None else position.offset

    def position(self, topic: str, group: str, queue_id: int) -> Position | None:
        """Return the offset and what travels with it."""
        queues = self._table.get((topic, group))
        return queues.get(queue_id) if queues else None

    def commit(
        self, topic: str, group: str, queue_id: int, offset: int, handed_out: int = 0
    ) -> None:
        """Commit `offset`: everything below is consumed; everything below `handed_out` was
        delivered once.
        """
        queues = self._table.setdefault((topic, group), {})
        position = queues.get(queue_id)
        if position is None:
            queues[queue_id] = Position(offset, 0, handed_out)
        else:
            if offset < position.offset:
                position.generation += 1
                position.rewound_at = self._log_end()
            position.offset = offset
            position.handed_out = max(position.handed_out, handed_out)
            position.encoded = b""
        if self._recent is not None:
            self._moved[topic, group, queue_id] = queues[queue_id]
        self._changed()

    def forget(self, topic: str, group: str) -> None:
        """Remove the offsets of a group on a topic."""
        if (topic, group) in self._table:
            self._forget([(topic, group)])

    def forget_topic(self, topic: str) -> None:
        """Remove the offsets of a topic."""
        self._forget([key for key in self._table if key[0] == topic])
        for listener in self._removal_listeners:
            listener(topic, None)

    def forget_group(self, group: str) -> None:
        """Remove the offsets of a group."""
        self._forget([key for key in self._table if key[1] == group])
        for listener in self._removal_listeners:
            listener(None, group)

    def pairs(self) -> list[tuple[str, str]]:
        """Return topic and group of all entries, each pair once."""
        return list(self._table)

    def __contains__(self, pair: tuple[str, str]) -> bool:
        return pair in self._table

    def queues(self, topic: str, group: str) -> list[tuple[int, int]]:
        """Return queue id and offset of the group's entries on a topic."""
        positions = self._table.get((topic, group), {})
        return [(queue_id, position.offset) for queue_id, position in positions.items()]

    def __iter__(self) -> Iterator[tuple[str, str, int, int]]:
        """Iterate over topic, group, queue id and offset of all entries."""
        for (topic, group), queues in self._table.items():
            for queue_id, position in queues.items():
                yield topic, group, queue_id, position.offset

    def snapshot(self) -> bytes:
        """Return a `v1.Offsets` of the whole table; the same object until a change."""
        if self._snapshot is None:
            # Only changed entries are encoded again: with many groups most do not change.
            parts = [
                position.encoded or encode(topic, group, queue_id, position)
                for (topic, group), queues in self._table.items()
                for queue_id, position in queues.items()
            ]
            if self._log is not None:
                parts.append(v1.Offsets(log_end=self._log.log_end).SerializeToString())
            self._snapshot = b"".join(parts)
        return self._snapshot

    def apply(self, snapshot: bytes, log_end: int | None = None) -> int:
        """Merge a replica's snapshot; return how many offsets moved. Raises ValueError.

        With `log_end`, the end of the local log, the merge waits until the log is as long as the
        sender's was (`catch_up`).
        """
        try:
            offsets = v1.Offsets.FromString(snapshot)
        except DecodeError as error:
            raise ValueError(f"not a snapshot of consumer offsets: {error}") from error
        if log_end is None:
            return sum(self._merge(entry) for entry in offsets.entries)
        if len(self._later) >= _LATER_MAX:
            self._later.pop()
        self._later.append(offsets)
        return self.catch_up(log_end)

    def catch_up(self, log_end: int) -> int:
        """Merge the snapshots that waited for the log to reach `log_end`."""
        moved = 0
        while self._later and self._later[0].log_end <= log_end:
            moved += sum(self._merge(entry) for entry in self._later.popleft().entries)
        return moved

    def drop_waiting(self) -> None:
        """Discard waiting snapshots: this replica leads or changed its leader, and their log will
        not arrive.

        An offset may pass messages whose checkpoints are in that log, so nothing of them is
        applied.
        """
        self._later.clear()

    def render(self) -> str:
        """Return the text of `consumerOffset.json`."""
        self._version["timestamp"] = self._wall_ms()
        if store_id := self._store_id():
            self._version[STORE_KEY] = store_id
        if self._recent is not None:
            self._recent.cover()
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
        rewound = self._rewound()
        if rewound:
            content[_REWOUND] = rewound
        return json_file.dumps(json_file.ordered(content))

    async def _log_flushed(self) -> bool:
        """Return whether the log on which the current offsets rely is on disk."""
        log = self._log
        assert log is not None
        end = log.log_end
        log.flush_soon()
        for _ in range(_FLUSH_LOOKS):
            if log.flushed_offset >= end:
                return True
            if not log.writable and not log.paused:
                return False  # a flush failed: no further flush follows
            await asyncio.sleep(_FLUSH_LOOK_S)
        return False

    def _now_ms(self) -> int:
        """Return the time of a change: never before the last write of the file, so that the changes
        after it are found when the clock was set back."""
        return max(self._wall_ms(), int(self._version["timestamp"]))

    def _log_end(self) -> int:
        return self._log.log_end if self._log is not None else 0

    def _rewound(self) -> dict[str, dict[int, int]]:
        table: dict[str, dict[int, int]] = {}
        for (topic, group), queues in self._table.items():
            for queue_id, position in queues.items():
                if position.rewound_at:
                    ends = table.setdefault(f"{topic}{_SEPARATOR}{group}", {})
                    ends[queue_id] = position.rewound_at
        return table

    def _topics_of_groups(self) -> dict[str, list[str]]:
        """Return the topics of each group, which Apache writes beside the offsets and never
        reads.
        """
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
        if entry.generation > mine.generation >= 0:
            mine.rewound_at = self._log_end()
        if moved:
            mine.generation, mine.offset = entry.generation, entry.offset
        if ahead:
            mine.handed_out = entry.next_offset
        if moved or ahead:
            mine.encoded = b""
            if self._recent is not None:
                self._moved[entry.topic, entry.group, entry.queue_id] = mine
            self._changed()
            for listener in self._merge_listeners:
                listener(entry.topic, entry.group, entry.queue_id, mine)
        return moved

    def _forget(self, gone: list[Key]) -> None:
        for key in gone:
            for queue_id in self._table.pop(key):
                if self._recent is not None:
                    self._moved[(*key, queue_id)] = None
        if gone:
            self._changed()

    def _changed(self) -> None:
        self._snapshot = None
        self._commits += 1
        if self._commits % _COMMITS_PER_VERSION == 0:
            self._version["counter"] += 1
        if self._saving:
            self._saver.changed()
            if self._note_timer is None and self._moved:
                loop = asyncio.get_running_loop()
                self._note_timer = loop.call_later(_NOTE_S, self._note)

    def _note(self) -> None:
        self._note_timer = None
        if self._recent is not None and self._moved:
            self._recent.append(self._take_moved(), self._now_ms())

    def _take_moved(self) -> bytes:
        """Return the changes since the last call, with the log end on which they rely."""
        moved, self._moved = self._moved, {}
        parts = [
            position.encoded or encode(topic, group, queue_id, position)
            if position is not None
            else gone(topic, group, queue_id)
            for (topic, group, queue_id), position in moved.items()
        ]
        if parts and self._log is not None:
            parts.append(v1.Offsets(log_end=self._log.log_end).SerializeToString())
        return b"".join(parts)
