"""Queries for messages by key, unique key and id, from index entries to records.

The index holds hashes only. Every record that an entry points to is read, and counts if it has the
key and lies in the time range; so hash collisions and entries of deleted records do not use up the
result's size. (The reference returns collisions, and retries up to three times when nothing could
be read. docs/formats/store-format.md, section 4: query, queryMessage.)

    index type    compares                    key string of the index
    None          UNIQ_KEY and KEYS           topic#key
    "U", "K"      only UNIQ_KEY, only KEYS    topic#key
    "T"           TAGS, as a whole            topic#T#tags

`MessageQueries` runs over an opened store, `StoreQuery` over any directory, read-only.
"""

import itertools
import mmap
import os
from collections.abc import Iterator
from typing import Final, Protocol, Self

from msgspec import Struct
from msgspec.structs import replace

from .config.store_config import StoreConfig
from .dispatch import Dispatcher
from .format.errors import RecordFormatError
from .format.index_file import IndexFile, IndexLayout, guess_layout, index_files, key_hash
from .format.message_id import OffsetId
from .format.properties import TAGS
from .format.record import Record, decode
from .index.service import IndexService
from .log.commit_log import CommitLog
from .reading import QueueReader
from .scan.single import inspect

TIME_MAX_MS: Final = (1 << 63) - 1
INDEX_TYPES: Final = (None, "K", "U", "T")
#: Index entries examined by one query, about 50 ms. A common tag with an early time range would
#: otherwise examine millions while the event loop waits; the result is what was found so far.
STEPS_MAX: Final = 100_000
#: Records read by one query; each is a copy out of the log.
READS_MAX: Final = 2_000
#: Bytes of these records: more than one answer holds.
READ_BYTES_MAX: Final = 8 << 20
#: Entries and records for a question of which a request has several. More have the same hash only
#: on purpose.
NEAR_STEPS_MAX: Final = 1_000
NEAR_READS_MAX: Final = 8


class KeyQuery(Struct, frozen=True):
    """A query by key; `begin_ms` and `end_ms` are store times, both included."""

    topic: str
    key: str
    count_max: int
    begin_ms: int = 0
    end_ms: int = TIME_MAX_MS
    index_type: str | None = None

    def __post_init__(self) -> None:
        if self.index_type not in INDEX_TYPES:
            raise ValueError(f"The index type is {self.index_type!r}: use K, U, T or none.")

    @property
    def hash(self) -> int:
        sign = "#T#" if self.index_type == "T" else "#"
        return key_hash(f"{self.topic}{sign}{self.key}")

    def matches(self, record: Record) -> bool:
        """Return whether the record has the key, not only its hash."""
        if record.topic != self.topic:
            return False
        if not self.begin_ms <= record.store_timestamp_ms <= self.end_ms:
            return False
        properties = record.properties_dict
        if self.index_type == "T":
            return properties.get(TAGS) == self.key
        if self.index_type != "K" and properties.get("UNIQ_KEY") == self.key:
            return True
        return self.index_type != "U" and self.key in properties.get("KEYS", "").split(" ")


class RecordSource(Protocol):
    """A source of records by physical offset."""

    def record_or_none(self, offset: int) -> Record | None:
        """Return the whole record that begins at any given offset; None if there is none."""
        ...


class EntrySource(Protocol):
    """A source of index entries."""

    def find(self, hash_: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Return physical offsets, newest first; skip negative ones (see `IndexFile.find`)."""
        ...


def find_records(
    query: KeyQuery, index: EntrySource, log: RecordSource, *, bounded: bool = True
) -> list[Record]:
    """Return the newest matching records, at most `count_max`, oldest first; `bounded` by
    STEPS_MAX, READS_MAX and READ_BYTES_MAX. Raises OSError."""
    records: list[Record] = []
    seen: set[int] = set()
    read_bytes = 0
    if not query.key or query.count_max <= 0:
        return records
    entries = index.find(query.hash, query.begin_ms, query.end_ms)
    if bounded:
        entries = itertools.islice(entries, STEPS_MAX)
    for offset in entries:
        if offset < 0 or offset in seen:
            continue
        seen.add(offset)
        record = log.record_or_none(offset)
        if record is not None:
            read_bytes += record.size
            if query.matches(record):
                records.append(record)
        if len(records) >= query.count_max:
            break
        if bounded and (len(seen) >= READS_MAX or read_bytes >= READ_BYTES_MAX):
            break
    records.sort(key=lambda record: record.physical_offset)
    return records


def find_by_id(text: str, log: RecordSource) -> Record | None:
    """Return the record of an offset id."""
    wanted = OffsetId.parse(text)
    if wanted is None:
        return None
    record = log.record_or_none(wanted.physical_offset)
    return record if record is not None and record.store_host == wanted.store_host else None


def record_in(data: memoryview, position: int, base: int) -> Record | None:
    """Return the whole record at `position` of a segment that starts at `base`, or None."""
    try:
        inspected = inspect(data, position, base, check_crc=False)
        if inspected.blank:
            return None
        return decode(bytes(data[position : position + inspected.size]))
    except RecordFormatError:
        return None


class MessageQueries:
    """Queries by key, unique key and id over an opened store; messages are found once they are
    dispatched."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        dispatcher: Dispatcher,
        *,
        index: IndexService,
        reader: QueueReader,
    ) -> None:
        self._config = config
        self._log = log
        self._dispatcher = dispatcher
        self._index = index
        self._reader = reader

    def query(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 64,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX_MS,
        index_type: str | None = None,
    ) -> list[Record]:
        """Return the newest messages with this key in a range of store times, oldest first.

        Compares UNIQ_KEY and KEYS; with `index_type` "U" or "K" one of them, with "T" the tags. At
        most maxMsgsNumBatch messages. Raises ValueError, OSError, or StoreError without an index.
        """
        return self.find(KeyQuery(topic, key, count_max, begin_ms, end_ms, index_type))

    def find(self, query: KeyQuery) -> list[Record]:
        """Run a prepared query, as `query` does."""
        count_max = min(query.count_max, self._config.max_msgs_num_batch)
        return find_records(replace(query, count_max=count_max), self._index, self)

    def is_cold(self, query: KeyQuery) -> bool:
        """Return whether a record that the query would read is cold (may wait for the disk); reads
        the index only. Raises OSError, StoreError."""
        is_cold = self._reader.is_cold_position
        if not is_cold(self._log.start):
            return False
        offsets = self._index.find(query.hash, query.begin_ms, query.end_ms)
        first = itertools.islice(offsets, min(query.count_max, self._config.max_msgs_num_batch))
        return any(is_cold(offset) for offset in first if offset >= 0)

    def by_unique_key(self, topic: str, unique_key: str) -> Record | None:
        """Return the newest message of this topic with this UNIQ_KEY. Raises OSError,
        StoreError."""
        count_max = self._config.default_query_max_num
        records = self.query(topic, unique_key, count_max=count_max, index_type="U")
        return records[-1] if records else None

    def has_since(
        self, topic: str, unique_key: str, begin_ms: int, begin_offset: int
    ) -> bool | None:
        """Return whether the topic has a message with this UNIQ_KEY of `begin_ms` or later, at
        `begin_offset` of the log or behind it; None if that is not known, because the index is far
        behind.

        Examines few entries (a millisecond). Raises OSError; StoreError without an index.
        """
        query = KeyQuery(topic, unique_key, 1, begin_ms, index_type="U")
        entries = self._index.find(query.hash, begin_ms, TIME_MAX_MS)
        entries = itertools.islice(entries, NEAR_STEPS_MAX)
        near = (offset for offset in entries if offset >= max(begin_offset, 0))
        for offset in itertools.islice(near, NEAR_READS_MAX):
            record = self.record_or_none(offset)
            if record is not None and query.matches(record):
                return True
        return None if self._index.behind else False

    def by_id(self, message_id: str, topic: str = "") -> Record | None:
        """Return the message with this offset id (32 or 56 hex digits); with `topic` also the one
        with this unique key."""
        record = find_by_id(message_id, self)
        if record is None and topic:
            return self.by_unique_key(topic, message_id)
        return record

    def record_or_none(self, offset: int) -> Record | None:
        """Return the visible record that begins at this offset, if there is one."""
        log = self._log
        if not log.start <= offset < self._dispatcher.offset:
            return None
        segment = log.segment_at(offset)
        with segment.hold() as data:
            return record_in(data, offset - segment.start, segment.start)


class StoreQuery:
    """Queries over a store directory, opened or not. Use it in a `with` statement.

    Reads segments and index files; without `layout` the sizes of index files are guessed from their
    contents. Changes nothing and takes no lock.
    """

    def __init__(
        self, log_directories: list[str], index_directory: str, layout: IndexLayout | None = None
    ) -> None:
        self._paths: dict[int, str] = {}
        self._segment_bytes = 0
        self._maps: dict[int, mmap.mmap] = {}
        self._index = index_directory
        self._layout = layout
        for directory in log_directories:
            for path in _segments(directory):
                self._paths[int(os.path.basename(path))] = path
                self._segment_bytes = max(self._segment_bytes, os.path.getsize(path))

    def query(self, query: KeyQuery) -> list[Record]:
        """Return the records as `find_records` does, unbounded. Raises OSError,
        UnsupportedLayoutError."""
        return find_records(query, self, self, bounded=False)

    def by_id(self, text: str) -> Record | None:
        """Return the record of an offset id."""
        return find_by_id(text, self)

    def find(self, hash_: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield entries of all index files, newest first."""
        for path in reversed(index_files(self._index)):
            layout = self._layout or guess_layout(path)
            if layout is None:
                continue
            with IndexFile(path, layout) as file:
                yield from file.find(hash_, begin_ms, end_ms)

    def record_or_none(self, offset: int) -> Record | None:
        if not self._segment_bytes or offset < 0:
            return None
        start = offset // self._segment_bytes * self._segment_bytes
        data = self._map(start)
        if data is None:
            return None
        with memoryview(data) as view:
            return record_in(view, offset - start, start)

    def _map(self, start: int) -> mmap.mmap | None:
        data = self._maps.get(start)
        path = self._paths.get(start)
        if data is None and path is not None and os.path.getsize(path):
            with open(path, "rb", buffering=0) as file:
                data = self._maps[start] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return data

    def close(self) -> None:
        for data in self._maps.values():
            data.close()
        self._maps.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _segments(directory: str) -> list[str]:
    try:
        return [e.path for e in os.scandir(directory) if e.name.isdecimal() and e.is_file()]
    except FileNotFoundError:
        return []
