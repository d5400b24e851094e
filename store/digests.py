"""Digests of derived files whose formats have no checksum: `config/storeDigests.json`.

    queueEnds     sum over the ends of all consume queues, and the log end, at the last clean stop
    queues        queue ids by topic, without light queues, saved before the checkpoint covers a
                  record of a new queue
    queueEndTable queue ids, each with its end, by topic, saved before retention deletes a segment
                  and at a clean stop
    indexTable    checksum of every index file that is not written any more: of full ones, and of
                  the last one after a clean stop

A queue that lost its last units would give their offsets to new messages; a start whose queues do
not have the noted ends completes them from the log, and a start that lacks a noted queue reads the
whole log for it; where retention has deleted the records, the queue goes on at its noted end. An
index file that does not match is deleted with all later ones, and rebuilt. Digests of index files
come from memory (`index/digest.py`), and are saved before the checkpoint covers the file. After
Apache's broker has run, the log end differs, and its index files have grown: their digests are then
taken from the files.
"""

import os
import threading
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from .format.disk import Disk
from .format.index_file import HEADER, IndexDigest, IndexHeader
from .format.json_file import dumps, load, persist
from .format.topic_names import is_lmq

DIGESTS_FILE: Final = "storeDigests.json"
_ENDS, _INDEX, _LOG_END, _NAMES = "queueEnds", "indexTable", "logEnd", "queues"
_END_TABLE: Final = "queueEndTable"

Queue = tuple[str, int]


def sum_of_ends(ends: Iterable[tuple[str, int, int]]) -> int:
    """Return a number that depends on topic, queue id and end of every queue, not on their
    order."""
    return sum(zlib.crc32(b"%b/%d/%d" % (topic.encode(), q, end)) for topic, q, end in ends)


class StoreDigests:
    """The file. The flush thread notes full index files and saves; everything else is called by the
    event loop."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._ends: tuple[int, int] | None = None  # log end, sum of the ends
        self._names: dict[Queue, int] = {}  # with the noted end, 0 = unknown
        self._saving = threading.Lock()
        #: By name of an index file: digest, and count, end offset and end time of its header.
        self._index: dict[str, list[Any]] = {}
        self._changed = False
        self._lock = threading.Lock()  # guards the values, not the write

    def load(self) -> None:
        """Read the file. Raises ConfigFileError."""
        self._ends, self._index, self._names = _tables_of(load(self._path, _tables_of) or {})

    def save(self) -> None:
        """Write the file, if anything changed. Raises OSError."""
        with self._saving:
            self._save()

    def _save(self) -> None:
        with self._lock:
            if not self._changed:
                return
            content: dict[str, Any] = {_INDEX: dict(sorted(self._index.items()))}
            if self._ends is not None:
                content[_LOG_END], content[_ENDS] = self._ends
            names: dict[str, list[int]] = {}
            ends: dict[str, list[int]] = {}
            for (topic, queue_id), end in sorted(self._names.items()):
                names.setdefault(topic, []).append(queue_id)
                if end:
                    ends.setdefault(topic, []).extend((queue_id, end))
            content[_NAMES] = names
            content[_END_TABLE] = ends
            self._changed = False
        try:
            persist(self._path, dumps(content), self._disk)
        except BaseException:
            self._changed = True
            raise

    def note_queues(self, log_end: int, ends: int) -> None:
        """Note the sum of the queues' ends (`sum_of_ends`)."""
        with self._lock:
            if self._ends != (log_end, ends):
                self._ends = log_end, ends
                self._changed = True

    def queues_match(self, log_end: int, ends: int, *, is_own: bool) -> bool:
        """Return whether the queues end where they ended at the last clean stop.

        Of a store that this program stopped (`is_own`) the ends must be known: the file may be
        missing, or a former one. Apache's broker notes none.
        """
        if self._ends is None or self._ends[0] != log_end:
            return not is_own
        return self._ends[1] == ends

    def note_names(self, queues: Iterable[Queue]) -> None:
        """Note which queues exist."""
        with self._lock:
            known = self._names
            names = {queue: known.get(queue, 0) for queue in queues if not is_lmq(queue[0])}
            if known.keys() != names.keys():
                self._names = names
                self._changed = True

    def note_ends(self, ends: Iterable[tuple[str, int, int]]) -> None:
        """Note the ends of all queues (topic, queue id, end); their records are flushed."""
        names = {(topic, q): end for topic, q, end in ends if not is_lmq(topic)}
        with self._lock:
            if self._names != names:
                self._names = names
                self._changed = True

    def forget_queues(self, queues: Iterable[Queue]) -> None:
        """Drop the noted ends of queues, durably: a queue begins at 0 if it is used again. Raises
        OSError."""
        with self._lock:
            for queue in queues:
                if self._names.pop(queue, None) is not None:
                    self._changed = True
        self.save()

    def ends_missed(self, ends: Iterable[tuple[str, int, int]]) -> dict[Queue, int]:
        """Return the noted ends that are above these."""
        now = {(topic, q): end for topic, q, end in ends}
        with self._lock:
            return {queue: end for queue, end in self._names.items() if end > now.get(queue, 0)}

    def absent_queues(self, queues: Iterable[Queue]) -> list[Queue]:
        """Return the noted queues that are not among these."""
        with self._lock:
            return sorted(self._names.keys() - set(queues))

    def index_matches(self, path: str, digest: IndexDigest) -> bool:
        """Return whether the file has its noted digest. A digest is noted if there is none, or if
        Apache's broker has added entries."""
        known = self._index.get(os.path.basename(path))
        header = _header(path)
        if known is not None and known[0] != str(digest):
            grown = header.count > known[1] and header.end_offset > known[2]
            if not grown or header.end_timestamp_ms < known[3]:
                return False
        self.note_index(path, header, digest)
        return True

    def note_index(self, path: str, header: IndexHeader, digest: IndexDigest) -> None:
        """Note the digest of an index file with this header."""
        entry = [str(digest), header.count, header.end_offset, header.end_timestamp_ms]
        with self._lock:
            if self._index.get(os.path.basename(path)) != entry:
                self._index[os.path.basename(path)] = entry
                self._changed = True

    def has_index(self, path: str) -> bool:
        return os.path.basename(path) in self._index

    def absent_index(self, paths: Iterable[str]) -> list[tuple[int, str]]:
        """Return end offset and name of the noted index files that are not among these, in the
        order of the log."""
        names = {os.path.basename(path) for path in paths}
        with self._lock:
            absent = [(entry[2], name) for name, entry in self._index.items() if name not in names]
        return sorted(absent)

    def keep_index(self, paths: Iterable[str]) -> None:
        """Drop the digests of all other index files."""
        names = {os.path.basename(path) for path in paths}
        with self._lock:
            for name in self._index.keys() - names:
                del self._index[name]
                self._changed = True


def _header(path: str) -> IndexHeader:
    with open(path, "rb", buffering=0) as file:
        return IndexHeader.decode(file.read(HEADER.size).ljust(HEADER.size, b"\0"))


def _tables_of(
    content: dict[Any, Any],
) -> tuple[tuple[int, int] | None, dict[str, list[Any]], dict[Queue, int]]:
    ends = None
    if _ENDS in content:
        ends = int(content[_LOG_END]), int(content[_ENDS])
    index = {
        str(name): [str(digest), int(count), int(offset), int(time_ms)]
        for name, (digest, count, offset, time_ms) in (content.get(_INDEX) or {}).items()
    }
    names = {
        (str(topic), int(queue_id)): 0
        for topic, numbers in (content.get(_NAMES) or {}).items()
        for queue_id in numbers
    }
    for topic, noted in (content.get(_END_TABLE) or {}).items():
        pairs = zip(noted[::2], noted[1::2], strict=True)
        names.update({(str(topic), int(queue_id)): int(end) for queue_id, end in pairs})
    return ends, index, names
