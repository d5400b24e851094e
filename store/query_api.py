"""The asking half of the store's face: messages by key, unique key and id (see `query.py`)."""

from dataclasses import replace
from itertools import islice

from .config.store_config import StoreConfig
from .dispatch import Dispatcher
from .format.record import Record
from .index.indexing import Indexing
from .log.commit_log import CommitLog
from .query import TIME_MAX_MS, KeyQuery, find_by_id, find_records, record_in
from .reading import QueueReader


class QueryApi:
    """What an opened store can be asked about single messages; they are seen once dispatched."""

    config: StoreConfig
    _log: CommitLog
    _dispatcher: Dispatcher
    _indexing: Indexing
    _reader: QueueReader

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
        """The newest messages with this key in a range of store times, oldest first.

        Looks at UNIQ_KEY and KEYS; `index_type` "U" or "K" at one of them, "T" at the tags. At most
        maxMsgsNumBatch messages. Raises ValueError, OSError, or StoreError without an index.
        """
        return self.query_by(KeyQuery(topic, key, count_max, begin_ms, end_ms, index_type))

    def query_by(self, asked: KeyQuery) -> list[Record]:
        """The same for a question that was put before."""
        count_max = min(asked.count_max, self.config.max_msgs_num_batch)
        return find_records(replace(asked, count_max=count_max), self._indexing, self)

    def is_cold_query(self, asked: KeyQuery) -> bool:
        """Whether a record that `query` would read lies so far back that it comes from the disk; asks the index
        alone. Raises OSError, StoreError."""
        is_cold = self._reader.is_cold_place
        if not is_cold(self._log.start):
            return False
        places = self._indexing.find(asked.hash, asked.begin_ms, asked.end_ms)
        first = islice(places, min(asked.count_max, self.config.max_msgs_num_batch))
        return any(is_cold(place) for place in first if place >= 0)

    def message_by_unique_key(self, topic: str, unique_key: str) -> Record | None:
        """The newest message of this topic with this UNIQ_KEY. Raises OSError, StoreError."""
        count_max = self.config.default_query_max_num
        found = self.query(topic, unique_key, count_max=count_max, index_type="U")
        return found[-1] if found else None

    def message_by_id(self, message_id: str, topic: str = "") -> Record | None:
        """By offset id (32 or 56 hex digits); and if `topic` is given, else by unique key."""
        found = find_by_id(message_id, self)
        if found is None and topic:
            return self.message_by_unique_key(topic, message_id)
        return found

    def record_or_none(self, offset: int) -> Record | None:
        """The record that begins at this offset, if one does and readers may see it."""
        log = self._log
        if not log.start <= offset < self._dispatcher.offset:
            return None
        segment = log.segment_at(offset)
        with segment.hold() as data:
            return record_in(data, offset - segment.start, segment.start)

    @property
    def index_behind(self) -> int:
        """Bytes of the log that a query may not know of yet."""
        return self._indexing.behind

    @property
    def index_trouble(self) -> str:
        """Why the index stands still, or ""."""
        return self._indexing.trouble

    def index_turn(self) -> bool:
        """Some milliseconds of building the index, if it is behind while nothing is dispatched;
        true as long as there is more to do."""
        return self._indexing.turn()
