"""When the store indexes: behind dispatch, in batches, never beyond what was dispatched.

Dispatch only counts. Each time a batch has come together it is indexed, and one more as long as the
index is further behind than that (after an unclean stop it is built again). So with messages coming
in, the index is behind by one batch or catches up at the pace of the traffic; who asks it lets it catch
up first. A store without traffic that is far behind catches up through `turn`, on a timer of the broker.

Does nothing at all with `messageIndexEnable=false`. A full disk lets the index stand still, another
failed write makes the store read-only, as a failed queue write does (store format, section 7.3).
"""

import importlib
from collections.abc import Callable, Iterator
from typing import Final

from ..config.store_config import StoreConfig
from ..dispatch import Dispatcher
from ..format.checkpoint import Checkpoint
from ..format.disk import Disk
from ..format.errors import StoreError
from ..log.commit_log import CommitLog
from ..log.write_gate import WriteGate
from .index import BATCH_RECORDS, Index

#: Batches that a query waits for at most, about 50 ms; beyond that it answers with what there is.
QUERY_BATCHES: Final = 16
#: Batches that stopping waits for at most; the next start goes on where it ended.
STOP_BATCHES: Final = 64
_NUMPY_MODULES: Final = (".columns", "..format.index_writer")


class IndexService:
    """The index of a store, or nothing; the loop's, except `flush`."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        dispatcher: Dispatcher,
        *,
        disk: Disk,
        wall_ms: Callable[[], int],
        gate: WriteGate,
    ) -> None:
        self.enabled = config.message_index_enable
        self._index = Index(str(config.index_directory), config, log, disk, wall_ms)
        self._dispatcher = dispatcher
        self._gate = gate
        self._waiting = 0  # records dispatched since the last batch
        self._far = False  # behind by more than dispatch will see to
        self._started = False

    @property
    def behind(self) -> int:
        """Bytes of the log that are dispatched and not indexed."""
        return max(self._dispatcher.offset - self._index.offset, 0) if self.enabled else 0

    @property
    def trouble(self) -> str:
        """Why the index stands still, or ""."""
        return self._index.trouble

    # -- life ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Raises OSError or UnsupportedLayoutError; nothing is changed."""
        if self.enabled:
            self._index.load()

    def recover(self, clean: bool, checkpoint: Checkpoint) -> None:
        """Once the log's end is known. Raises OSError."""
        if self.enabled:
            self._index.recover(clean, checkpoint.index_msg_timestamp_ms)

    def start(self) -> None:
        """From now on files may be written. NumPy is loaded here, not under the first message."""
        if self.enabled:
            for name in _NUMPY_MODULES:
                importlib.import_module(name, __package__)
            self._index.warm_up()
            self._started = True
            self._far = self.behind > 0

    def flush(self, log_flushed: int, checkpoint: Checkpoint) -> None:
        """On the flush thread; see `Index.flush`. Raises OSError."""
        stamp = self._index.flush(log_flushed)
        if stamp:
            checkpoint.index_msg_timestamp_ms = stamp

    def finish(self) -> None:
        """Index the rest and leave whole files. Raises OSError."""
        if self._started:
            self._catch_up(STOP_BATCHES)
            self._index.finish()

    def close(self) -> None:
        self._index.close()

    # -- building -----------------------------------------------------------------------------

    def dispatched(self, records: int) -> None:
        """So many records more are in the queues."""
        self._waiting += records
        if self._waiting >= BATCH_RECORDS and self._started:
            batches, self._waiting = divmod(self._waiting, BATCH_RECORDS)
            self._catch_up(batches + 1, whole=True)

    def turn(self) -> bool:
        """One batch, if the index is far behind; whether it still is. Costs the loop 2-3 ms."""
        if self._far:
            self._catch_up(1)
        return self._far

    def _catch_up(self, batches: int, *, whole: bool = False) -> None:
        """Up to so many batches; `whole`: only as long as the next one will be a full one."""
        index, limit = self._index, self._dispatcher.offset
        self._far = False
        try:
            for _ in range(batches):
                covered = index.advance(limit)
                if not covered or (whole and limit - index.offset < covered):
                    return
        except OSError as error:
            self._gate.refuse(f"Building the index failed: {error}.")
            return
        self._far = index.offset < limit

    # -- asking -------------------------------------------------------------------------------

    def find(self, hash_: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Entries with this hash, newest first, of all that is dispatched. Raises OSError;
        StoreError when nothing is indexed."""
        if not self.enabled:
            raise StoreError("Messages are not indexed: messageIndexEnable is false.")
        if self._started and not self._gate.broken:
            self._waiting = 0
            self._catch_up(QUERY_BATCHES)
        return self._index.find(hash_, begin_ms, end_ms)

    def trim(self, log_start: int) -> int:
        """See `Index.trim`."""
        return self._index.trim(log_start)
