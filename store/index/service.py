"""Index scheduling: behind dispatch, in batches, never beyond what was dispatched.

Dispatch only counts records. Each complete batch is indexed, and one more while the index is
further behind than that (it is rebuilt after an unclean stop). So under traffic the index is one
batch behind or catches up at the pace of the traffic; a query lets it catch up first. Without
traffic an index that is far behind catches up through `turn`, on a timer of the broker.

Does nothing with `messageIndexEnable=false`. A full disk suspends indexing; another failed write
makes the store read-only, as a failed queue write does (docs/formats/store-format.md, section 7.3).
"""

import importlib
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from ..config.store_config import StoreConfig
from ..digests import StoreDigests
from ..dispatch import Dispatcher
from ..format.checkpoint import Checkpoint
from ..format.disk import Disk, shortage
from ..format.errors import StoreError
from ..format.index_file import IndexDigest, IndexHeader
from ..log.commit_log import CommitLog
from ..log.write_gate import WriteGate, suppress_no_space
from .index import BATCH_RECORDS, Filling, Index

if TYPE_CHECKING:
    from .native_entries import NativeEntries

logger = logging.getLogger(__name__)
#: Maximum number of batches that a query waits for, about 50 ms; its result may then be incomplete.
QUERY_BATCHES: Final = 16
#: Maximum number of batches that a stop waits for; the next start continues there.
STOP_BATCHES: Final = 64
_ALL: Final = (1 << 63) - 1, (1 << 63) - 1
_NUMPY_MODULES: Final = (".columns", ".native_entries", "..format.index_writer")


class IndexService:
    """The index of a store, or none; called from the event loop, except `flush`."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        dispatcher: Dispatcher,
        *,
        disk: Disk,
        wall_ms: Callable[[], int],
        gate: WriteGate,
        digests: StoreDigests,
        native: "NativeEntries | None" = None,
    ) -> None:
        self.enabled = config.message_index_enable
        self.damaged = 0  #: files that did not match their digest
        self._digests = digests
        self._log = log
        directory = str(config.index_directory)
        self._index = Index(directory, config, log, disk, wall_ms, native=native)
        self._dispatcher = dispatcher
        self._gate = gate
        self._waiting = 0  # records dispatched since the last batch
        self._lagging = False  # further behind than dispatch will index
        self._started = False

    @property
    def behind(self) -> int:
        """Bytes of the log that are dispatched and not indexed."""
        return max(self._dispatcher.offset - self._index.offset, 0) if self.enabled else 0

    @property
    def stall_reason(self) -> str:
        """Why indexing is suspended, or ""."""
        return self._index.stall_reason

    @property
    def durable(self) -> tuple[int, int]:
        """Last record (offset, store time) that is durable in the index; the largest values without
        an index."""
        return self._index.durable if self.enabled else _ALL

    # -- life ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Load the files. Raises OSError or UnsupportedLayoutError; nothing is changed."""
        if self.enabled:
            self._index.load()

    def recover(self, clean: bool, checkpoint: Checkpoint) -> None:
        """Recover, once the log end is known; set the checkpoint to what is durable. Raises
        OSError."""
        if not self.enabled:
            return
        self._index.recover(clean, checkpoint.index_msg_timestamp_ms)
        self._drop_behind_missing()
        paths = self._index.paths
        if paths and self._digests.has_index(paths[-1]):  # it may be written again
            digest = self._index.read_digest(paths[-1])
            self.compare(paths[-1], digest)
            if paths == self._index.paths:
                self._index.expect(paths[-1], digest)
        queued = checkpoint.logics_physical_offset, checkpoint.logics_msg_timestamp_ms
        checkpoint.queued_offset = checkpoint.queues_durable_to
        both = min(queued, self._index.durable)
        checkpoint.logics_physical_offset, checkpoint.logics_msg_timestamp_ms = both
        checkpoint.index_msg_timestamp_ms = self._index.durable[1]

    def _drop_behind_missing(self) -> None:
        """Delete the files behind one that is missing although the log holds its records, so that
        all are rebuilt. Raises OSError."""
        paths = self._index.paths
        for end_offset, name in self._digests.absent_index(paths):
            if end_offset < self._log.start:
                continue  # retention deleted it
            later = (path for path in paths if self._index.header(path).end_offset > end_offset)
            if first := next(later, ""):
                self.damaged += 1
                logger.warning(
                    "index.file_missing file=%s: it and all later files are rebuilt from the log.",
                    name,
                )
                self._index.drop_from(first)
            break
        self._digests.keep_index(self._index.paths)

    def start(self) -> None:
        """Allow writes. Loads NumPy here, not during the first append."""
        if self.enabled:
            for name in _NUMPY_MODULES:
                importlib.import_module(name, __package__)
            self._index.warm_up()
            self._started = True
            self._lagging = self.behind > 0

    def flush(self, log_flushed: int, checkpoint: Checkpoint) -> bool:
        """Flush one full file on the flush thread; return whether the checkpoint should be saved
        now, and `flush` called again. Raises OSError."""
        if not self.enabled:
            return False
        try:
            covered = self._index.flush(log_flushed, self._note_full)
            self._digests.save()
        except OSError as error:
            if shortage(error) is None:
                raise
            return False  # the next round tries again
        checkpoint.index_msg_timestamp_ms = self._index.durable[1]
        return covered

    def _note_last(self, path: str, header: IndexHeader, digest: IndexDigest) -> None:
        """Save a digest during the stop, if there is disk space. Raises OSError."""
        with suppress_no_space():
            self._note_full(path, header, digest)

    def _note_full(self, path: str, header: IndexHeader, digest: IndexDigest) -> None:
        """Save the digest of a full file before the checkpoint covers it. Raises OSError."""
        self._digests.note_index(path, header, digest)
        self._digests.save()

    def finish(self) -> None:
        """Index the rest and complete the files. Raises OSError."""
        if self._started:
            self._catch_up(STOP_BATCHES)
            self._index.finish(self._note_last)
            paths = self._index.paths
            self._digests.keep_index(paths)
            for path in paths:
                known = self._index.known_digest(path)
                if known is None and not self._digests.has_index(path):
                    known = self._index.header(path), self._index.read_digest(path)
                if known is not None:
                    self._digests.note_index(path, *known)

    def close(self) -> None:
        self._index.close()

    # -- scrub --------------------------------------------------------------------------------

    def full_files(self) -> list[str]:
        """Return the paths of the files that are not written any more."""
        return self._index.full_paths if self.enabled and not self._gate.broken else []

    def filling(self) -> Filling | None:
        """Return the entries of the file that is being filled."""
        return self._index.filling if self.enabled and not self._gate.broken else None

    def read_digest(self, path: str) -> IndexDigest:
        """Return the digest of a file, for `compare`. Any thread. Raises OSError."""
        return self._index.read_digest(path)

    def compare(self, path: str, digest: IndexDigest) -> None:
        """Compare a file's digest with the noted one; note it if there is none. A damaged file is
        deleted with all later ones, and rebuilt from the log. Raises OSError."""
        if path in self._index.paths and not self._digests.index_matches(path, digest):
            self.rebuild_from(path)

    def rebuild_from(self, path: str) -> None:
        """Delete a damaged file with all later ones, and rebuild them. Raises OSError."""
        if path not in self._index.paths:
            return
        self.damaged += 1
        logger.warning(
            "index.damaged file=%s: it does not match its digest; it and all later files are "
            "rebuilt from the log.",
            path,
        )
        self._index.drop_from(path)
        self._digests.keep_index(self._index.paths)
        self._lagging = self._started

    # -- building -----------------------------------------------------------------------------

    def dispatched(self, records: int) -> None:
        """Count newly dispatched records; index when a batch is complete."""
        self._waiting += records
        if self._waiting >= BATCH_RECORDS and self._started:
            batches, self._waiting = divmod(self._waiting, BATCH_RECORDS)
            self._catch_up(batches + 1, whole=True)

    def turn(self) -> bool:
        """Index one batch, if the index is far behind; return whether it still is. Takes the event
        loop 1-3 ms."""
        if self._lagging:
            self._catch_up(1)
        return self._lagging

    def _catch_up(self, batches: int, *, whole: bool = False) -> None:
        """Index up to `batches` batches; with `whole` only while the next one is a full one."""
        index, limit = self._index, self._dispatcher.offset
        self._lagging = False
        try:
            for _ in range(batches):
                covered = index.advance(limit)
                if not covered or (whole and limit - index.offset < covered):
                    return
        except OSError as error:
            self._gate.refuse(f"Building the index failed: {error}.")
            return
        self._lagging = index.offset < limit

    # -- asking -------------------------------------------------------------------------------

    def find(self, hash_: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Return entries with this hash, newest first, of all dispatched records. Raises OSError;
        StoreError when the index is disabled."""
        if not self.enabled:
            raise StoreError("Messages are not indexed: messageIndexEnable is false.")
        if self._started and not self._gate.broken:
            self._waiting = 0
            self._catch_up(QUERY_BATCHES)
        return self._index.find(hash_, begin_ms, end_ms)

    def indexed(self, hash_: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Return entries of what is indexed, as `find` does; none without an index. Raises
        OSError."""
        return self._index.find(hash_, begin_ms, end_ms) if self.enabled else iter(())

    def trim(self, log_start: int) -> int:
        """See `Index.trim`."""
        return self._index.trim(log_start)
